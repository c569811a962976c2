"""What the plan of a convolution depends on, and the sizes that follow from it."""

import math
from typing import NamedTuple

from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped


class Problem(NamedTuple):
    """The operands with one batch dimension, by shape and type, without bias. Sizes may be symbolic."""

    x: Shaped
    offset: Shaped
    weight: Shaped
    spec: Spec
    target: Target
    has_mask: bool

    @property
    def masks_in_xla(self) -> bool:
        """Whether XLA multiplies samples by the mask, as it does those of volumes, and not the kernels.

        The samples and the cotangents of the columns are then as wide as the mask.
        """
        return self.spec.dims == 3 and self.has_mask

    @property
    def groups_and_taps(self) -> tuple[int, int]:
        """The number of offset groups and the number of taps. An ordinary convolution counts as one offset group."""
        offset_groups, taps = groups_and_taps(self.offset, self.weight.shape[:-2])
        return max(offset_groups, 1), taps

    @property
    def group_features(self) -> int:
        features: int = self.weight.shape[-1]
        return features // self.spec.feature_group_count

    @property
    def row_pixels(self) -> int:
        """The pixels of an output row; of volumes, of a plane."""
        return row_pixels(self.offset)

    @property
    def column_row(self) -> int:
        """The number of elements of the columns of one output row."""
        return self.row_pixels * pixel_columns(self.x, self.weight)


def row_pixels(offset: Shaped) -> int:
    return math.prod(offset.shape[2:-1])


def pixel_columns(x: Shaped, weight: Shaped) -> int:
    """The number of elements of the columns of one pixel of the result."""
    return math.prod(weight.shape[:-2]) * x.shape[-1]
