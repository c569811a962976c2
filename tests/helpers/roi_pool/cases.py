"""The operands that tests share, and random problems of any shape."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import jax_dcn
from tests.helpers import case

from . import numpy_reference
from .numpy_reference import Align, Pooling


class Operands(NamedTuple):
    """The array arguments of the poolings, in their order."""

    x: Any
    rois: Any
    offset: Any = None


def pool(x, rois, offset=None, *, pooling, **options):
    """The function of the package that `pooling` describes."""
    if isinstance(pooling, Pooling):
        return jax_dcn.deform_psroi_pool(x, rois, offset, **dataclasses.asdict(pooling) | options)
    for name in ("output_size", "spatial_scale", "sampling_ratio"):
        options[name] = getattr(pooling, name)
    if pooling.position_sensitive:
        return jax_dcn.ps_roi_align(x, rois, **options)
    if offset is not None:
        return jax_dcn.deform_roi_pool(x, rois, offset, gamma=pooling.gamma, **options)
    return jax_dcn.roi_align(x, rois, aligned=pooling.aligned, mode=pooling.mode, **options)


class Case(case.Case):
    """A pooling, besides its operands. `on_grid`: the coordinates of all points are exact, and some are on pixels."""

    pooling: Pooling | Align

    def with_backend(self, backend=None, **options):
        return functools.partial(pool, pooling=self.pooling, backend=backend, **options)

    @property
    def result(self):
        return self.count, *self.pooling.output_size, self.features

    def expected(self, cotangent, operands):
        pooled, d_x, d_offset = numpy_reference.pool(*operands, cotangent, self.pooling)
        return pooled, Operands(d_x, np.zeros(operands.rois.shape), d_offset)


@dataclasses.dataclass(frozen=True)
class PSRoIPool(Case):
    """A deform_psroi_pool, with bins that are not square and differ from the parts in number."""

    pooling: Pooling = Pooling((5, 4), (3, 2), (2, 3), (3, 2), spatial_scale=0.5, trans_std=0.2)  # noqa: RUF009
    classes: int = 3
    features: int = 6
    count: int = 6
    on_grid: bool = False
    images: int = 2
    image: tuple[int, int] = (9, 8)

    def operands(self, seed=0, lead=()):
        random = np.random.default_rng(seed)
        channels = self.features * math.prod(self.pooling.group_size)
        x = random.normal(size=(*lead, self.images, *self.image, channels))
        corner = random.uniform(-4, 12, size=(*lead, self.count, 2))
        size = random.uniform(-1, 14, size=(*lead, self.count, 2))  # some inverted, some reach outside
        image = random.integers(-1, 3, size=(*lead, self.count, 1))  # some are padding
        parts = self.pooling.part_size or self.pooling.output_size
        offset = random.normal(size=(*lead, self.count, *parts, 2 * self.classes)) * 2
        rois = np.concatenate([image, corner, corner + size], -1)
        return Operands(x, rois, np.round(offset) if self.on_grid else offset)


@dataclasses.dataclass(frozen=True)
class RoIAlign(Case):
    """A pooling of the RoIAlign family; with offsets it is deformable."""

    pooling: Align = Align(spatial_scale=0.4)  # noqa: RUF009, it is frozen
    has_offset: bool = False
    image: tuple[int, int] = (7, 9)
    features: int = 4
    count: int = 6
    on_grid: bool = False
    images: int = 2

    def operands(self, seed=0, lead=()):
        random = np.random.default_rng(seed)
        bins = self.pooling.output_size
        channels = self.features * math.prod(self.pooling.group_size)
        x = random.normal(size=(*lead, self.images, *self.image, channels))
        reach = max(self.image) / self.pooling.spatial_scale
        rois = [regions(random, self.count, 2, reach) for _ in range(math.prod(lead))]
        rois = np.reshape(rois, (*lead, self.count, 5))
        offset = random.normal(size=(*lead, self.count, *bins, 2)) * 2 if self.has_offset else None
        if self.on_grid:
            rois = np.round(rois * 2) / 2
            offset = None if offset is None else np.round(offset)
        return Operands(x, rois, offset)


CASES = {
    "many_features_of_some_classes": PSRoIPool(Pooling((2, 3), (1, 2), (2, 3), (3, 2), 0.5, 0.2), 3, 60),
    "many_features_of_one_class": PSRoIPool(Pooling((2, 3), (1, 1), (2, 3), (3, 2), 0.5, 0.2), 1, 70),
    "ps_roi_pool_on_pixels": PSRoIPool(Pooling((2, 2), (1, 1), (2, 3), (2, 2), 0.5, 0.25), 1, 2, 60, on_grid=True),
    "max": RoIAlign(Align(sampling_ratio=(2, 3), spatial_scale=0.4, mode="max"), count=12),
    "unaligned_max": RoIAlign(Align(sampling_ratio=(0, 2), spatial_scale=0.4, aligned=False, mode="max"), count=12),
    "deform_roi_pool_on_pixels": RoIAlign(
        Align((2, 2), 0.5, (1, 2), gamma=0.25), has_offset=True, image=(4, 5), count=60, on_grid=True
    ),
}


def regions(random, count, images, reach):
    """Regions in and outside images of `reach` input pixels, tiny and inverted ones, with corners on and off pixels."""
    first = random.uniform(-0.4, 1.1, (count, 2)) * reach
    size = random.choice([0.02, 0.3, 1.5, -0.4], (count, 1)) * random.uniform(0, 1, (count, 2)) * reach
    box = np.concatenate([first, first + size], 1)
    box = np.where(np.arange(count)[:, None] % 3, box, np.round(box))
    return np.concatenate([random.integers(0, images, (count, 1)), box], 1)


@st.composite
def aligns(draw):
    """Problems of the RoIAlign family; with `on_grid`, all coordinates are exact in float32."""
    on_grid, kind = draw(st.booleans()), draw(st.sampled_from(["avg", "max", "deformable", "position_sensitive"]))

    def pair(numbers):
        return draw(st.tuples(numbers, numbers))

    numbers = st.sampled_from([1, 2, 4]) if on_grid else st.integers(1, 4)
    pooling = Align(
        pair(numbers),
        draw(st.sampled_from([0.25, 0.5, 1.0] if on_grid else [0.2718, 0.7071, 1.2357])),
        pair(numbers if on_grid else st.integers(0, 4)),
        aligned=kind != "avg" or draw(st.booleans()),
        mode="max" if kind == "max" else "avg",
        position_sensitive=kind == "position_sensitive",
        gamma=0.125,
    )
    image, features = pair(st.integers(1, 7)), draw(st.integers(1, 5))
    return RoIAlign(pooling, kind == "deformable", image, features, count=4, on_grid=on_grid)
