"""The tiles of the fused CUDA kernels, by which they are launched and their times are estimated."""

from jax_dcn._primitive import extension

# struct FusedLimits in lib/deform_conv_fused.h says what these are. Every compiled module has them.
_LIMITS = extension.modules["cpu"].fused_limits
VECTOR_BYTES: int = _LIMITS["vector_bytes"]
TILE_PIXELS: int = _LIMITS["tile_pixels"]
TILE_FEATURES: tuple[int, ...] = _LIMITS["tile_features"]
WEIGHT_TILE: int = _LIMITS["weight_tile"]
MIN_SPLIT_PIXELS: int = _LIMITS["min_split_pixels"]

SUM_BYTES = 4  # of an element of the partial sums of the gradient with respect to weight
MIN_BLOCKS = 128  # about the number of SMs of a large GPU
# Enough thread blocks to keep all SMs busy until the last ones end: two waves on an H100, which has two resident blocks
# on each of its 132 SMs.
MANY_BLOCKS = 528


def tile_features(pixels: int, features: int, groups: int, resident_blocks: int) -> int:
    """How many features of a group a thread block of the forward computes, of TILE_PIXELS pixels.

    A block samples its pixels once for all its features. So one block takes all features of the group if a tile can;
    but fewer where there would be too few blocks to keep the GPU busy. A symbolic number of pixels counts as many.
    Where an SM has shared memory for only one block of the gradient of the weight, it has none for the widest tile.
    """
    features //= groups
    sizes = TILE_FEATURES if resident_blocks > 1 else TILE_FEATURES[:-1]

    def blocks(tile: int) -> int:
        return -(-pixels // TILE_PIXELS) * groups * -(-features // tile)

    tile = next((tile for tile in sizes if tile >= features), sizes[-1])
    while tile > sizes[0] and isinstance(pixels, int) and blocks(tile) < MIN_BLOCKS:
        tile //= 2
    return tile


def block_taps(pixels: int, offset_groups: int, taps: int) -> int:
    """How many taps of TILE_PIXELS pixels a thread block of the gradient with respect to the offset takes.

    It takes fewer than all where SMs would be idle otherwise.
    """
    tiles = -(-pixels // TILE_PIXELS) * offset_groups
    return -(-taps // max(min(MANY_BLOCKS // max(tiles, 1), taps), 1))
