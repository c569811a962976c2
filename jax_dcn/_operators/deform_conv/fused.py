"""The fused path, for CUDA: implicit GEMMs, which multiply the columns as they gather them and never store them.

`paths` decides which calls take it. It differs from the plain path in what is not finite: an infinite mask is NaN in
`forward` where a bilinear corner has weight 0, and an infinite cotangent of the result may be NaN in those of offset
and mask.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv import custom_calls
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.custom_calls import Sampling
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._primitive import extension
from jax_dcn._primitive.chunks import balanced
from jax_dcn._types import Shaped

# struct FusedLimits in lib/deform_conv_fused.h says what these are. Every compiled module has them.
_LIMITS = extension.modules["cpu"].fused_limits
VECTOR_BYTES: int = _LIMITS["vector_bytes"]
MAX_PIXELS: int = _LIMITS["max_pixels"]
TILE_PIXELS: int = _LIMITS["tile_pixels"]
TILE_FEATURES: tuple[int, ...] = _LIMITS["tile_features"]
WEIGHT_TILE: int = _LIMITS["weight_tile"]
MIN_SPLIT_PIXELS: int = _LIMITS["min_split_pixels"]
MAX_VECTORS: int = _LIMITS["max_vectors"]
SLICE_VECTORS: int = _LIMITS["slice_vectors"]
MARGIN_VECTORS: int = _LIMITS["margin_vectors"]

LIST_BYTES = 128 * 2**20  # the most that the scatter lists of one image may take, for the input's cotangent
CHUNK_LIST_BYTES = 64 * 2**20  # the most that those of several images may take, which are computed at a time
SUM_BYTES = 4  # of an element of the partial sums of the weight's cotangent
MIN_BLOCKS = 128  # about the number of SMs of a large GPU
# Enough thread blocks to keep all SMs busy until the last ones end: two waves on an H100, which has two resident blocks
# on each of its 132 SMs.
MANY_BLOCKS = 528


def forward(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> jax.Array:
    features = weight.shape[-1]
    return custom_calls.fused_forward(
        x,
        Sampling(offset, mask, (0, *origin), weight.shape[:2], spec),
        _by_feature(weight),
        jnp.zeros(features, jnp.float32) if bias is None else bias.astype(jnp.float32),
        feature_group_count=spec.feature_group_count,
        tile_features=tile_features(math.prod(offset.shape[:3]), features, spec.feature_group_count),
        dtype=spec.dtype,
    )


def cotangents(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    d_y: jax.Array,
    *,
    requested: Sequence[str],
    num_splits: int,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> dict[str, jax.Array]:
    """Those requested, in the type of sums or of the operand. All arrays have one batch dimension.

    That of the weight is a sum of `num_splits` partial sums, each over a part of the pixels.
    """
    sampling = Sampling(offset, mask, (0, *origin), weight.shape[:2], spec)
    out = {}
    if "x" in requested:
        out["x"] = custom_calls.fused_input_cotangent(
            sampling,
            _by_channel(weight, spec),
            d_y,
            feature_group_count=spec.feature_group_count,
            image_size=x.shape[1:3],
            images_at_once=_images_at_once(x, offset, weight),
        )
    if positions := [name for name in ("offset", "mask") if name in requested]:
        out |= custom_calls.fused_offset_cotangent(
            x,
            sampling,
            _by_channel(weight, spec),
            d_y,
            feature_group_count=spec.feature_group_count,
            block_taps=block_taps(pixels(offset), *groups_and_taps(offset, weight.shape[:2])),
            requested=positions,
        )
    if "weight" in requested:
        partial_sums = custom_calls.fused_weight_cotangent(
            x, sampling, d_y, feature_group_count=spec.feature_group_count, num_splits=num_splits
        )
        out["weight"] = partial_sums.sum(0).reshape(weight.shape)
    return out


def workspace_bytes(computation: str, x: Shaped, offset: Shaped, weight: Shaped, *, num_splits: int) -> int:
    """The workspace of the forward, or of the cotangent of the operand of that name."""
    weight_elements = math.prod(weight.shape)
    if computation == "weight":
        return num_splits * weight_elements * SUM_BYTES
    weight_copy = weight_elements * weight.dtype.itemsize
    if computation != "x":
        return weight_copy
    return weight_copy + _images_at_once(x, offset, weight) * list_bytes(x, offset)


def _images_at_once(x: Shaped, offset: Shaped, weight: Shaped) -> int:
    """How many images the input's cotangent is computed for at a time."""
    images = x.shape[0]
    limit = min(CHUNK_LIST_BYTES // max(list_bytes(x, offset), 1), MAX_VECTORS // max(image_vectors(offset, weight), 1))
    return min(images, balanced(images, limit)) if isinstance(images, int) else max(limit, 1)


def block_taps(pixels: int, offset_groups: int, taps: int) -> int:
    """How many taps a thread block takes of TILE_PIXELS pixels: fewer than all where SMs would be idle otherwise."""
    tiles = -(-pixels // TILE_PIXELS) * offset_groups
    return -(-taps // max(min(MANY_BLOCKS // max(tiles, 1), taps), 1))


def tile_features(pixels: int, features: int, groups: int) -> int:
    """How many features of a group a thread block computes, of TILE_PIXELS pixels.

    A block samples its pixels once for all its features. So one block takes all features of the group if a tile can;
    but fewer where there would be too few blocks to keep the GPU busy.
    """
    features //= groups

    def blocks(tile: int) -> int:
        return -(-pixels // TILE_PIXELS) * groups * -(-features // tile)

    tile = next((tile for tile in TILE_FEATURES if tile >= features), TILE_FEATURES[-1])
    while tile > TILE_FEATURES[0] and isinstance(pixels, int) and blocks(tile) < MIN_BLOCKS:
        tile //= 2
    return tile


def _by_feature(weight: jax.Array) -> jax.Array:
    """[kh, kw, Cin/groups, Cout] as [Cout, K, Cin/groups], float32 rounded to tf32."""
    kh, kw, channels, features = weight.shape
    return jnp.transpose(_as_tf32(weight), (3, 0, 1, 2)).reshape(features, kh * kw, channels)


def _by_channel(weight: jax.Array, spec: Spec) -> jax.Array:
    """[kh, kw, Cin/groups, Cout] as [Cin, K, Cout/groups], float32 rounded to tf32."""
    kh, kw, channels, features = weight.shape
    groups = spec.feature_group_count
    weight = _as_tf32(weight).reshape(kh * kw, channels, groups, features // groups)
    return jnp.transpose(weight, (2, 1, 0, 3)).reshape(groups * channels, kh * kw, features // groups)


def _as_tf32(array: jax.Array) -> jax.Array:
    return lax.reduce_precision(array, 8, 10) if array.dtype == jnp.float32 else array


def list_bytes(x: Shaped, offset: Shaped) -> int:
    """Bytes of one image's scatter lists: 4 entries per sample, 8 bytes each plus 4 to sort."""
    shapes = custom_calls.scatter_list_shapes(
        (offset.shape[-1] // 2,), math.prod(offset.shape[-3:-1]), math.prod(x.shape[-3:-1])
    )
    return 4 * sum(map(math.prod, shapes))


def image_vectors(offset: Shaped, weight: Shaped) -> int:
    """Vectors of one image of the result."""
    return math.prod(offset.shape[-3:-1]) * weight.shape[-1] * weight.dtype.itemsize // VECTOR_BYTES


def pixels(array: Shaped) -> int:
    """Those of all images, as far as sizes are known."""
    return math.prod(size for size in array.shape[:-1] if isinstance(size, int))
