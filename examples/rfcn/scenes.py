"""Scenes of scanned handwritten digits on photographs, generated on the fly and without downloads.

Digits come from scikit-learn's 8x8 scans and backgrounds from its two photographs; the training and the validation
split share no digit and no part of a photograph. A scene depends only on (split, seed, index).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from examples.library.batches import ahead

Split = Literal["train", "validation"]

IMAGE_SIZE = 128
CLASSES = tuple("0123456789")
MIN_OBJECTS, MAX_OBJECTS = 4, 10
MIN_FRAGMENTS, MAX_FRAGMENTS = 2, 5
MIN_SCALE, MAX_SCALE = 1.5, 7.5
VISIBLE_INK = 0.15
BACKGROUND_BRIGHTNESS = 0.5
MAX_OVERLAP = 0.05

VALIDATION_DIGITS = 360
VALIDATION_COLUMNS = 192
GLYPH_MARGIN = 2


@dataclass(frozen=True)
class Material:
    """The material of the scenes of one split.

    glyphs: float32 [n, 8, 8], ink in [0, 1]; labels: int32 [n]; photos: uint8 [height, width, 3] each.
    """

    split: Split
    glyphs: np.ndarray
    labels: np.ndarray
    photos: tuple[np.ndarray, ...]


class Scenes(NamedTuple):
    """A batch of scenes, or a single scene without the leading dimension.

    images: uint8 [batch, size, size, 3]; boxes: float32 [batch, MAX_OBJECTS, 4] as (x0, y0, x1, y1) in pixels;
    labels: int32 [batch, MAX_OBJECTS], -1 for no object.
    """

    images: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


@cache
def load_material(split: Split) -> Material:
    """The digits and photographs of a split, from the files in scikit-learn."""
    digits = load_digits()
    first_validation = len(digits.images) - VALIDATION_DIGITS
    chosen = slice(first_validation) if split == "train" else slice(first_validation, None)
    photos = load_sample_images().images
    columns = slice(-VALIDATION_COLUMNS) if split == "train" else slice(-VALIDATION_COLUMNS, None)
    return Material(
        split,
        (digits.images[chosen] / 16).astype(np.float32),
        digits.target[chosen].astype(np.int32),
        tuple(np.ascontiguousarray(photo[:, columns]) for photo in photos),
    )


def make_scene(split: Split, seed: int, index: int, size: int = IMAGE_SIZE) -> Scenes:
    """Scene number `index` of a split, `size` x `size` pixels, the same in each call."""
    image, boxes, labels, _ = _compose(split, seed, index, size)
    return _padded(image, np.array(boxes, np.float32), np.array(labels, np.int32))


def make_masks(split: Split, seed: int, index: int, size: int = IMAGE_SIZE) -> np.ndarray:
    """The visible ink of the objects of a scene, in the order of its boxes: bool [objects, size, size]."""
    _, boxes, labels, inks = _compose(split, seed, index, size)
    masks = np.zeros((len(boxes), size, size), bool)
    for mask, (x0, y0, x1, y1), ink in zip(masks, boxes, inks, strict=True):
        mask[y0:y1, x0:x1] = ink > VISIBLE_INK
    return masks[np.array(labels) >= 0]


def _compose(split, seed, index, size):
    """The image of a scene, and the boxes, labels (-1 for fragments) and ink of what is painted on it."""
    material = load_material(split)
    rng = np.random.default_rng((split == "validation", seed, index))
    image = _background(rng, material, size)
    objects = rng.integers(MIN_OBJECTS, MAX_OBJECTS + 1)
    fragments = rng.integers(MIN_FRAGMENTS, MAX_FRAGMENTS + 1)
    picks = rng.integers(len(material.glyphs), size=objects + fragments)
    scales = np.exp(rng.uniform(math.log(MIN_SCALE), math.log(MAX_SCALE), size=objects + fragments))
    boxes, labels, inks = [], [], []
    for i in np.argsort(-scales):
        glyph = material.glyphs[picks[i]]
        is_object = i < objects
        ink = _render(rng, glyph if is_object else _fragment(rng, glyph), scales[i])
        box = _free_place(rng, ink.shape, boxes, size)
        if box is None:
            continue
        _paint(rng, image, ink, box)
        boxes.append(box)
        labels.append(material.labels[picks[i]] if is_object else -1)
        inks.append(ink)
    return image, boxes, labels, inks


def make_batch(split: Split, seed: int, indices: Sequence[int], size: int = IMAGE_SIZE) -> Scenes:
    """The scenes of the given indices, stacked."""
    return Scenes(
        *(np.stack(parts) for parts in zip(*(make_scene(split, seed, i, size) for i in indices), strict=True))
    )


def training_batches(seed: int, batch_size: int, steps: range) -> Iterator[Scenes]:
    """The training batches of the steps in `steps`; a thread prepares the next one while the caller uses the last."""

    def batch(step: int) -> Scenes:
        return make_batch("train", seed, range(step * batch_size, (step + 1) * batch_size))

    return ahead(batch, steps)


def _background(rng, material, size):
    photo = material.photos[rng.integers(len(material.photos))]
    top, left = (rng.integers(extent - size + 1) for extent in photo.shape[:2])
    crop = photo[top : top + size, left : left + size].astype(np.float32) * BACKGROUND_BRIGHTNESS
    return crop[:, ::-1].copy() if rng.random() < 0.5 else crop


def _fragment(rng, glyph):
    """A corner of a glyph: strokes like those of a digit, but no digit."""
    height, width = rng.integers(3, 5, size=2)
    fragment = np.zeros_like(glyph)
    rows = slice(height) if rng.random() < 0.5 else slice(-height, None)
    columns = slice(1, 1 + width) if rng.random() < 0.5 else slice(-1 - width, -1)
    fragment[rows, columns] = glyph[rows, columns]
    return fragment


def _render(rng, glyph, scale):
    """Ink [height, width] of a glyph, scaled, rotated and sheared, cropped to its visible part."""
    angle = math.radians(rng.uniform(-30, 30))
    stretch = math.exp(rng.uniform(-0.15, 0.15))
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    shear = np.array([[1, rng.uniform(-0.3, 0.3)], [0, 1]])
    to_glyph = np.linalg.inv(scale * rotation @ shear @ np.diag([stretch, 1 / stretch]))
    padded = Image.fromarray(np.pad(glyph, GLYPH_MARGIN))
    side = math.ceil(1.6 * scale * len(glyph))
    shift = padded.size[0] / 2 - to_glyph @ (side / 2, side / 2)
    affine = (*to_glyph[0], shift[0], *to_glyph[1], shift[1])
    ink = np.asarray(padded.transform((side, side), Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC))
    rows, columns = (np.flatnonzero((ink > VISIBLE_INK).any(axis)) for axis in (1, 0))
    if not rows.size:
        return ink[:0, :0]
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].clip(0, 1)


def _free_place(rng, shape, taken, size, tries=12):
    """A random box of `shape` that hardly overlaps the taken ones, or None if none is found."""
    height, width = shape
    if not height or height > size or width > size:
        return None
    x = rng.integers(size - width + 1, size=(tries, 1))
    y = rng.integers(size - height + 1, size=(tries, 1))
    x0, y0, x1, y1 = np.array(taken, np.int64).reshape(-1, 4).T
    overlap_width = np.maximum(np.minimum(x1, x + width) - np.maximum(x0, x), 0)
    overlap_height = np.maximum(np.minimum(y1, y + height) - np.maximum(y0, y), 0)
    smaller_area = np.minimum((x1 - x0) * (y1 - y0), width * height)
    free = np.all(overlap_width * overlap_height <= MAX_OVERLAP * smaller_area, axis=1)
    if not free.any():
        return None
    x, y = x[free.argmax(), 0], y[free.argmax(), 0]
    return x, y, x + width, y + height


def _paint(rng, image, ink, box):
    """Blend ink of a random light colour into the image."""
    x0, y0, x1, y1 = box
    behind = image[y0:y1, x0:x1]
    opacity = ink[..., None] * np.float32(rng.uniform(0.75, 1))
    behind += opacity * (rng.uniform(150, 255, 3).astype(np.float32) - behind)


def _padded(image, boxes, labels):
    objects = np.flatnonzero(labels >= 0)
    all_boxes = np.zeros((MAX_OBJECTS, 4), np.float32)
    all_labels = np.full(MAX_OBJECTS, -1, np.int32)
    all_boxes[: len(objects)] = boxes[objects]
    all_labels[: len(objects)] = labels[objects]
    return Scenes(image.round().clip(0, 255).astype(np.uint8), all_boxes, all_labels)
