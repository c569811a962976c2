"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.bilinear import interpolate
from jax_dcn._operators.deform_conv.arguments import Operands, Spec
from jax_dcn._operators.deform_conv.geometry import Size, groups_and_taps, locations
from jax_dcn._primitive.promotion import sum_dtype


def reference(operands: Operands[jax.Array], *, spec: Spec, origin: tuple[ArrayLike, ...]) -> jax.Array:
    """The shard of the output from `origin` on that `offset` has."""
    x, offset, weight, bias, mask = operands
    sample: Any = partial(_sample, kernel_size=weight.shape[:-2], spec=spec, origin=origin)
    for _ in x.shape[: -spec.dims - 1]:
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
    origin: tuple[ArrayLike, ...],
) -> jax.Array:
    """The columns [*output size, K, C] of one image: x interpolated at every sampling location, times the mask."""
    *image_size, channels = x.shape
    output_size = offset.shape[:-1]
    groups, taps = groups_and_taps(offset, kernel_size)
    pixels = x.astype(offset.dtype).reshape(math.prod(image_size), groups, channels // groups)
    sampled = interpolate(pixels, locations(offset, kernel_size, spec, origin), image_size, spec.circular)
    if mask is not None:
        sampled *= jnp.swapaxes(mask.reshape(*output_size, groups, taps), -1, -2)[..., None]
    return sampled.reshape(*output_size, taps, channels)


def _product(columns: jax.Array, weight: jax.Array, spec: Spec) -> jax.Array:
    """Columns [..., K, C] by weight [*kernel size, C/groups, Cout]: [..., Cout], in the sums' type."""
    *lead, taps, channels = columns.shape
    groups, features = spec.feature_group_count, weight.shape[-1]
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=sum_dtype(columns.dtype))
    if groups == 1:
        return dot("...d,do->...o", columns.reshape(*lead, taps * channels), weight.reshape(taps * channels, features))
    y = dot(
        "...kgc,kcgo->...go",
        columns.reshape(*lead, taps, groups, channels // groups),
        weight.reshape(taps, channels // groups, groups, features // groups),
    )
    return y.reshape(*lead, features)
