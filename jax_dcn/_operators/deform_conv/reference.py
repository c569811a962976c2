"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._operators.deform_conv import geometry
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.geometry import Size, groups_and_taps, positions


def reference(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> jax.Array:
    """The rows and columns of the output from `origin` on, as many as `offset` has."""
    sample: Any = partial(_sample, kernel_size=weight.shape[:2], spec=spec, origin=origin)
    for _ in x.shape[:-3]:
        sample = jax.vmap(sample, in_axes=(0, 0, None if mask is None else 0))
    y = _product(sample(x, offset, mask), weight.astype(offset.dtype), spec)
    return (y if bias is None else y + bias).astype(spec.dtype)


def _sample(
    x: jax.Array,
    offset: jax.Array,
    mask: jax.Array | None,
    *,
    kernel_size: Size,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> jax.Array:
    """The columns [Ho, Wo, K, C] of one image: x interpolated at every sampling location, times the mask."""
    height, width, channels = x.shape
    rows, columns = offset.shape[:2]
    groups, taps = groups_and_taps(offset, kernel_size)
    position_y, position_x = positions(offset, kernel_size, spec, origin)
    # If one coordinate is NaN, both are, wherever the other one lies.
    nan = jnp.isnan(position_y) | jnp.isnan(position_x)
    location_y = _locate(jnp.where(nan, jnp.nan, 0) + position_y, height, spec.circular)
    location_x = _locate(jnp.where(nan, jnp.nan, 0) + position_x, width, spec.circular)
    is_inside = location_y.is_inside & location_x.is_inside

    pixels = x.astype(offset.dtype).reshape(height * width, groups, channels // groups)
    sampled = jnp.zeros((rows, columns, taps, groups, channels // groups), offset.dtype)
    for i, j in np.ndindex(2, 2):
        row, column = location_y.pixel[i], location_x.pixel[j]
        is_read = is_inside & (row >= 0) & (column >= 0)
        index = jnp.where(is_read, row * width + column, height * width)
        corner = pixels.at[index, np.arange(groups)].get(mode="fill", fill_value=0)
        corner = jnp.where(nan[..., None], jnp.nan, corner)
        sampled += (location_y.weight(i) * location_x.weight(j))[..., None] * corner
    if mask is not None:
        sampled *= jnp.swapaxes(mask.reshape(rows, columns, groups, taps), 2, 3)[..., None]
    return sampled.reshape(rows, columns, taps, channels)


class _Axis(NamedTuple):
    """The two pixels next to a coordinate, -1 where out of bounds, and its fraction of the way from first to second."""

    pixel: tuple[jax.Array, jax.Array]
    fraction: jax.Array
    is_inside: jax.Array

    def weight(self, i: int) -> jax.Array:
        return self.fraction if i else 1 - self.fraction


def _locate(position: jax.Array, size: int, circular: bool) -> _Axis:
    nan = jnp.isnan(position)
    is_inside = geometry.is_inside(position, size, circular)
    # Outside, nothing depends on the position. NaN stays, because its derivatives are NaN too.
    position = jnp.where(is_inside | nan, position, 0)
    low = jnp.floor(position)
    fraction = position - low
    low = jnp.where(is_inside, low, -1)
    if circular:
        low = lax.rem(low, jnp.full_like(low, max(size, 1)))
        low = jnp.where(low < 0, low + size, low)
    low = low.astype(jnp.int32)
    high = jnp.where(low + 1 < size, low + 1, 0 if circular else -1)
    return _Axis((low, high), fraction, is_inside)


def _product(columns: jax.Array, weight: jax.Array, spec: Spec) -> jax.Array:
    """Columns [..., K, C] by weight [kh, kw, C/groups, Cout]: [..., Cout], in the sums' type."""
    *lead, taps, channels = columns.shape
    groups, features = spec.feature_group_count, weight.shape[-1]
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=_sum_dtype(columns.dtype))
    if groups == 1:
        return dot("...d,do->...o", columns.reshape(*lead, taps * channels), weight.reshape(taps * channels, features))
    y = dot(
        "...kgc,kcgo->...go",
        columns.reshape(*lead, taps, groups, channels // groups),
        weight.reshape(taps, channels // groups, groups, features // groups),
    )
    return y.reshape(*lead, features)


def _sum_dtype(dtype: DTypeLike) -> Any:
    return jnp.promote_types(dtype, jnp.float32)
