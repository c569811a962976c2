"""From an image to the input of a model, as transformers' processors make it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import jax
import numpy as np
from PIL import Image

from examples.library.photographs import ImageError

Array = TypeVar("Array", np.ndarray, jax.Array)

TINY, LARGEST = (float(value) for value in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))  # normal numbers
SIDES, EDGES, LIMITS = ("height", "width"), ("shortest_edge", "longest_edge"), ("max_height", "max_width")
PROCESSORS = {  # of transformers, by the type of the model
    "deformable_detr": "DeformableDetrImageProcessor",
    "rt_detr": "RTDetrImageProcessor",
    "rt_detr_v2": "RTDetrImageProcessor",
    "d_fine": "RTDetrImageProcessor",
    "deimv2": "RTDetrImageProcessor",
    "lw_detr": "DeformableDetrImageProcessor",
    "rf_detr": "RfDetrImageProcessor",
}
# What a preprocessor_config.json need not say. A switch that is null there is off, whatever its default is.
DEFAULTS = {
    "do_resize": True,
    "resample": Image.Resampling.BILINEAR.value,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "pad_size": None,
}
_DETR = {
    "size": {"shortest_edge": 800, "longest_edge": 1333},
    "max_size": 1333,
    "do_normalize": True,
    "pad_and_return_pixel_mask": True,  # an old name of do_pad
}
DEFAULTS_BY_PROCESSOR = {
    "DeformableDetrImageProcessor": _DETR,
    "DetrImageProcessor": _DETR,
    "RfDetrImageProcessor": _DETR,
    "RTDetrImageProcessor": {"size": {"height": 640, "width": 640}, "do_normalize": False, "do_pad": False},
}


class Rule(NamedTuple):
    """Which values a setting may have, also in words, and the value that means nothing is done."""

    accepts: Callable[[Any], bool]
    words: str
    neutral: Any


def _is_size(value: Any, *names: tuple[str, str]) -> bool:
    if not isinstance(value, dict) or set(value) not in map(set, names):
        return False
    return all(type(side) is int and side > 0 for side in value.values())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value >= TINY


def _is_one_or_three(fits: Callable[[Any], bool], value: Any) -> bool:
    return all(map(fits, value)) if isinstance(value, list) and len(value) == 3 else fits(value)


# The settings that change images: the switches, and the settings that each of them uses.
SETTINGS = {
    "do_resize": {
        "size": Rule(
            lambda value: _is_size(value, SIDES, EDGES, LIMITS),
            f"positive integers named {', or '.join(' and '.join(names) for names in (SIDES, EDGES, LIMITS))}",
            None,
        ),
        "resample": Rule(
            lambda value: type(value) is int and value in range(6), "the number of a filter of PIL, 0 to 5", None
        ),
    },
    "do_rescale": {"rescale_factor": Rule(_is_positive, "a positive number", 1.0)},
    "do_normalize": {
        "image_mean": Rule(partial(_is_one_or_three, _is_number), "a finite number or a list of three", 0.0),
        "image_std": Rule(partial(_is_one_or_three, _is_positive), "a positive number or a list of three", 1.0),
    },
    "do_pad": {
        "pad_size": Rule(
            lambda value: value is None or _is_size(value, SIDES), "positive integers named height and width", None
        )
    },
}
# Settings that choose the defaults and old forms of the ones above.
CHOOSING = ("image_processor_type", "feature_extractor_type", "max_size", "pad_and_return_pixel_mask")
# Settings that transformers' processors of these models ignore for an RGB image.
IGNORED = (
    *("_valid_processor_keys", "annotations", "crop_size", "data_format", "default_to_square", "device"),
    *("disable_grouping", "do_center_crop", "do_convert_annotations", "do_convert_rgb", "format", "image_seq_length"),
    *("input_data_format", "masks_path", "processor_class", "return_segmentation_masks", "return_tensors", "use_fast"),
)
KNOWN = {*SETTINGS, *(key for used in SETTINGS.values() for key in used), *CHOOSING, *IGNORED}
KEPT_IN_TRAINING = ("resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")


class Normalisation(NamedTuple):
    """What becomes of the values 0 to 255 of images: they are multiplied by `factor`, then `mean` is subtracted, and
    the difference is divided by `deviation`."""

    factor: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, images: Array, mask: Array) -> Array:
        """Images [batch, height, width, 3] in float32, with zeros where the mask [batch, height, width] is false."""
        scaled = images.astype("float32") * np.float32(self.factor)
        return (scaled - np.float32(self.mean)) / np.float32(self.deviation) * mask[..., None]


@dataclass(frozen=True)
class Preprocessor:
    """How images are made the input of a model.

    size: that images are resized to, for `resized`; None if they are not. resample: PIL's filter. pad_size: the height
    and width that they are padded to, below and on the right; None if they are not. settings: the
    preprocessor_config.json that says so.
    """

    size: Mapping[str, int] | None
    resample: int | None
    pad_size: tuple[int, int] | None
    normalisation: Normalisation
    settings: Mapping[str, Any]

    @classmethod
    def from_json(cls, model_type: str, settings: Mapping[str, Any]) -> Self:
        """Raises ValueError, which names the setting, if one is unknown or has a value that is not supported."""
        options, used = _options(model_type, settings), {}
        for switch, rules in SETTINGS.items():
            if options[switch] not in (True, False, None):
                raise ValueError(f"{switch} must be true or false, got {options[switch]!r}")
            for key, rule in rules.items():
                if options[switch] and not rule.accepts(options[key]):
                    raise ValueError(f"{key} must be {rule.words}, got {options[key]!r}")
                used[key] = options[key] if options[switch] else rule.neutral
        mean, deviation = (tuple(np.broadcast_to(used[key], 3).tolist()) for key in ("image_mean", "image_std"))
        pad_size = used["pad_size"] and (used["pad_size"]["height"], used["pad_size"]["width"])
        normalisation = Normalisation(used["rescale_factor"], mean, deviation)
        return cls(used["size"], used["resample"], pad_size, normalisation, settings)

    def for_training(self, model_type: str, side: int) -> Self:
        """The same values in images of another size: squares, into which Deformable DETR's are fitted and padded."""
        keeps_ratio = model_type == "deformable_detr"
        options = _options(model_type, self.settings)
        settings = {key: options[key] for key in KEPT_IN_TRAINING} | {
            "image_processor_type": PROCESSORS[model_type],
            "do_resize": True,
            "size": dict.fromkeys(LIMITS if keeps_ratio else SIDES, side),
            "do_pad": keeps_ratio,
            "pad_size": dict.fromkeys(SIDES, side),
        }
        return self.from_json(model_type, settings)

    def shapes(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The heights and widths of an image after it is resized, and after it is padded."""
        filled = resized(height, width, self.size) if self.size else (height, width)
        if 0 in filled:
            raise ImageError(f"an image of {height} x {width} pixels would have no pixel at the size {self.size}")
        full = self.pad_size or filled
        if any(side < least for side, least in zip(full, filled, strict=True)):
            raise ValueError(f"pad_size must be at least {filled}, the size of a resized image, got {full}")
        return filled, full

    def __call__(self, image: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        """An RGB image resized and padded, uint8 [1, height, width, 3], and its mask, which is false in the padding."""
        filled, full = self.shapes(image.height, image.width)
        if self.size:
            image = image.resize(filled[::-1], self.resample)
        return padded(np.asarray(image), full)[None], padded(np.ones(filled, bool), full)[None]


def _options(model_type: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, with the defaults of the processor; old forms of sizes and names are replaced by new ones."""
    unknown = ", ".join(repr(key) for key in settings if key not in KNOWN)
    if unknown:
        raise ValueError(f"the settings of an image processor must be known, got {unknown}")
    kind = settings.get("image_processor_type") or settings.get("feature_extractor_type") or PROCESSORS[model_type]
    kind = str(kind).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if kind not in DEFAULTS_BY_PROCESSOR:
        raise ValueError(f"image_processor_type must be {' or '.join(DEFAULTS_BY_PROCESSOR)}, got {kind}")
    defaults = DEFAULTS | DEFAULTS_BY_PROCESSOR[kind]
    options = defaults | settings
    options.setdefault("do_pad", options.get("pad_and_return_pixel_mask"))
    if "max_size" in defaults and type(options["size"]) is int:
        options["size"] = {"shortest_edge": options["size"], "longest_edge": options["max_size"]}
    elif "max_size" in defaults and options["size"] is None:
        options["size"] = defaults["size"]
    if type(options["pad_size"]) is int:
        options["pad_size"] = [options["pad_size"]] * 2
    for key in ("size", "pad_size"):
        if isinstance(options[key], list) and len(options[key]) == len(SIDES):
            options[key] = dict(zip(SIDES, options[key], strict=True))
    return options


def padded(array: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """An image or a mask with zeros below and on the right, up to this height and width."""
    padding = [(0, full - filled) for full, filled in zip(size, array.shape, strict=False)]
    return np.pad(array, padding + [(0, 0)] * (array.ndim - 2))


def resized(height: int, width: int, size: Mapping[str, int]) -> tuple[int, int]:
    """The height and width that a processor's `size` asks for.

    >>> resized(480, 640, {"height": 640, "width": 640})
    (640, 640)
    >>> resized(480, 640, {"shortest_edge": 800, "longest_edge": 1333})
    (800, 1066)
    >>> resized(640, 480, {"shortest_edge": 800, "longest_edge": 1333})
    (1066, 800)
    >>> resized(500, 1010, {"shortest_edge": 800, "longest_edge": 1333})
    (660, 1333)
    >>> resized(481, 1334, {"shortest_edge": 800, "longest_edge": 1333})
    (481, 1334)
    >>> resized(480, 640, {"max_height": 600, "max_width": 600})
    (450, 600)
    """
    if "height" in size:
        return size["height"], size["width"]
    if "max_height" in size:
        factor = min(size["max_height"] / height, size["max_width"] / width)
        return int(height * factor), int(width * factor)
    shorter, longer = sorted((height, width))
    edge = min(size["shortest_edge"], size["longest_edge"] * shorter / longer)
    short, long = round(edge), int(edge * longer / shorter)
    if short == shorter:  # the image stays, even if its longer side is a pixel too long
        return height, width
    return (short, long) if height <= width else (long, short)
