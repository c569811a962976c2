"""Converts offsets and masks of DCNv3 and DCNv4 to the layout of a deformable convolution."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._primitive.promotion import by_standard_rules
from jax_dcn._types import Pair


@by_standard_rules
def as_deform_conv(
    offset: ArrayLike,
    mask: ArrayLike,
    *,
    kernel_size: Pair,
    kernel_dilation: Pair = 1,
    offset_scale: float = 1.0,
    remove_center: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Converts the offset and the mask of `dcnv3` to those with which `deform_conv2d` samples at the same positions.

    `dcnv3` has its offsets as (dx, dy) and its taps column by column, `deform_conv2d` as (dy, dx) and row by row.
    `offset_statistics` and `viz.Layer` take the latter, so convert what the layers `DCNv3` and `DCNv4` return.

    Args:
      offset: [..., Ho, Wo, G·K·2], as `dcnv3` takes it and the layers return it with ``return_offsets=True``.
      mask: [..., Ho, Wo, G·K].
      kernel_size, kernel_dilation, offset_scale, remove_center: as for `dcnv3` or the layer.

    Returns:
      ``(offset, mask)`` of a convolution with the same kernel size, strides, padding and dilation, without a scale and
      with its tap in the centre. An ``offset_scale`` other than 1 goes into the offset, because it moves the
      taps of the window too. A removed tap gets an offset and a mask of zero.

    Raises:
      TypeError, ValueError: the arguments do not fit together.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn import as_deform_conv, offset_statistics
      >>> from jax_dcn.linen import DCNv3
      >>> layer = DCNv3(groups=2, return_offsets=True)
      >>> (y, *sampled), variables = layer.init_with_output(jax.random.key(0), jnp.ones((16, 16, 8)))
      >>> offset, mask = as_deform_conv(*sampled, kernel_size=3)
      >>> statistics = offset_statistics(offset, (16, 16), kernel_size=3)
    """
    offset, mask = _validation.array("offset", offset), _validation.array("mask", mask)
    rows, columns = _validation.pair("kernel_size", kernel_size)
    dilation = _validation.pair("kernel_dilation", kernel_dilation)
    scale = _validation.number("offset_scale", offset_scale)
    _validation.choice("remove_center", remove_center, (True, False))
    _validation.rank("mask", mask, 3, "[..., Ho, Wo, G·K]", least=True)
    taps = rows * columns - remove_center
    *lead, channels = mask.shape
    if taps < 1 or channels % taps or offset.shape != (*lead, 2 * channels):
        raise ValueError(
            f"offset and mask must have shapes [..., Ho, Wo, G·K·2] and [..., Ho, Wo, G·K] with K={taps}, got "
            f"{offset.shape} and {mask.shape}"
        )
    groups = channels // taps
    vectors = offset.reshape(*lead, groups, taps, 2)[..., ::-1]
    weights = mask.reshape(*lead, groups, taps)
    center = columns // 2 * rows + rows // 2
    if remove_center:
        vectors, weights = jnp.insert(vectors, center, 0, -2), jnp.insert(weights, center, 0, -1)
    vectors = scale * vectors + (scale - 1) * jnp.asarray(_distances((rows, columns), dilation), vectors.dtype)
    if remove_center:
        vectors = vectors.at[..., center, :].set(0)
    by_column = vectors.reshape(*lead, groups, columns, rows, 2), weights.reshape(*lead, groups, columns, rows)
    count = groups * rows * columns
    return by_column[0].swapaxes(-3, -2).reshape(*lead, 2 * count), by_column[1].swapaxes(-2, -1).reshape(*lead, count)


def _distances(kernel_size: tuple[int, int], dilation: tuple[int, int]) -> np.ndarray:
    """The distances (y, x) of the taps, column by column, from the centre about which the window is scaled."""
    y, x = (np.arange(k) * d - d * (k - 1) // 2 for k, d in zip(kernel_size, dilation, strict=True))
    return np.stack(np.meshgrid(y, x), -1).reshape(-1, 2)
