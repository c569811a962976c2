"""The forward and the cotangents in one custom call each, for CUDA: what is gathered is multiplied at once.

Which calls these take, and how they are cut, is decided here; what they do not take goes by `kernels`. The two differ
in what is not finite: an infinite mask is NaN in `forward` where a sample has a corner of weight 0, and an infinite
cotangent of the output may be NaN in those of offset and mask.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv.arguments import attributes_of, origin_of
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.chunks import balanced, flat, fold

VECTOR_BYTES = 16
MOST_PIXELS = 2**31 - 2**8
TILE_PIXELS = 128
TILE_FEATURES = (64, 128, 256)
RUN_BYTES = 128 * 2**20  # held at a time for the input's cotangent: what touches each pixel, and images' copies
FEW_BLOCKS = 128  # about the multiprocessors of a large GPU
MANY_BLOCKS = 512  # as many as keep them busy to the end
FEWEST_CHANNELS = 32  # of each group and offset group: a block takes 64 or 128, whether they are there or not
FEWEST_PIXELS = 512  # of a part of the weight's cotangent


def takes(x, offset, weight, spec, platform) -> bool:
    """Whether the fused forward takes a call:

    on CUDA, of 16-bit data, or of float32 where the precision asked for lets products be tf32; for a result of the
    data's type or float32; with channels of 16 bytes by 16 bytes in each group and offset group, and an even number of
    features in each group; and, as far as sizes are known, fewer than MOST_PIXELS in all images.
    """
    offset_groups, _ = groups_and_taps(offset, weight.shape[:2])
    vector = VECTOR_BYTES // x.dtype.itemsize
    return (
        platform == "cuda"
        and (x.dtype.itemsize == 2 or (x.dtype == jnp.float32 and _allows_tf32(spec.precision)))
        and spec.dtype in (x.dtype, jnp.float32)
        and x.shape[-1] // spec.feature_group_count % vector == 0
        and x.shape[-1] // offset_groups % vector == 0
        and weight.shape[-1] // spec.feature_group_count % 2 == 0
        and _pixels(x) < MOST_PIXELS
    )


def takes_cotangents(wanted, x, offset, weight, spec, platform) -> set[str]:
    """Those of `wanted` whose cotangents are fused: where the forward is, and

    the result is of the data's type; features come 16 bytes by 16 bytes in each group; of the channels of a group and
    those of an offset group one divides the other, and the fewer are at least FEWEST_CHANNELS; and the output's pixels
    are fewer than MOST_PIXELS too. The weight's, of 16-bit data; the input's, where what touches one image's pixels is
    held in RUN_BYTES; copies of one image's operands may come besides.
    """
    offset_groups, _ = groups_and_taps(offset, weight.shape[:2])
    channels = [x.shape[-1] // groups for groups in (spec.feature_group_count, offset_groups)]
    group_features = weight.shape[-1] // spec.feature_group_count
    if not (
        takes(x, offset, weight, spec, platform)
        and spec.dtype == x.dtype
        and group_features > 0
        and group_features % (VECTOR_BYTES // x.dtype.itemsize) == 0
        and min(channels) >= FEWEST_CHANNELS
        and max(channels) % min(channels) == 0
        and max(_pixels(x), _pixels(offset)) < MOST_PIXELS
    ):
        return set()
    taken = {"offset", "mask"}
    if x.dtype.itemsize == 2:
        taken.add("weight")
    known = all(isinstance(size, int) for size in (*x.shape[-3:], *offset.shape[-3:]))
    if known and transpose_bytes(x, offset) <= RUN_BYTES:
        taken.add("x")
    return taken.intersection(wanted)


def forward(x, offset, weight, bias, mask, *, spec, origin):
    batch, features = x.shape[:-3], weight.shape[-1]
    x, offset, mask = (flat(array, 3) for array in (x, offset, mask))
    origin = origin_of(0, *origin)
    shape = (*offset.shape[:3], features)
    call = _call("dcn_fused_forward", jax_internals.result_aval(jax.typeof(x), shape, spec.dtype), offset, weight, spec)
    y = call(
        *_operands(x, offset, origin, _by_feature(weight), _float32_bias(bias, features), mask),
        tile_features=tile_features(math.prod(shape[:3]), features, spec.feature_group_count),
    )
    return y.reshape(*batch, *y.shape[1:])


def cotangents(x, offset, weight, mask, ct, *, wanted, spec, origin):
    """A dictionary of those `wanted`, in the sums' type or that of the operand. All arrays have one batch dimension."""
    out, origin = {}, origin_of(0, *origin)
    if "x" in wanted:
        out["x"] = _input_cotangent(x, offset, weight, mask, ct, spec, origin)
    if positions := [name for name in ("offset", "mask") if name in wanted]:
        results = [
            jax_internals.result_aval(jax.typeof(x), array.shape, array.dtype)
            for name, array in (("offset", offset), ("mask", mask))
            if name in positions
        ]
        call = _call("dcn_fused_offset_cotangent", results, offset, weight, spec)
        operands = _operands(x, offset, origin, _by_channel(weight, spec), ct, mask)
        wants = {f"{name}_requested": name in positions for name in ("offset", "mask")}
        taps = block_taps(_pixels(offset), *groups_and_taps(offset, weight.shape[:2]))
        out |= zip(positions, call(*operands, block_taps=taps, **wants), strict=True)
    if "weight" in wanted:
        out["weight"] = _weight_cotangent(x, offset, weight, mask, ct, spec, origin)
    return out


def _input_cotangent(x, offset, weight, mask, ct, spec, origin):
    weight_by_channel = _by_channel(weight, spec)

    def images_at(image, count, d_x):
        offsets, masks, cts = (
            None if a is None else lax.dynamic_slice_in_dim(a, image, count) for a in (offset, mask, ct)
        )
        offset_groups, taps = groups_and_taps(offset, weight.shape[:2])
        bins, outputs = (count, offset_groups, taps), math.prod(offset.shape[1:3])
        shapes = [(*bins, math.prod(x.shape[1:3]) + 1), (*bins, 4 * outputs, 2), (*bins, 4 * outputs)]
        like = jax.typeof(x)
        results = [
            jax_internals.result_aval(like, (count, *x.shape[1:]), x.dtype),
            *(jax_internals.result_aval(like, shape, jnp.int32) for shape in shapes),
        ]
        call = _call("dcn_fused_input_cotangent", results, offset, weight, spec)
        part, *_ = call(*_operands(offsets, origin, weight_by_channel, cts, masks))
        return part if count == x.shape[0] else lax.dynamic_update_slice_in_dim(d_x, part, image, 0)

    most = RUN_BYTES // max(run_bytes(x, offset, mask, ct), 1)
    zeros, _ = jax_internals.vary_alike([jnp.zeros(x.shape, x.dtype), x])
    return fold(images_at, x.shape[0], balanced(x.shape[0], most), zeros)


def _weight_cotangent(x, offset, weight, mask, ct, spec, origin):
    taps, features = math.prod(weight.shape[:2]), weight.shape[-1]
    splits = weight_splits(_pixels(offset), x.shape[-1], taps, features // spec.feature_group_count)
    shape = (splits, taps, weight.shape[2], features)
    call = _call(
        "dcn_fused_weight_cotangent", jax_internals.result_aval(jax.typeof(x), shape, jnp.float32), offset, weight, spec
    )
    return call(*_operands(x, offset, origin, ct, mask)).sum(0).reshape(weight.shape)


def block_taps(pixels, offset_groups, taps) -> int:
    """How many taps a block takes of TILE_PIXELS pixels: fewer than all where that leaves a GPU idle."""
    tiles = -(-pixels // TILE_PIXELS) * offset_groups
    return -(-taps // max(min(MANY_BLOCKS // max(tiles, 1), taps), 1))


def weight_splits(pixels, channels, taps, group_features) -> int:
    """Into how many parts the pixels are cut, each with blocks of its own, of 128 channels by 128 features."""
    blocks = taps * -(-channels // 128) * -(-group_features // 128)
    return max(min(MANY_BLOCKS // blocks, pixels // FEWEST_PIXELS), 1)


def _call(name, results, offset, weight, spec):
    return partial(
        jax.ffi.ffi_call(name, results),
        **attributes_of(offset, weight, spec),
        feature_group_count=spec.feature_group_count,
    )


def _operands(*operands):
    """Those that are there, varying over the mesh alike."""
    return jax_internals.vary_alike([operand for operand in operands if operand is not None])


def tile_features(pixels, features, groups) -> int:
    """How many features of a group a block computes, of TILE_PIXELS pixels.

    A block takes its pixels' samples once for all its features: so many that one block has all of the group's, where a
    tile can; but fewer where that leaves too few blocks to keep the GPU busy.
    """
    features //= groups

    def blocks(tile):
        return -(-pixels // TILE_PIXELS) * groups * -(-features // tile)

    tile = next((tile for tile in TILE_FEATURES if tile >= features), TILE_FEATURES[-1])
    while tile > TILE_FEATURES[0] and isinstance(pixels, int) and blocks(tile) < FEW_BLOCKS:
        tile //= 2
    return tile


def _by_feature(weight):
    """[kh, kw, Cin/groups, Cout] as [Cout, K, Cin/groups], in numbers that the matrix units take as they are."""
    features = weight.shape[-1]
    return jnp.transpose(_as_tf32(weight), (3, 0, 1, 2)).reshape(features, -1, weight.shape[2])


def _by_channel(weight, spec):
    """[kh, kw, Cin/groups, Cout] as [Cin, K, Cout/groups], in numbers that the matrix units take as they are."""
    kh, kw, channels, features = weight.shape
    groups = spec.feature_group_count
    weight = _as_tf32(weight).reshape(kh * kw, channels, groups, features // groups)
    return jnp.transpose(weight, (2, 1, 0, 3)).reshape(groups * channels, kh * kw, features // groups)


def _as_tf32(array):
    """Rounded to tf32, if it is of float32."""
    return lax.reduce_precision(array, 8, 10) if array.dtype == jnp.float32 else array


def _float32_bias(bias, features):
    return jnp.zeros(features, jnp.float32) if bias is None else bias.astype(jnp.float32)


def transpose_bytes(x, offset):
    """Of what touches one image's pixels: each sample four of them, with a number, an output, and a weight."""
    samples = math.prod(offset.shape[-3:]) // 2
    lists = offset.shape[-1] // 2 * (math.prod(x.shape[-3:-1]) + 1)
    return 4 * (12 * samples + lists)


def run_bytes(*arrays):
    """Of a run, for each of its images: besides, copies of its x, offset, mask and cotangent."""
    x, offset, *_ = arrays
    copies = sum(math.prod(a.shape[1:]) * a.dtype.itemsize for a in arrays if a is not None)
    return transpose_bytes(x, offset) + copies


def _pixels(array):
    """As far as sizes are known."""
    return math.prod(size for size in array.shape[:-1] if isinstance(size, int))


def _allows_tf32(precision) -> bool:
    """Whether XLA's own products of float32 may be tf32."""
    if precision == lax.DotAlgorithmPreset.TF32_TF32_F32:
        return True
    both = precision if isinstance(precision, tuple) else (precision,)
    return all(one in (None, lax.Precision.DEFAULT) for one in both)
