"""Estimates the time of the fused and of the im2col path of a convolution on a GPU.

An estimate is the time of the kernels if nothing waits, so it is a lower bound, and only the ratio of two estimates is
used. Nothing was measured on a GPU: docs/performance.md says how clocks are counted, and what is assumed.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from jax_dcn._operators.deform_conv import cuda_tiles

# The im2col path runs only if its estimate is shorter by this factor: the estimates may be wrong by about as much, and
# the fused path needs less workspace.
MARGIN = 1.2
LAUNCH_SECONDS = 3e-6  # per kernel, assumed; launches overlap with the kernels that were launched before
IM2COL_LAUNCHES = {"forward": 7, "x": 14, "offset": 9, "mask": 9, "weight": 10}  # per chunk, counted in XLA's programs
PRODUCT_EFFICIENCY = 0.7  # of the published rate, assumed for XLA's products
PRODUCT_TILE, MIN_SPLIT_K = 128, 1024  # of a thread block of XLA's products; they split K where SMs would be idle
LARGE_CHUNK_BYTES = 64 * 2**20  # of columns, which exceed the L2 cache
MAX_SM_BLOCKS = 4  # per SM, of the gradient of the weight: each has up to 64 KiB of partial sums


class Gpu(NamedTuple):
    architecture: str
    sms: int
    clock: float  # Hz
    multiply_adds: float  # of `mma.sync` per clock and SM, in 16 bits
    product_multiply_adds: float  # of XLA's products per clock and SM, in 16 bits
    memory: float  # bytes per second
    l2_bytes: int  # its size
    l2_bytes_per_clock: int
    weight_blocks: int  # resident thread blocks per SM of the gradient of the weight
    fused_clocks: float  # of the fused kernels, relative to sm_80
    im2col_clocks: float  # of the other kernels, likewise


# The clocks are those of an SM of sm_80. Fused kernels: per K step, by columns of the block tile, 0 for narrow channel
# segments; for the gradients of offset and mask also per tap. Sort: per entry. im2col: per 128 bytes of columns, by
# channels of an offset group. benchmarks/counting/devices.py has the sources of the rates.
# Written by `python -m benchmarks.machine_code`:
GPUS = {
    80: Gpu("sm_80", 108, 1.41e09, 1_024, 1_024, 2.039e12, 40_000_000, 5_120, 2, 1, 1),  # A100
    86: Gpu("sm_86", 82, 1.695e09, 256, 256, 9.36e11, 6_000_000, 3_280, 1, 1.11, 1),  # RTX 3090
    89: Gpu("sm_89", 128, 2.52e09, 256, 256, 1.008e12, 72_000_000, 5_120, 1, 1.11, 1),  # RTX 4090
    90: Gpu("sm_90", 132, 1.755e09, 1269.76, 2_048, 4.8e12, 50_000_000, 5_120, 2, 1, 1.02),  # H200
    100: Gpu("sm_100", 148, 1.85e09, 1_024, 4_096, 8e12, 126_000_000, 5_920, 2, 1, 1.01),  # B200
    120: Gpu("sm_120", 170, 2.407e09, 256, 256, 1.792e12, 96_000_000, 6_800, 1, 1.12, 0.98),  # RTX 5090
}
K_STEP_CLOCKS = {
    "forward": {0: 3347, 64: 1274, 128: 1447, 256: 2052},
    "offset": {0: 3124, 128: 684},
    "weight": {0: 5124, 64: 1525, 128: 1498},
    "x": {0: 2505, 128: 1727},
}
TAP_CLOCKS = 1754
SORT_CLOCKS = 2.45
COLUMN_CLOCKS = {
    "forward": {8: 42.38, 128: 8.88, 256: 7.37},
    "offset": {8: 53.04, 128: 13.53, 256: 11.24},
    "x": {8: 47.15, 128: 13.75, 256: 12.16},
}
# End of what is written.


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
    """The newest known GPU that is not newer than the compute capability, by default 90, with its own number of SMs."""
    known = [gpu for capability, gpu in GPUS.items() if capability <= (compute_capability or 90)]
    gpu = known[-1] if known else GPUS[80]
    return gpu if sms is None else gpu._replace(sms=sms)


def fused_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """The time of the forward, or of the gradient with respect to the operand of that name, on the fused path."""
    is_weight, launches = computation == "weight", 6 if computation == "x" else 2
    seconds = _weight_gradient(sizes, gpu)[0] if is_weight else _fused_kernel_seconds(computation, sizes, gpu)
    return max(seconds, launches * LAUNCH_SECONDS, _operand_seconds(computation, sizes, gpu))


def _fused_kernel_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu) -> float:
    """The K steps of the SM that has the most thread blocks, of all kernels but that of the gradient of the weight."""
    kernel, tap_clocks, sort_clocks = computation, 0.0, 0.0
    features, segments = sizes.features // sizes.groups, max(sizes.groups, sizes.offset_groups)
    segment = sizes.channels // segments  # channels that share a feature group and an offset group
    tile, is_narrow = 64 if segment <= 64 else 128, segment < 64
    pixel_tiles = math.ceil(sizes.pixels / cuda_tiles.TILE_PIXELS)
    if computation == "forward":
        # Where shared memory has room for only one block of the gradient of the weight, it has none for 256 columns.
        tile = min(cuda_tiles.tile_features(sizes.pixels, sizes.features, sizes.groups), 128 * gpu.weight_blocks)
        blocks = pixel_tiles * sizes.groups * math.ceil(features / tile)
        k_steps = math.ceil(segments / sizes.groups) * _slices(sizes.taps * segment, sizes)
    elif computation == "x":
        image_tiles = math.ceil(sizes.images * sizes.image_pixels / cuda_tiles.TILE_PIXELS)
        blocks, k_steps = image_tiles * segments * math.ceil(segment / tile), _slices(sizes.taps * features, sizes)
        entries = 4 * sizes.pixels * sizes.taps * sizes.offset_groups
        sort_clocks = entries * SORT_CLOCKS * gpu.im2col_clocks / gpu.sms
    else:
        kernel, tap_clocks = "offset", TAP_CLOCKS / _slices(features, sizes)
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
    clocks = _k_step_clocks(kernel, tile, is_narrow, gpu, tap_clocks)
    return (math.ceil(blocks / gpu.sms) * k_steps * clocks + sort_clocks) / gpu.clock


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
    clocks = _k_step_clocks("weight", tile, segment < 64, gpu)
    found = []
    for blocks in range(gpu.weight_blocks, MAX_SM_BLOCKS + 1, gpu.weight_blocks):
        most = max(min(blocks * gpu.sms // tiles, sizes.pixels // cuda_tiles.MIN_SPLIT_PIXELS), 1)
        splits = math.ceil(slices / math.ceil(slices / most))  # the fewest with as many K steps
        k_steps = math.ceil(slices / splits) + 1  # 0.4 to 0.9 are counted outside of the main loop
        moved = 2 * cuda_tiles.SUM_BYTES * splits * sizes.taps * channels * sizes.features  # partial sums, in and out
        found.append((math.ceil(tiles * splits / gpu.sms) * k_steps * clocks / gpu.clock + moved / gpu.memory, splits))
    return min(found)


def _k_step_clocks(kernel: str, tile: int, is_narrow: bool, gpu: Gpu, tap_clocks: float = 0) -> float:
    """Bound by the instructions, or by the tensor cores."""
    known = K_STEP_CLOCKS[kernel]
    counted = known[0] if is_narrow else known.get(tile, known[128])
    return max((counted + tap_clocks) * gpu.fused_clocks, cuda_tiles.TILE_PIXELS * tile * 64 / gpu.multiply_adds)


def _slices(length: int, sizes: ConvolutionSizes) -> int:
    """K slices of 128 bytes."""
    return math.ceil(length * sizes.itemsize / 128)


def column_bytes(computations: Collection[str], sizes: ConvolutionSizes, gpu: Gpu) -> int:
    """How many bytes of columns a chunk of the im2col path should have: as many as stay in the L2 cache, or more.

    Fewer bytes in each chunk make more launches.
    """

    def seconds(size: int) -> float:  # to the nanosecond, so that rounding errors do not decide
        return round(sum(im2col_seconds(name, sizes, gpu, size) for name in computations), 9)

    return min(gpu.l2_bytes // 2, LARGE_CHUNK_BYTES, key=seconds)


def im2col_seconds(computation: str, sizes: ConvolutionSizes, gpu: Gpu, chunk_bytes: int | None = None) -> float:
    """As `fused_seconds`, on the im2col path, in chunks of so many bytes of columns, by default of the best number.

    Our kernels, and then XLA's products, are bound by themselves or by the columns' memory; or else launches are.
    """
    if chunk_bytes is None:
        chunk_bytes = column_bytes([computation], sizes, gpu)
    total = sizes.pixels * sizes.taps * sizes.channels * sizes.itemsize
    chunks = math.ceil(total / chunk_bytes)
    known = COLUMN_CLOCKS[{"mask": "offset", "weight": "forward"}.get(computation, computation)]
    nearest = min(known, key=lambda channels: abs(math.log(channels * sizes.offset_groups / sizes.channels)))
    clocks = known[nearest] * total / 128
    if computation == "x":
        clocks += SORT_CLOCKS * sizes.pixels * sizes.taps * sizes.offset_groups
    is_in_l2 = min(chunk_bytes, total) <= gpu.l2_bytes // 2
    rate = gpu.l2_bytes_per_clock * gpu.clock if is_in_l2 else gpu.memory
    memory = total * (1 if sizes.groups == 1 else 2) / rate  # a grouped product has a rearranged copy
    products = chunks * _product_seconds(computation, sizes, gpu, math.ceil(sizes.pixels / chunks))
    device = max(clocks * gpu.im2col_clocks / gpu.sms / gpu.clock, memory) + max(products, memory)
    launches = chunks * IM2COL_LAUNCHES[computation] * LAUNCH_SECONDS
    return max(device, launches, _operand_seconds(computation, sizes, gpu))


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
