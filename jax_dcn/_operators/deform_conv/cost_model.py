"""Estimates what the fused and the plain path of a convolution take on a GPU, from counts of `gpu_costs`.

Nothing here was measured on a GPU. An estimate is the time of the kernels if nothing waits, so it is a lower bound, and
only the ratio of two estimates is used. Assumed, because no publication says it: what a launch takes, and what part of
the published rate XLA's products reach.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from jax_dcn._operators.deform_conv import fused
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._operators.deform_conv.gpu import NARROW, Gpu
from jax_dcn._operators.deform_conv.gpu_costs import GPUS
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

DEFAULT_COMPUTE_CAPABILITY = 90
# The plain path runs only if its estimate is shorter by this factor: the estimates may be wrong by about as much, and
# the fused path needs less workspace.
MARGIN = 1.2
LAUNCH_SECONDS = 3e-6  # per kernel, assumed; launches overlap with the kernels that were launched before
PRODUCT_EFFICIENCY = 0.7  # of the published rate, assumed for large products
PRODUCT_TILE, MIN_SPLIT_K = 128, 1024  # of a thread block of XLA's products; they split K where SMs would be idle
K_STEP = 128  # bytes along K
LARGE_CHUNK_BYTES = 64 * 2**20  # of columns, which exceed the L2 cache
# The most thread blocks per SM that the weight's cotangent is divided into. More would fill the last wave better, but
# each has partial sums of its own: at most 64 KiB.
MAX_SM_BLOCKS = 4
# What a thread block of the weight's cotangent takes before and after its main loop, in K steps. The instructions are
# counted as 0.4 to 0.9 K steps (docs/performance.md); waiting is not counted.
WEIGHT_BLOCK_STEPS = 1

# Kernels that a chunk of the plain path launches, counted in XLA's programs for an H100: ours, the product, and XLA's
# slices and updates of the chunk's operands and results.
PLAIN_LAUNCHES = {"forward": 7, "x": 14, "offset": 9, "mask": 9, "weight": 10}
# Kernels of the fused path, the copy of the weight or the sum of partial sums included; for x per chunk of images.
FUSED_LAUNCHES = {"forward": 2, "x": 6, "offset": 2, "mask": 2, "weight": 2}


def gpu_of(target: Target) -> Gpu:
    """The GPU whose costs stand for those of a target: of the newest known architecture that is not newer.

    Only the number of SMs is the target's own.
    """
    wanted = DEFAULT_COMPUTE_CAPABILITY if target.compute_capability is None else target.compute_capability
    gpu = GPUS[max((known for known in GPUS if known <= wanted), default=min(GPUS))]
    return gpu if target.sms is None else gpu._replace(sms=target.sms)


class Sizes(NamedTuple):
    """The sizes of a convolution that its cost depends on."""

    images: int
    image_pixels: int  # of x
    pixels: int  # of the result, all images together
    taps: int
    channels: int
    features: int
    groups: int
    offset_groups: int
    item: int  # bytes of an element of x

    @classmethod
    def of(cls, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> "Sizes | None":
        """None if a size is symbolic, or an array empty."""
        shapes = (*x.shape, *offset.shape, *weight.shape)
        are_known = all(isinstance(size, int) and size > 0 for size in shapes)
        return cls.of_known(x, offset, weight, spec) if are_known else None

    @classmethod
    def of_known(cls, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> "Sizes":
        """The sizes as far as they are known: a symbolic number of images, or size of an image, counts as 1."""
        offset_groups, taps = groups_and_taps(offset, weight.shape[:2])
        images, pixels = x.shape[0] if isinstance(x.shape[0], int) else 1, fused.pixels(x)
        return cls(
            images,
            pixels // max(images, 1),
            fused.pixels(offset),
            taps,
            x.shape[-1],
            weight.shape[-1],
            spec.feature_group_count,
            offset_groups,
            x.dtype.itemsize,
        )

    @property
    def vector(self) -> int:
        """Channels in 16 bytes."""
        return fused.VECTOR_BYTES // self.item

    @property
    def group_features(self) -> int:
        return self.features // self.groups

    @property
    def segment_channels(self) -> int:
        """Those that share a feature group and an offset group, if one group size divides the other."""
        return min(self.channels // self.groups, self.channels // self.offset_groups)

    @property
    def segments(self) -> int:
        return self.channels // self.segment_channels

    @property
    def weight_elements(self) -> int:
        return self.taps * self.channels // self.groups * self.features

    @property
    def has_narrow_segments(self) -> bool:
        return self.segment_channels < NARROW

    @property
    def samples(self) -> int:
        return self.pixels * self.taps * self.offset_groups

    @property
    def column_elements(self) -> int:
        return self.pixels * self.taps * self.channels


def fused_seconds(computation: str, sizes: Sizes, gpu: Gpu) -> float:
    """The forward, or the cotangent of the operand of that name, by its fused kernels."""
    if computation == "weight":
        kernels = _weight_seconds(weight_splits(sizes, gpu), sizes, gpu)
    else:
        tile, blocks, k_steps = launch(computation, sizes, gpu)
        kernels = _waves(blocks, gpu) * k_steps * _k_step_clocks(computation, tile, sizes, gpu) / gpu.clock
    chunks = 1
    if computation == "x":
        kernels += 4 * sizes.samples * gpu.sort_clocks / (gpu.sms * gpu.clock)
        list_bytes = 48 * sizes.samples + 4 * sizes.images * sizes.taps * sizes.offset_groups * sizes.image_pixels
        chunks = math.ceil(list_bytes / fused.CHUNK_LIST_BYTES)
    launches = chunks * FUSED_LAUNCHES[computation] * LAUNCH_SECONDS
    return max(kernels, launches, _operand_seconds(computation, sizes, gpu))


def _weight_seconds(splits: int, sizes: Sizes, gpu: Gpu) -> float:
    tile, blocks, k_steps = _weight_launch(splits, sizes)
    clocks = (k_steps + WEIGHT_BLOCK_STEPS) * _k_step_clocks("weight", tile, sizes, gpu)
    return _waves(blocks, gpu) * clocks / gpu.clock + partial_sum_seconds(splits, sizes, gpu)


def partial_sum_seconds(splits: int, sizes: Sizes, gpu: Gpu) -> float:
    """What device memory takes to write and to read the partial sums of the weight's cotangent."""
    return 2 * splits * sizes.weight_elements * fused.SUM_BYTES / gpu.memory


def plain_seconds(computation: str, sizes: Sizes, gpu: Gpu) -> float:
    return min(_plain_seconds(computation, sizes, gpu, size) for size in _chunk_bytes(gpu))


def column_bytes(computations: Collection[str], sizes: Sizes | None, gpu: Gpu) -> int:
    """How many bytes of columns a chunk of the plain path should have: as many as stay in the L2 cache, or more.

    Fewer bytes in each chunk make more launches.
    """

    def seconds(size: int) -> float:
        assert sizes is not None
        return sum(_plain_seconds(name, sizes, gpu, size) for name in computations)

    return LARGE_CHUNK_BYTES if sizes is None else min(_chunk_bytes(gpu), key=seconds)


def _chunk_bytes(gpu: Gpu) -> tuple[int, int]:
    return gpu.l2_bytes // 2, LARGE_CHUNK_BYTES


def _plain_seconds(computation: str, sizes: Sizes, gpu: Gpu, chunk_bytes: int) -> float:
    total = sizes.column_elements * sizes.item
    chunks = math.ceil(total / chunk_bytes)
    clocks = _column_clocks(computation, sizes, gpu) * total / 128
    if computation == "x":
        clocks += sizes.samples * gpu.sort_clocks
    kernel = clocks / (gpu.sms * gpu.clock)
    # The columns, or their cotangents, are written and read once; a grouped product has a rearranged copy.
    moved = total * (2 if sizes.groups == 1 else 4)
    is_in_l2 = min(chunk_bytes, total) <= gpu.l2_bytes // 2
    rate = gpu.l2_bytes_per_clock * gpu.clock if is_in_l2 else gpu.memory
    device = max(kernel, moved / 2 / rate) + max(_product_seconds(computation, sizes, gpu, chunks), moved / 2 / rate)
    launches = chunks * PLAIN_LAUNCHES[computation] * LAUNCH_SECONDS
    return max(device, launches, _operand_seconds(computation, sizes, gpu))


def _operand_seconds(computation: str, sizes: Sizes, gpu: Gpu) -> float:
    """What device memory takes to move arrays of the sizes of x, the result, the positions and the sorted lists."""
    of_sample = {"forward": 12, "x": 32, "weight": 12}.get(computation, 24)
    features = sizes.images * sizes.image_pixels * sizes.channels + sizes.pixels * sizes.features
    return (sizes.item * features + of_sample * sizes.samples) / gpu.memory


def _product_seconds(computation: str, sizes: Sizes, gpu: Gpu, chunks: int) -> float:
    """That of all chunks, by XLA."""
    pixels, columns = math.ceil(sizes.pixels / chunks), sizes.taps * sizes.channels // sizes.groups
    m, n, k = {
        "forward": (pixels, sizes.group_features, columns),
        "weight": (sizes.group_features, columns, pixels),
    }.get(computation, (pixels, columns, sizes.group_features))
    tiles = math.ceil(m / PRODUCT_TILE) * math.ceil(n / PRODUCT_TILE) * sizes.groups
    splits = max(min(gpu.sms // tiles, k // MIN_SPLIT_K), 1)
    rate = gpu.product_multiply_adds * gpu.clock * PRODUCT_EFFICIENCY * (1 if sizes.item == 2 else 0.5)
    return chunks * _waves(tiles * splits, gpu) * PRODUCT_TILE**2 * math.ceil(k / splits) / rate


def launch(computation: str, sizes: Sizes, gpu: Gpu) -> tuple[int, int, int]:
    """Columns of a block tile, thread blocks, and K steps of each, of a fused kernel."""
    pixel_tiles = math.ceil(sizes.pixels / fused.TILE_PIXELS)
    if computation == "forward":
        tile = fused.tile_features(sizes.pixels, sizes.features, sizes.groups)
        tile = min(tile, max(columns for name, columns, _ in gpu.k_step_clocks if name == "forward"))
        blocks = pixel_tiles * sizes.groups * math.ceil(sizes.group_features / tile)
        whole, rest = divmod(sizes.segment_channels // sizes.vector, fused.SLICE_VECTORS)
        of_segment = sizes.taps * whole + math.ceil(sizes.taps * rest / fused.SLICE_VECTORS)
        steps = math.ceil(sizes.segments / sizes.groups) * of_segment
    elif computation == "weight":
        return _weight_launch(weight_splits(sizes, gpu), sizes)
    elif computation == "x":
        tile = _cotangent_tile(sizes.segment_channels)
        image_tiles = math.ceil(sizes.images * sizes.image_pixels / fused.TILE_PIXELS)
        blocks = image_tiles * sizes.segments * math.ceil(sizes.segment_channels / tile)
        steps = math.ceil(sizes.taps * sizes.group_features / sizes.vector / fused.SLICE_VECTORS)
    else:
        block_taps = fused.block_taps(sizes.pixels, sizes.offset_groups, sizes.taps)
        if _samples_share_tiles(sizes):
            tile, channel_tiles, groups = 64, 1, sizes.groups
            offset_groups = sizes.offset_groups // groups
            tile_samples = tile // (8 * sizes.vector) * (8 * sizes.vector // sizes.segment_channels)
            sample_tiles = math.ceil(offset_groups * sizes.taps / tile_samples)
            block_tiles = math.ceil(sample_tiles / (offset_groups * math.ceil(sizes.taps / block_taps)))
        else:
            tile, groups = _cotangent_tile(sizes.segment_channels), sizes.offset_groups
            channel_tiles = sizes.segments // groups * math.ceil(sizes.segment_channels / tile)
            sample_tiles, block_tiles = sizes.taps, block_taps
        blocks = pixel_tiles * groups * math.ceil(sample_tiles / block_tiles)
        steps = block_tiles * channel_tiles * _feature_slices(sizes)
    return tile, blocks, steps


def _weight_launch(splits: int, sizes: Sizes) -> tuple[int, int, int]:
    """The same for the weight's cotangent, if it is divided into `splits` partial sums."""
    tile = _cotangent_tile(sizes.group_features)
    # A tile has a limited number of samples of each pixel.
    samples = 1 if sizes.segment_channels % fused.WEIGHT_TILE == 0 else 16 if tile == 64 else 8
    rows = min(fused.WEIGHT_TILE, samples * sizes.segment_channels)
    row_tiles = sizes.groups * math.ceil(sizes.taps * (sizes.channels // sizes.groups) / rows)
    blocks = row_tiles * math.ceil(sizes.group_features / tile) * splits
    slices = max(math.ceil(sizes.pixels / (K_STEP // sizes.item)), 1)
    return tile, blocks, math.ceil(slices / splits)


def num_splits(x: Shaped, offset: Shaped, weight: Shaped, spec: Spec, target: Target) -> int:
    """The number of partial sums of the weight's cotangent."""
    return weight_splits(Sizes.of_known(x, offset, weight, spec), gpu_of(target))


def weight_splits(sizes: Sizes, gpu: Gpu) -> int:
    """The number of partial sums of the weight's cotangent. Each is over a part of the pixels, by blocks of its own.

    Numbers whose blocks nearly fill one wave of resident blocks, two waves, and so on are compared, and the fastest one
    is returned.
    """
    _, tiles, slices = _weight_launch(1, sizes)

    def splits(waves: int) -> int:
        most = min(waves * gpu.sms * gpu.weight_blocks // tiles, sizes.pixels // fused.MIN_SPLIT_PIXELS)
        return math.ceil(slices / math.ceil(slices / max(most, 1)))  # the fewest with as many K steps

    waves = range(1, MAX_SM_BLOCKS // gpu.weight_blocks + 1)
    return min(map(splits, waves), key=lambda splits: _weight_seconds(splits, sizes, gpu))


def _samples_share_tiles(sizes: Sizes) -> bool:
    """Whether a tile of the cotangents of offset and mask has several samples of each pixel."""
    offset_group_channels = sizes.channels // sizes.offset_groups
    return offset_group_channels <= min(sizes.channels // sizes.groups, 4 * sizes.vector)


def _k_step_clocks(computation: str, tile: int, sizes: Sizes, gpu: Gpu) -> float:
    """By the counted kernel that is most like this one, unless the tensor cores take longer."""
    kernel = _kernel(computation)
    counted = (key for key in gpu.k_step_clocks if key[0] == kernel)
    # The cotangents of offset and mask have tiles of few channels, but of one tap, where only feature groups are small.
    is_narrow = _samples_share_tiles(sizes) if kernel == "offset" else sizes.has_narrow_segments
    nearest = min(counted, key=lambda key: (key[2] != is_narrow, abs(key[1] - tile)))
    clocks = gpu.k_step_clocks[nearest]
    if kernel == "offset":
        clocks += gpu.offset_tap_clocks / _feature_slices(sizes)
    return max(clocks, fused.TILE_PIXELS * tile * K_STEP / 2 / gpu.multiply_adds)


def _column_clocks(computation: str, sizes: Sizes, gpu: Gpu) -> float:
    """By the counted number of channels that is closest."""
    channels = sizes.channels // sizes.offset_groups
    counted = (key for key in gpu.column_clocks if key[0] == _kernel(computation))
    return gpu.column_clocks[min(counted, key=lambda key: abs(math.log(key[1] / channels)))]


def _kernel(computation: str) -> str:
    """One kernel computes the cotangents of offset and mask."""
    return "offset" if computation == "mask" else computation


def _feature_slices(sizes: Sizes) -> int:
    return math.ceil(sizes.group_features / sizes.vector / fused.SLICE_VECTORS)


def _cotangent_tile(columns: int) -> int:
    return 64 if columns <= 64 else 128


def _waves(blocks: int, gpu: Gpu) -> int:
    """The thread blocks of the SM that has the most."""
    return math.ceil(blocks / gpu.sms)
