"""Estimates the time of the fused and of the im2col path of a convolution on a GPU.

An estimate is the time of the kernels if nothing waits, so it is a lower bound, and only the ratio of two estimates is
used. Nothing was measured on a GPU: docs/performance.md says how clocks are counted, and what is assumed.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from jax_dcn._operators.deform_conv import cuda_tiles
from jax_dcn._operators.deform_conv.gpu_numbers import COLUMN_CLOCKS, GPUS, K_STEP_CLOCKS, SORT_CLOCKS, TAP_CLOCKS, Gpu

DEFAULT_COMPUTE_CAPABILITY = 90
# The im2col path runs only if its estimate is shorter by this factor: the estimates may be wrong by about as much, and
# the fused path needs less workspace.
MARGIN = 1.2
LAUNCH_SECONDS = 3e-6  # per kernel, assumed; launches overlap with the kernels that were launched before
IM2COL_LAUNCHES = {"forward": 7, "x": 14, "offset": 9, "mask": 9, "weight": 10}  # per chunk, counted in XLA's programs
PRODUCT_EFFICIENCY = 0.7  # of the published rate, assumed for XLA's products
PRODUCT_TILE, MIN_SPLIT_K = 128, 1024  # of a thread block of XLA's products; they split K where SMs would be idle
LARGE_CHUNK_BYTES = 64 * 2**20  # of columns, which exceed the L2 cache
MAX_SM_BLOCKS = 4  # of the weight's cotangent per SM; each has at most 64 KiB of partial sums


class ConvolutionSizes(NamedTuple):
    """The sizes of a convolution that its time depends on."""

    images: int
    image_pixels: int  # of x
    pixels: int  # of the result, all images together
    taps: int
    channels: int
    features: int
    groups: int
    offset_groups: int
    itemsize: int  # of x


def gpu_of(compute_capability: int | None, sms: int | None) -> Gpu:
    """The newest known GPU that is not newer than the compute capability, with `sms` SMs if that is not None."""
    wanted = DEFAULT_COMPUTE_CAPABILITY if compute_capability is None else compute_capability
    gpu = GPUS[max((known for known in GPUS if known <= wanted), default=min(GPUS))]
    return gpu if sms is None else gpu._replace(sms=sms)


def fused_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """The time of the forward, or of the cotangent of the operand of that name, on the fused path."""
    if computation == "weight":
        return _weight_seconds(weight_splits(sizes, gpu), sizes, gpu)
    kernel, launches, tap_clocks, sort_seconds = computation, 2, 0.0, 0.0
    features, segments = sizes.features // sizes.groups, max(sizes.groups, sizes.offset_groups)
    segment = sizes.channels // segments  # the channels that share a feature group and an offset group
    tile, is_narrow = 64 if segment <= 64 else 128, segment < 64
    pixel_tiles = math.ceil(sizes.pixels / cuda_tiles.TILE_PIXELS)
    if computation == "forward":
        # SMs with room for only one block of the weight's cotangent have none for tiles of 256 columns.
        tile = min(cuda_tiles.tile_features(sizes.pixels, sizes.features, sizes.groups), 128 * gpu.weight_blocks)
        blocks = pixel_tiles * sizes.groups * math.ceil(features / tile)
        k_steps = math.ceil(segments / sizes.groups) * _slices(sizes.taps * segment, sizes)
    elif computation == "x":
        image_tiles = math.ceil(sizes.images * sizes.image_pixels / cuda_tiles.TILE_PIXELS)
        blocks, k_steps = image_tiles * segments * math.ceil(segment / tile), _slices(sizes.taps * features, sizes)
        launches, sort_seconds = 6, _sort_clocks(sizes, gpu) / (gpu.sms * gpu.clock)
    else:
        kernel, tap_clocks = "offset", TAP_CLOCKS / _slices(features, sizes)
        # Samples of narrow offset groups share a tile. Those of narrow feature groups do not.
        is_narrow = segments == sizes.offset_groups and segment <= 4 * cuda_tiles.VECTOR_BYTES // sizes.itemsize
        block_taps = 1 if is_narrow else cuda_tiles.block_taps(sizes.pixels, sizes.offset_groups, sizes.taps)
        sample_tiles = sizes.taps * sizes.channels / 64 if is_narrow else sizes.taps / block_taps
        blocks = pixel_tiles * (1 if is_narrow else sizes.offset_groups) * math.ceil(sample_tiles)
        channel_tiles = segments // sizes.offset_groups * math.ceil(segment / tile)
        k_steps = block_taps * channel_tiles * _slices(features, sizes)
    seconds = _gemm_seconds(kernel, tile, is_narrow, blocks, k_steps, gpu, tap_clocks) + sort_seconds
    return max(seconds, launches * LAUNCH_SECONDS)


def weight_splits(sizes: ConvolutionSizes, gpu: Gpu) -> int:
    """The number of partial sums of the weight's cotangent. Each is over a part of the pixels, by blocks of its own.

    It is the fastest of the numbers whose blocks nearly fill one wave of resident blocks, two waves, and so on.
    """
    _, tiles, slices = _weight_tiles(sizes)

    def splits(waves: int) -> int:
        most = min(waves * gpu.sms * gpu.weight_blocks // tiles, sizes.pixels // cuda_tiles.MIN_SPLIT_PIXELS)
        return math.ceil(slices / math.ceil(slices / max(most, 1)))  # the fewest with as many K slices

    waves = range(1, MAX_SM_BLOCKS // gpu.weight_blocks + 1)
    return min(map(splits, waves), key=lambda splits: _weight_seconds(splits, sizes, gpu))


def _weight_seconds(splits: int, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    tile, tiles, slices = _weight_tiles(sizes)
    is_narrow = sizes.channels // max(sizes.groups, sizes.offset_groups) < 64
    k_steps = math.ceil(slices / splits) + 1  # 0.4 to 0.9 are counted outside of the main loop
    sum_bytes = splits * sizes.taps * sizes.channels // sizes.groups * sizes.features * 4
    kernel = _gemm_seconds("weight", tile, is_narrow, tiles * splits, k_steps, gpu)
    return kernel + 2 * sum_bytes / gpu.memory  # partial sums are written and read


def _weight_tiles(sizes: ConvolutionSizes) -> tuple[int, int, int]:
    """Columns of a block tile of the weight's cotangent, the number of tiles, and K slices over all pixels."""
    features, channels = sizes.features // sizes.groups, sizes.channels // sizes.groups
    tile = 64 if features <= 64 else 128
    # A tile has at most 8 or 16 samples of each pixel.
    rows = min(cuda_tiles.WEIGHT_TILE, 1024 // tile * min(channels, sizes.channels // sizes.offset_groups))
    tiles = sizes.groups * math.ceil(sizes.taps * channels / rows) * math.ceil(features / tile)
    return tile, tiles, max(_slices(sizes.pixels, sizes), 1)


def _gemm_seconds(
    kernel: str, tile: int, is_narrow: bool, blocks: int, k_steps: int, gpu: Gpu, tap_clocks: float = 0.0
) -> float:
    """The time of the SM that has the most thread blocks, bound by instructions or by tensor cores."""
    known = K_STEP_CLOCKS[kernel]
    counted = (known[0] if is_narrow else known.get(tile, known[128])) + tap_clocks
    clocks = max(counted * gpu.fused_clocks, cuda_tiles.TILE_PIXELS * tile * 64 / gpu.multiply_adds)
    return math.ceil(blocks / gpu.sms) * k_steps * clocks / gpu.clock


def _slices(length: int, sizes: ConvolutionSizes) -> int:
    """K slices, of 128 bytes."""
    return math.ceil(length * sizes.itemsize / 128)


def _sort_clocks(sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """Clocks of sorting an entry for each sample."""
    return SORT_CLOCKS * gpu.im2col_clocks * sizes.pixels * sizes.taps * sizes.offset_groups


def im2col_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """The time of the forward, or of the cotangent of the operand of that name, on the im2col path."""
    return _im2col_seconds(computation, sizes, gpu, column_bytes([computation], sizes, gpu))


def column_bytes(computations: Collection[str], sizes: ConvolutionSizes, gpu: Gpu) -> int:
    """How many bytes of columns a chunk of the im2col path should have: as many as stay in the L2 cache, or more.

    Fewer bytes in each chunk make more launches.
    """

    def seconds(size: int) -> float:  # to the nanosecond, so that rounding errors do not decide
        return round(sum(_im2col_seconds(name, sizes, gpu, size) for name in computations), 9)

    return min(gpu.l2_bytes // 2, LARGE_CHUNK_BYTES, key=seconds)


def _im2col_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu, chunk_bytes: int) -> float:
    """The time of our kernels, then of XLA's products, each bound by itself or by the columns' memory; or of launches."""
    total = sizes.pixels * sizes.taps * sizes.channels * sizes.itemsize
    chunks = math.ceil(total / chunk_bytes)
    known, channels = COLUMN_CLOCKS[computation], sizes.channels // sizes.offset_groups
    clocks = known[min(known, key=lambda key: abs(math.log(key / channels)))] * gpu.im2col_clocks * total / 128
    if computation == "x":
        clocks += _sort_clocks(sizes, gpu)
    is_in_l2 = min(chunk_bytes, total) <= gpu.l2_bytes // 2
    rate = gpu.l2_bytes_per_clock * gpu.clock if is_in_l2 else gpu.memory
    memory = total * (1 if sizes.groups == 1 else 2) / rate  # a grouped product has a rearranged copy
    products = chunks * _product_seconds(computation, sizes, gpu, math.ceil(sizes.pixels / chunks))
    device = max(clocks / (gpu.sms * gpu.clock), memory) + max(products, memory)
    return max(device, chunks * IM2COL_LAUNCHES[computation] * LAUNCH_SECONDS)


def _product_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu, pixels: int) -> float:
    features, columns = sizes.features // sizes.groups, sizes.taps * sizes.channels // sizes.groups
    m, n, k = pixels, columns, features
    if computation == "forward":
        n, k = features, columns
    elif computation == "weight":
        m, k = features, pixels
    tiles = math.ceil(m / PRODUCT_TILE) * math.ceil(n / PRODUCT_TILE) * sizes.groups
    splits = max(min(gpu.sms // tiles, k // MIN_SPLIT_K), 1)
    rate = gpu.product_multiply_adds * gpu.clock * PRODUCT_EFFICIENCY * 2 / sizes.itemsize
    return math.ceil(tiles * splits / gpu.sms) * PRODUCT_TILE**2 * math.ceil(k / splits) / rate
