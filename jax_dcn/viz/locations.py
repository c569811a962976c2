"""Sampling locations of deformable layers, as numbers."""

import copy
import itertools
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from jax_dcn import _validation
from jax_dcn._operators.deform_conv import geometry
from jax_dcn._operators.roi_pool import geometry as pool_geometry
from jax_dcn._operators.roi_pool.arguments import Spec
from jax_dcn._types import Padding, Pair
from jax_dcn.statistics import statistics_of

Floats = NDArray[np.floating[Any]]

COCO_SIZES = {"small": 0.0, "medium": 32.0, "large": 96.0}


class Layer:
    """The offsets and masks that a deformable convolution used for images, and its geometry.

    ``layer[i]`` is the layer for image ``i`` only. Create it outside of `jit`, from what a jitted function returns.

    Args:
      offset: [..., Ho, Wo, G·K·2], as `deform_conv2d` takes it and `DeformConv` returns it with
        ``return_offsets=True``. Convert offset and mask of `DCNv3` and `DCNv4` with `jax_dcn.as_deform_conv`.
      mask: [..., Ho, Wo, G·K], or None without modulation.
      image_size: height and width of the convolution's input.
      kernel_size, strides, padding, kernel_dilation: as for the convolution.

    Attributes:
      offset: [..., Ho, Wo, G, K, 2] as (dy, dx), in pixels of the input.
      mask: [..., Ho, Wo, G, K], ones without modulation.
      locations: [..., Ho, Wo, G, K, 2] as (y, x), the sampling locations; not wrapped for "CIRCULAR" padding.
      image_size, output_size, kernel_size: (rows, columns).

    Raises:
      TypeError, ValueError: the arguments do not fit together, or are traced.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer
      >>> layer = Layer(np.zeros((4, 4, 18)), image_size=(8, 8), kernel_size=3, strides=2, padding=1)
      >>> layer.locations.shape
      (4, 4, 1, 9, 2)
      >>> layer.locations[1, 0, 0, :3].tolist()  # the three upper taps of the output at (1, 0)
      [[1.0, -1.0], [1.0, 0.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        offset: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        image_size: tuple[int, int],
        kernel_size: Pair,
        strides: Pair = 1,
        padding: Padding = "SAME",
        kernel_dilation: Pair = 1,
    ):
        for name, value in {"offset": offset, "mask": mask}.items():
            if isinstance(value, jax.core.Tracer):
                raise TypeError(f"{name} must be known, got traced: make a Layer of what the jitted function returns")
        self.image_size = _validation.pair("image_size", image_size)
        self.kernel_size = _validation.pair("kernel_size", kernel_size)
        self.geometry = geometry.resolve(
            self.image_size, self.kernel_size, strides=strides, padding=padding, kernel_dilation=kernel_dilation
        )
        offset = _validation.array("offset", offset)
        _validation.rank("offset", offset, 3, "[..., Ho, Wo, G·K·2]", least=True)
        geometry.check_offset(offset, self.image_size, self.kernel_size, self.geometry)
        groups, taps = geometry.groups_and_taps(offset, self.kernel_size)
        *lead, _ = offset.shape
        self.offset: Floats = np.asarray(offset, np.float64).reshape(*lead, groups, taps, 2)
        self.mask: Floats = np.ones((*lead, groups, taps))
        if mask is not None:
            mask = _validation.array("mask", mask)
            if mask.shape != (*lead, groups * taps):
                raise ValueError(f"mask must have shape {(*lead, groups * taps)}, half of offset's, got {mask.shape}")
            self.mask = np.asarray(mask, np.float64).reshape(self.mask.shape)

    @classmethod
    def of(cls, module: Any, x: jax.Array, offset: jax.Array, mask: jax.Array | None = None) -> "Layer":
        """The `Layer` of a ``DeformConv`` of `jax_dcn.linen` or `jax_dcn.nnx`, from its input and what it returned.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> from jax_dcn.linen import DeformConv
          >>> from jax_dcn.viz import Layer
          >>> module = DeformConv(features=4, kernel_size=3, strides=2, return_offsets=True)
          >>> x = jnp.ones((2, 8, 8, 3))
          >>> (y, offset, mask), variables = jax.jit(module.init_with_output)(jax.random.key(0), x)
          >>> Layer.of(module, x, offset, mask)[0].locations.shape
          (4, 4, 1, 9, 2)
        """
        same = {name: getattr(module, name) for name in ("kernel_size", "strides", "padding", "kernel_dilation")}
        return cls(offset, mask, image_size=(x.shape[-3], x.shape[-2]), **same)

    def __getitem__(self, image: Any) -> "Layer":
        if self.offset.ndim == 5:
            raise IndexError("a layer of one image has no images to choose from")
        one = copy.copy(self)
        one.offset, one.mask = self.offset[image], self.mask[image]
        return one

    @property
    def output_size(self) -> tuple[int, int]:
        rows, columns = self.offset.shape[-5:-3]
        return rows, columns

    @property
    def locations(self) -> Floats:
        flat = self.offset.reshape(*self.offset.shape[:-3], -1)
        along = geometry.locations(flat, self.kernel_size, self.geometry)
        return np.stack(along, -1).swapaxes(-3, -2)

    def undeformed(self) -> "Layer":
        """The same layer without offsets and masks."""
        plain = copy.copy(self)
        plain.offset, plain.mask = np.zeros_like(self.offset), np.ones_like(self.mask)
        return plain

    def centre(self, position: ArrayLike) -> Floats:
        """The centre of the kernel in the input, (y, x), for an output position (row, column) [..., 2]."""
        reach = np.subtract(self.kernel_size, 1) * self.geometry.kernel_dilation
        first = np.asarray(position) * self.geometry.strides - [low for low, _ in self.geometry.padding]
        return np.asarray(first + reach / 2)

    def is_inside(self, location: Floats) -> NDArray[np.bool_]:
        """Whether samples at locations [..., 2] are inside the input."""
        return np.asarray(geometry.reads((location[..., 0], location[..., 1]), self.image_size, self.geometry))

    def statistics(self) -> dict[str, float]:
        """`jax_dcn.offset_statistics` of this layer."""
        flat = self.offset.reshape(*self.offset.shape[:-3], -1)
        found = statistics_of(flat, self.image_size, self.kernel_size, self.geometry)
        return {name: number.item() for name, number in found.items()}


class LayerSamples(NamedTuple):
    """The samples that an output position depends on.

    locations: [n, 2] as (y, x) in pixels of the first layer's input; weights: [n], the product of the masks on the way;
    inside: [n], whether all layers on the way sample inside their inputs. If a layer samples outside, the locations in
    the layers below it are NaN.
    """

    locations: Floats
    weights: Floats
    inside: NDArray[np.bool_]


def sampling_locations(
    layers: Layer | Sequence[Layer], position: tuple[int, int], *, offset_group: int | None = None
) -> LayerSamples:
    """The sampling locations of one layer, or of several stacked layers, for one output position of one image.

    A layer often samples between the output positions of the layer below it. Sampling then continues from that location
    with the offsets and masks of the nearest output position. Three layers of 3x3 taps have 9³ locations, as in the
    figures of arXiv:1703.06211.

    Args:
      layers: layers for one image, the first layer first. The input of each is the output of the one before, perhaps
        after layers that keep the size.
      position: (row, column) of the last layer's output.
      offset_group: one group in each layer; None means all groups.

    Returns:
      `LayerSamples`, with "CIRCULAR" padding of the first layer wrapped into its input.

    Raises:
      ValueError: the layers do not fit together, have several images, or do not have the position or group.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer, sampling_locations
      >>> shifted = np.zeros((9, 9, 9, 2)) + [0.0, 0.5]  # every tap half a pixel to the right
      >>> layer = Layer(shifted.reshape(9, 9, 18), image_size=(9, 9), kernel_size=3)
      >>> sampling_locations(layer, (4, 4)).locations[0].tolist()
      [3.0, 3.5]
      >>> sampling_locations([layer] * 3, (4, 4)).locations.shape
      (729, 2)
    """
    stack = [layers] if isinstance(layers, Layer) else list(layers)
    _check_stack(stack, position)
    chosen = slice(None) if offset_group is None else slice(offset_group, offset_group + 1)
    points, weights, inside = np.array([position], np.float64), np.ones(1), np.ones(1, bool)
    for layer in reversed(stack):
        if offset_group is not None:
            _validation.index("offset_group", offset_group, layer.offset.shape[-3])
        points = np.where(inside[:, None], points, 0)
        nearest = np.clip(points.round().astype(int), 0, np.subtract(layer.output_size, 1))
        rows, columns = nearest.T
        reached = layer.locations[rows, columns, chosen].reshape(len(points), -1, 2)
        reached += ((points - nearest) * layer.geometry.strides)[:, None]
        points = np.where(inside[:, None, None], reached, np.nan).reshape(-1, 2)
        weights = (weights[:, None] * layer.mask[rows, columns, chosen].reshape(len(rows), -1)).ravel()
        inside = np.repeat(inside, reached.shape[1]) & layer.is_inside(points)
        if layer.geometry.circular:
            points = np.where(inside[:, None], (points + 0.5) % layer.image_size - 0.5, points)
    return LayerSamples(points, weights, inside)


def _check_stack(stack: list[Layer], position: tuple[int, int]) -> None:
    if not stack:
        raise ValueError("layers must be one or more, got none")
    for layer in stack:
        if layer.offset.ndim != 5:
            images = layer.offset.shape[:-5]
            raise ValueError(f"layers must be of one image each, layer[i], got one of images {images}")
    for below, above in itertools.pairwise(stack):
        if below.output_size != above.image_size:
            raise ValueError(
                f"layers must be in order: the output size {below.output_size} of one is not the next one's image_size "
                f"{above.image_size}"
            )
    size = stack[-1].output_size
    if np.shape(position) != (2,) or not all(0 <= cell < n for cell, n in zip(position, size, strict=True)):
        raise ValueError(f"position must be a (row, column) of the last layer's output of {size}, got {position}")


def effective_dilation(layer: Layer) -> Floats:
    """The mean distance between samples that are neighbours in the kernel: arXiv:1703.06211, section 4.2.

    It measures how far a filter is spread out. Without offsets it is the kernel's dilation.

    Args:
      layer: a layer for any number of images, with a kernel of at least two taps.

    Returns:
      [..., Ho, Wo, G], in pixels of the layer's input.

    Raises:
      ValueError: the kernel has a single tap.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer, effective_dilation
      >>> layer = Layer(np.zeros((8, 8, 18)), image_size=(8, 8), kernel_size=3, kernel_dilation=2)
      >>> effective_dilation(layer)[4, 4].tolist()
      [2.0]
    """
    if layer.kernel_size == (1, 1):
        raise ValueError("a kernel of a single tap has no neighbouring samples")
    locations = layer.locations
    locations = locations.reshape(*locations.shape[:-2], *layer.kernel_size, 2)
    lead = locations.shape[:-3]
    steps = [np.linalg.norm(np.diff(locations, axis=axis), axis=-1).reshape(*lead, -1) for axis in (-3, -2)]
    return np.asarray(np.concatenate(steps, -1).mean(-1))


def dilation_table(
    layers: Mapping[str, Layer],
    boxes: ArrayLike,
    images: ArrayLike | None = None,
    *,
    image_size: tuple[int, int],
    sizes: Mapping[str, float] = COCO_SIZES,
) -> dict[str, dict[str, Floats]]:
    """Effective dilation at the centres of objects, by layer and object size, for `plot_dilation`.

    Args:
      layers: layers under any names.
      boxes: [n, 4], objects as (x0, y0, x1, y1) in pixels of a picture.
      images: [n], for each object the index of its image in the layers; None if the layers are for one image.
      image_size: height and width of the picture, which the outputs of the layers cover evenly.
      sizes: the names of the size classes, each with its smallest square root of an area; by default `COCO_SIZES`.

    Returns:
      For each layer and size class, the smallest first, the dilations at its objects: the mean over the offset groups,
      in pixels of the layer's input. A class without objects has none.

    Raises:
      ValueError: ``images`` is None for layers of several images, or not None for layers of one; or a kernel has a
        single tap.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer, dilation_table
      >>> layer = Layer(np.zeros((1, 16, 16, 18)), image_size=(16, 16), kernel_size=3)
      >>> boxes = [[0, 0, 20, 20], [10, 10, 60, 50], [40, 30, 128, 128]]
      >>> table = dilation_table({"conv": layer}, boxes, [0, 0, 0], image_size=(128, 128))
      >>> {size: dilations.tolist() for size, dilations in table["conv"].items()}
      {'small': [1.0], 'medium': [1.0, 1.0], 'large': []}
    """
    for name, layer in layers.items():
        if layer.offset.ndim != (5 if images is None else 6):
            many = layer.offset.shape[:-5]
            raise ValueError(f"images must be given where layers are of several images, and only there; {name}: {many}")
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    sizes = dict(sorted(sizes.items(), key=operator.itemgetter(1)))
    area = np.prod(boxes[:, 2:] - boxes[:, :2], 1)
    size_class = np.digitize(np.sqrt(area), list(sizes.values())) - 1
    middle = (boxes[:, :2] + boxes[:, 2:])[:, ::-1] / 2 / image_size

    def of_objects(layer: Layer) -> Floats:
        cells = (middle * layer.output_size).astype(int).clip(0, np.subtract(layer.output_size, 1))
        index = () if images is None else (np.asarray(images),)
        return np.asarray(effective_dilation(layer)[(*index, *cells.T)].mean(-1))

    dilations = {name: of_objects(layer) for name, layer in layers.items()}
    return {
        name: {size: of_layer[size_class == i] for i, size in enumerate(sizes)} for name, of_layer in dilations.items()
    }


def bin_locations(
    rois: ArrayLike,
    offset: ArrayLike | None = None,
    *,
    output_size: Pair,
    spatial_scale: float = 1.0,
    sample_per_part: Pair = 4,
    trans_std: float = 0.1,
) -> Floats:
    """The sampling locations of `deform_psroi_pool`, before points outside are left out and others are clamped.

    Args:
      rois: [..., R, 5], as for the operator.
      offset: [..., R, part_size, part_size, 2·classes], or None.
      output_size, spatial_scale, sample_per_part, trans_std: as for the operator.

    Returns:
      [..., R, output_size, output_size, classes, sample_per_part, sample_per_part, 2] as (y, x) in pixels of the pooled
      x; NaN for regions that are not finite.

    Raises:
      TypeError, ValueError: the arguments do not fit together.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import bin_locations
      >>> rois = np.array([[0.0, 0.0, 0.0, 63.0, 31.0]])  # image index, x1, y1, x2, y2
      >>> bin_locations(rois, output_size=2, spatial_scale=1 / 16, sample_per_part=1)[0, :, :, 0, 0, 0].tolist()
      [[[-0.5, -0.5], [-0.5, 1.5]], [[0.5, -0.5], [0.5, 1.5]]]
    """
    rois = _validation.coordinates("rois", rois)
    if rois.ndim < 2 or rois.shape[-1] != 5:
        raise ValueError(f"rois must have shape [..., R, 5], got {rois.shape}")
    lead = rois.shape[:-1]
    output_size = _validation.pair("output_size", output_size)
    part_size = output_size
    if offset is not None:
        offset = _validation.array("offset", offset)
        _validation.rank("offset", offset, rois.ndim + 2, "[..., R, part, part, 2·classes]")
        if offset.shape[:-3] != lead or offset.shape[-1] % 2 or not offset.shape[-1]:
            raise ValueError(f"offset must have shape {(*lead, 'part', 'part', '2·classes')}, got {offset.shape}")
        part_size = (offset.shape[-3], offset.shape[-2])
        offset = offset.reshape(-1, *offset.shape[-3:])
    spec = Spec(
        output_size=output_size,
        spatial_scale=_validation.scale("spatial_scale", spatial_scale),
        group_size=(1, 1),
        part_size=part_size,
        points=_validation.pair("sample_per_part", sample_per_part),
        trans_std=_validation.number("trans_std", trans_std),
    )
    locations = _bin_locations(rois.reshape(-1, 5).astype(np.float32), offset, spec)
    return np.asarray(locations).reshape(*lead, *locations.shape[1:])


@partial(jax.jit, static_argnums=2)
def _bin_locations(rois: jax.Array, offset: jax.Array | None, spec: Spec) -> jax.Array:
    points = pool_geometry.points_of_bins(rois, pool_geometry.shift_of_bins(offset, rois, spec), spec, (None, None))
    y, x = (points_along.position for points_along in points)
    locations = jnp.stack(jnp.broadcast_arrays(y[..., :, None], x[..., None, :]), -1)
    finite = pool_geometry.is_finite(rois, spec)
    return jnp.where(finite[:, None, None, None, None, None, None], locations, jnp.nan)
