"""Estimates the time of the fused and of the im2col path of a convolution on a GPU.

An estimate includes waiting for latencies. Nothing was measured on a GPU: docs/performance.md says how clocks are
counted and estimated, and what is assumed.
"""

import math
from collections.abc import Collection
from itertools import combinations
from typing import NamedTuple

from jax_dcn._operators.deform_conv import cuda_tiles
from jax_dcn._operators.deform_conv.cuda_tiles import SUM_BYTES
from jax_dcn._operators.deform_conv.im2col_chunks import (
    ChunkSizes,
    column_arrays,
    gradient_sizes,
    largest_chunk,
)

# Estimates of the im2col path are multiplied by this in comparisons, because the fused path needs less workspace.
MARGIN = 1.1
LAUNCH_SECONDS = 3e-6  # per kernel, assumed; launches overlap with the kernels that were launched before
# Per chunk of the im2col path, counted in XLA's programs: the loop with a slice or an update; the kernels that a
# computation adds; and the product that the gradients of x, offset and mask share.
CHUNK_LAUNCHES, IM2COL_LAUNCHES = 3, {"forward": 2, "x": 1, "offset": 1, "weight": 3, "columns": 1}
SORT_LAUNCHES = 2  # of the gradient of x, for all chunks whose samples are sorted at a time, here for all
PRODUCT_EFFICIENCY = 0.7  # of the published rate, assumed for XLA's products
PRODUCT_TILE, MIN_SPLIT_K = 128, 1024  # of a thread block of XLA's products; they split K where SMs would be idle
LARGE_CHUNKS = tuple(mib * 2**20 for mib in (64, 80, 96, 112))  # bytes of columns, which exceed the L2 cache
# Bytes per second of boards whose memory is another than that of the GPU below: NVIDIA's datasheets.
OTHER_MEMORY = {"H100 PCIe": 2e12, "H100 NVL": 3.9e12, "H100": 3.35e12}
MAX_SM_BLOCKS = 4  # per SM, of the gradient of the weight: each has up to 64 KiB of partial sums


class Gpu(NamedTuple):
    architecture: str
    sms: int
    clock: float  # Hz
    product_multiply_adds: float  # of XLA's products per clock and SM, in 16 bits
    memory: float  # bytes per second
    l2_bytes: int  # its size
    l2_bytes_per_clock: int
    resident_blocks: int  # of the fused kernels per SM: those of the gradient of the weight, as most have
    fused_clocks: float  # of the fused kernels, relative to the first GPU with as many such blocks
    im2col_clocks: float  # of the other kernels, relative to sm_80


# Clocks of an SM with waiting. Fused kernels: per K step of a thread block, if it is alone and if all are resident, by
# resident blocks per SM, and columns of the block tile, 0 for narrow channel segments. A tap of the gradients of offset
# and mask needs those of "tap" too. Sort: per entry. im2col: per 128 bytes of columns, by channels of an offset group.
# benchmarks/counting/devices.py has the sources of the rates.
# Written by `python -m benchmarks.machine_code`:
GPUS = {
    80: Gpu("sm_80", 108, 1.41e09, 1_024, 2.039e12, 40_000_000, 5_120, 2, 1, 1),  # A100
    86: Gpu("sm_86", 82, 1.695e09, 256, 9.36e11, 6_000_000, 2_132, 1, 1, 1.14),  # RTX 3090
    89: Gpu("sm_89", 128, 2.52e09, 256, 1.008e12, 72_000_000, 3_328, 1, 1, 1.14),  # RTX 4090
    90: Gpu("sm_90", 132, 1.755e09, 2_048, 4.8e12, 50_000_000, 3_500, 2, 0.98, 1.13),  # H200
    100: Gpu("sm_100", 148, 1.85e09, 4_096, 8e12, 126_000_000, 3_848, 2, 1.01, 1.15),  # B200
    120: Gpu("sm_120", 170, 2.407e09, 256, 1.792e12, 96_000_000, 4_420, 1, 1.08, 1.16),  # RTX 5090
}
K_STEP_CLOCKS = {
    1: {
        "forward": {0: (5261, 5261), 64: (2847, 2847), 128: (4137, 4137)},
        "offset": {0: (7522, 7522), 64: (2246, 2246), 128: (3585, 3585)},
        "tap": {128: (2456, 2456)},
        "weight": {0: (6599, 6599), 64: (2897, 2897), 128: (4152, 4152)},
        "x": {0: (8648, 8648), 64: (6693, 6693), 128: (7410, 7410)},
    },
    2: {
        "forward": {0: (6800, 4224), 64: (3446, 1959), 128: (4640, 2566), 256: (3170, 3170)},
        "offset": {0: (2790, 2317), 64: (590, 590), 128: (1817, 1067)},
        "tap": {128: (6601, 3544)},
        "weight": {0: (6135, 5174), 64: (2427, 1654), 128: (4748, 2636)},
        "x": {0: (7896, 4267), 64: (5955, 3234), 128: (10049, 5187)},
    },
}
SORT_CLOCKS = 4.97
COLUMN_CLOCKS = {
    "forward": {8: 43.03, 128: 9.65, 256: 8.37},
    "offset": {8: 55.1, 128: 14.87, 256: 12.62},
    "x": {8: 57.4, 128: 15.27, 256: 13.44},
}
# End of what is written.


class ConvolutionSizes(NamedTuple):
    """The sizes of a convolution that its time depends on."""

    images: int
    image_size: tuple[int, int]  # height and width of x
    pixels: int  # of the result, all images together
    rows: int  # of the result
    taps: int
    channels: int
    features: int
    groups: int
    offset_groups: int
    itemsize: int  # of x

    @property
    def image_pixels(self) -> int:
        return math.prod(self.image_size)


def gpu_of(compute_capability: int | None, sms: int | None, kind: str | None = None) -> Gpu:
    """The newest known GPU that is not newer than the compute capability, by default 90, with its own number of SMs."""
    known = [gpu for capability, gpu in GPUS.items() if capability <= (compute_capability or 90)]
    gpu = known[-1] if known else GPUS[80]
    other = next((memory for board, memory in OTHER_MEMORY.items() if board in (kind or "")), None)
    gpu = gpu if other is None else gpu._replace(memory=other)
    return gpu if sms is None else gpu._replace(sms=sms)


def fused_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """The time of the forward, or of the gradient with respect to the operand of that name, on the fused path."""
    is_weight, launches = computation == "weight", 6 if computation == "x" else 2
    seconds = _weight_gradient(sizes, gpu)[0] if is_weight else _fused_kernel_seconds(computation, sizes, gpu)
    return max(seconds, launches * LAUNCH_SECONDS, _operand_seconds(computation, sizes, gpu))


def _fused_kernel_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """The K steps of the SM that has the most thread blocks, of all kernels but that of the gradient of the weight."""
    kernel, taps, sort_clocks = computation, 0.0, 0.0
    features, segments = sizes.features // sizes.groups, max(sizes.groups, sizes.offset_groups)
    segment = sizes.channels // segments  # channels that share a feature group and an offset group
    tile, is_narrow = 64 if segment <= 64 else 128, segment < 64
    pixel_tiles = math.ceil(sizes.pixels / cuda_tiles.TILE_PIXELS)
    if computation == "forward":
        tile = cuda_tiles.tile_features(sizes.pixels, sizes.features, sizes.groups, gpu.resident_blocks)
        blocks = pixel_tiles * sizes.groups * math.ceil(features / tile)
        k_steps = math.ceil(segments / sizes.groups) * _slices(sizes.taps * segment, sizes)
    elif computation == "x":
        image_tiles = math.ceil(sizes.images * sizes.image_pixels / cuda_tiles.TILE_PIXELS)
        blocks, k_steps = image_tiles * segments * math.ceil(segment / tile), _slices(sizes.taps * features, sizes)
        entries = 4 * sizes.pixels * sizes.taps * sizes.offset_groups
        sort_clocks = entries * SORT_CLOCKS * gpu.im2col_clocks / gpu.sms
    else:
        kernel, taps = "offset", 1 / _slices(features, sizes)
        # Samples of narrow offset groups share a tile. Those of narrow feature groups do not.
        is_narrow = segments == sizes.offset_groups and segment <= 4 * cuda_tiles.VECTOR_BYTES // sizes.itemsize
        if is_narrow:
            samples = sizes.taps * segments // sizes.groups
            blocks, block_tiles = sizes.groups * math.ceil(samples / (tile // segment)), 1
        else:
            block_taps = cuda_tiles.block_taps(sizes.pixels, sizes.offset_groups, sizes.taps)
            blocks = sizes.offset_groups * math.ceil(sizes.taps / block_taps)
            block_tiles = block_taps * math.ceil(segments / sizes.offset_groups) * math.ceil(segment / tile)
        blocks, k_steps = pixel_tiles * blocks, block_tiles * _slices(features, sizes)
    clocks = _k_step_clocks(blocks, kernel, tile, is_narrow, gpu, taps)
    return (k_steps * clocks + sort_clocks) / gpu.clock


def weight_splits(sizes: ConvolutionSizes, gpu: Gpu) -> int:
    """The number of partial sums of the gradient of the weight. Each is over a part of the pixels."""
    return _weight_gradient(sizes, gpu)[1]


def _weight_gradient(sizes: ConvolutionSizes, gpu: Gpu) -> tuple[float, int]:
    """The time of the gradient of the weight, and the number of partial sums that makes it shortest.

    Compared are numbers whose thread blocks nearly fill one wave of resident blocks, two waves, and so on.
    """
    features, channels = sizes.features // sizes.groups, sizes.channels // sizes.groups
    segment, tile = min(channels, sizes.channels // sizes.offset_groups), 64 if features <= 64 else 128
    rows = min(cuda_tiles.WEIGHT_TILE, 1024 // tile * segment)  # a tile has up to 16 or 8 samples of each pixel
    tiles = sizes.groups * math.ceil(sizes.taps * channels / rows) * math.ceil(features / tile)
    slices = max(_slices(sizes.pixels, sizes), 1)
    found = []
    for blocks in range(gpu.resident_blocks, MAX_SM_BLOCKS + 1, gpu.resident_blocks):
        most = max(min(blocks * gpu.sms // tiles, sizes.pixels // cuda_tiles.MIN_SPLIT_PIXELS), 1)
        splits = math.ceil(slices / math.ceil(slices / most))  # the fewest with as many K steps
        k_steps = math.ceil(slices / splits) + 1  # 0.4 to 0.9 are counted outside of the main loop
        moved = 2 * SUM_BYTES * splits * sizes.taps * channels * sizes.features  # partial sums, in and out
        clocks = _k_step_clocks(tiles * splits, "weight", tile, segment < 64, gpu)
        found.append((k_steps * clocks / gpu.clock + moved / gpu.memory, splits))
    return min(found)


def _k_step_clocks(blocks: int, kernel: str, tile: int, is_narrow: bool, gpu: Gpu, taps: float = 0) -> float:
    """Clocks of the SM that has the most of these thread blocks, for a K step of each and so many taps."""
    known = K_STEP_CLOCKS[gpu.resident_blocks]
    size = 0 if is_narrow else tile if tile in known[kernel] else 128
    taps *= (size or 128) / 128
    alone, resident = (one + taps * tap for one, tap in zip(known[kernel][size], known["tap"][128], strict=True))
    waves, last = divmod(math.ceil(blocks / gpu.sms), gpu.resident_blocks)
    return (waves * gpu.resident_blocks * resident + last * alone) * gpu.fused_clocks


def _slices(length: int, sizes: ConvolutionSizes) -> int:
    """K slices of 128 bytes."""
    return math.ceil(length * sizes.itemsize / 128)


def im2col_choice(
    computations: Collection[str], others: Collection[str], sizes: ConvolutionSizes, gpu: Gpu, error: float = 1
) -> set[str]:
    """Which of the computations the im2col path should do, while it does the others in any case.

    Either the forward, or gradients that are computed together. `error` multiplies the estimates of the im2col path.
    """
    kernels = sorted({_kernel(name) for name in computations})
    subsets = [set(chosen) for count in range(len(kernels) + 1) for chosen in combinations(kernels, count)]

    def seconds(chosen: set[str]) -> float:
        return total_seconds([*kernels, *others], chosen.union(others), sizes, gpu, MARGIN * error)

    best = min(subsets, key=seconds)
    return {name for name in computations if _kernel(name) in best}


def total_seconds(
    computations: Collection[str], by_im2col: Collection[str], sizes: ConvolutionSizes, gpu: Gpu, margin: float = 1
) -> float:
    """The time of computations of which the im2col path does some, where these count `margin` times."""
    fused = sorted({_kernel(name) for name in computations if name not in by_im2col})
    seconds = sum(fused_seconds(kernel, sizes, gpu) for kernel in fused)
    return seconds + margin * im2col_seconds(by_im2col, sizes, gpu) if by_im2col else seconds


def _kernel(computation: str) -> str:
    """The gradients of offset and mask have one kernel."""
    return "offset" if computation == "mask" else computation


def chunk_budget(computations: Collection[str], sizes: ConvolutionSizes, gpu: Gpu) -> int:
    """The bytes that a chunk of the im2col path should have: as many as stay in the L2 cache, or more.

    Small chunks make more launches, and products that leave more SMs idle.
    """

    def seconds(budget: int) -> float:  # to the nanosecond, so that rounding errors do not decide
        return round(im2col_seconds(computations, sizes, gpu, budget), 9)

    return min(gpu.l2_bytes // 2, *(column_arrays(computations) * size for size in LARGE_CHUNKS), key=seconds)


def im2col_seconds(
    computations: Collection[str], sizes: ConvolutionSizes, gpu: Gpu, budget: int | None = None
) -> float:
    """The time of these computations together on the im2col path, in chunks of so many bytes, by default of the best.

    Our kernels and XLA's products follow each other. Each is bound by itself or by the memory of the columns that it
    reads and writes; or else launches are.
    """
    if budget is None:
        budget = chunk_budget(computations, sizes, gpu)
    names = {_kernel(name) for name in computations}
    of_chunk = _chunk_sizes(names, sizes)
    chunk = largest_chunk(of_chunk, budget)
    parts = math.ceil(sizes.images / chunk.images), math.ceil(sizes.rows / chunk.rows)
    chunks, chunk_rows = math.prod(parts), chunk.images * chunk.rows
    total = sizes.pixels * sizes.taps * sizes.channels * sizes.itemsize
    held = chunk_rows * of_chunk.row_bytes + chunk.images * of_chunk.image_bytes
    memory = total / (gpu.l2_bytes_per_clock * gpu.clock if held <= gpu.l2_bytes // 2 else gpu.memory)

    def kernel(name: str, passes: int = 1) -> float:
        return max(_column_seconds(name, total, sizes, gpu), passes * memory)

    def product(name: str) -> float:  # a grouped product has a rearranged copy
        seconds = chunks * _product_seconds(name, sizes, gpu, chunk_rows * sizes.pixels // (sizes.images * sizes.rows))
        return max(seconds, memory * (1 if sizes.groups == 1 else 2))

    launches, seconds = CHUNK_LAUNCHES + sum(IM2COL_LAUNCHES[name] for name in names), 0.0
    if "forward" in names:
        seconds += kernel("forward") + product("forward")
    if not names.isdisjoint(("x", "offset")):
        launches += IM2COL_LAUNCHES["columns"]
        seconds += product("x")
    if "x" in names:
        # A chunk of rows reads and writes the sums of all pixels of its image, which are zeroed first and rounded last.
        moved = 2 * SUM_BYTES * parts[1] + 3 * SUM_BYTES if chunk.has_sums else sizes.itemsize
        seconds += kernel("x") + sizes.images * sizes.image_pixels * sizes.channels * moved / gpu.memory
    if "offset" in names:  # with the columns that the gradient of the weight needs
        seconds += kernel("offset", passes=2 if "weight" in names else 1)
    if "weight" in names:
        seconds += product("weight") + (0 if "offset" in names else kernel("forward"))
    launches = chunks * launches + (SORT_LAUNCHES if "x" in names else 0)
    bounds = [seconds, launches * LAUNCH_SECONDS, *(_operand_seconds(name, sizes, gpu) for name in names)]
    return max(bounds)


def _chunk_sizes(names: Collection[str], sizes: ConvolutionSizes) -> ChunkSizes:
    return gradient_sizes(
        names,
        sizes.images,
        sizes.rows,
        sizes.pixels // (sizes.images * sizes.rows) * sizes.taps * sizes.channels * sizes.itemsize,
        sum_bytes=sizes.image_pixels * sizes.channels * SUM_BYTES,
        kernel_rounds=True,
    )


def _column_seconds(kernel: str, columns_bytes: int, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    known = COLUMN_CLOCKS[kernel]
    nearest = min(known, key=lambda channels: abs(math.log(channels * sizes.offset_groups / sizes.channels)))
    clocks = known[nearest] * columns_bytes / 128
    if kernel == "x":
        clocks += SORT_CLOCKS * sizes.pixels * sizes.taps * sizes.offset_groups
    return clocks * gpu.im2col_clocks / gpu.sms / gpu.clock


def _operand_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """What device memory takes to move arrays of the sizes of x, the result, the positions and the sorted lists."""
    sample_bytes = {"x": 32, "offset": 24, "mask": 24}.get(computation, 12)
    elements = sizes.images * sizes.image_pixels * sizes.channels + sizes.pixels * sizes.features
    samples = sizes.pixels * sizes.taps * sizes.offset_groups
    return (sizes.itemsize * elements + sample_bytes * samples) / gpu.memory


def _product_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu, pixels: int) -> float:
    features, columns = sizes.features // sizes.groups, sizes.taps * sizes.channels // sizes.groups
    gemms = {"forward": (pixels, features, columns), "weight": (features, columns, pixels)}
    m, n, k = gemms.get(computation, (pixels, columns, features))
    tiles = math.ceil(m / PRODUCT_TILE) * math.ceil(n / PRODUCT_TILE) * sizes.groups
    splits = max(min(gpu.sms // tiles, k // MIN_SPLIT_K), 1)
    rate = gpu.product_multiply_adds * gpu.clock * PRODUCT_EFFICIENCY * 2 / sizes.itemsize
    return math.ceil(tiles * splits / gpu.sms) * PRODUCT_TILE**2 * math.ceil(k / splits) / rate
