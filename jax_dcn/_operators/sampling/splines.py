"""Spline interpolation of orders 2 to 5, with SciPy's values, by samples that are linear between pixels.

A prefilter turns pixels into coefficients of B-splines (Unser et al., B-Spline Signal Processing, IEEE Transactions on
Signal Processing 41, 1993). Two neighbouring coefficients with the weights v and w are one linear sample, at the
distance w / (v + w) from the first, times v + w (Sigg and Hadwiger, Fast Third-Order Texture Filtering, GPU Gems 2).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_dcn._operators.sampling.geometry import Outside

SPLINE_ORDERS = (2, 3, 4, 5)
PERIOD = 256  # samples of the impulse response, which has decreased below the precision of float64 there
BLOCK = 64  # pixels of a row that are filtered together
PADDING = 12  # pixels around an image that SciPy filters for "nearest" and "grid-constant"

# The mode of jnp.pad that extends an image for the prefilter, and the rule for coefficients outside the image.
EXTENSIONS: dict[str, tuple[str, Outside]] = {
    "constant": ("reflect", "mirror"),
    "grid-constant": ("reflect", "zero"),
    "nearest": ("symmetric", "clip"),
    "wrap": ("wrap", "wrap"),
    "mirror": ("reflect", "mirror"),
    "reflect": ("symmetric", "reflect"),
}


def coefficients(x: jax.Array, order: int, axes: Iterable[int], mode: str) -> jax.Array:
    """The coefficients of the spline through the pixels of x, along these axes."""
    extension, _ = EXTENSIONS[mode]
    half = _impulse_response(order)
    half = half[: np.argmax(np.abs(half) < jnp.finfo(x.dtype).eps / 8)]
    reach = len(half) - 1
    # BLOCK pixels are a product with a band matrix, which is faster than a filter of one pixel.
    band = np.zeros((BLOCK, 1, BLOCK + 2 * reach))
    for pixel in range(BLOCK):
        band[pixel, 0, pixel : pixel + 2 * reach + 1] = np.concatenate([half[:0:-1], half])
    for axis in axes:
        moved = jnp.moveaxis(x, axis, -1)
        size, blocks = moved.shape[-1], -(-moved.shape[-1] // BLOCK)
        rows = jnp.pad(moved.reshape(-1, 1, size), [(0, 0), (0, 0), (reach, reach)], mode=extension)
        rows = jnp.pad(rows, [(0, 0), (0, 0), (0, blocks * BLOCK - size)])
        kernel = jnp.asarray(band, x.dtype)
        found = lax.conv_general_dilated(rows, kernel, (BLOCK,), "VALID", precision=lax.Precision.HIGHEST)
        found = found.swapaxes(1, 2).reshape(*moved.shape[:-1], blocks * BLOCK)[..., :size]
        x = jnp.moveaxis(found, -1, axis)
    return x


@functools.lru_cache
def _impulse_response(order: int) -> np.ndarray:
    """The prefilter at distances of 0, 1, ...: the inverse of the convolution with the B-spline at whole numbers."""
    sampled = np.zeros(PERIOD)
    for distance in range(-(order // 2), order // 2 + 1):
        sampled[distance] = float(_b_spline(Fraction(distance), order))
    return np.fft.irfft(1 / np.fft.rfft(sampled).real, PERIOD)[: PERIOD // 2]


def _b_spline(x: Fraction, order: int) -> Fraction:
    """The centred B-spline."""
    terms = (
        (-1) ** k * math.comb(order + 1, k) * max(x + Fraction(order + 1, 2) - k, Fraction(0)) ** order
        for k in range(order + 2)
    )
    return sum(terms, Fraction(0)) / math.factorial(order)


@functools.lru_cache
def _weights(order: int) -> np.ndarray:
    """The weights of the order + 1 coefficients around a position, as polynomials of its distance from the middle one.

    [order + 1, order + 1], with the highest power first.
    """
    low = Fraction(0) if order % 2 else Fraction(-1, 2)
    at = [low + Fraction(k, order) for k in range(order + 1)]
    powers = np.array([[float(x**k) for k in range(order, -1, -1)] for x in at])
    values = np.array([[float(_b_spline(x - tap + order // 2, order)) for tap in range(order + 1)] for x in at])
    return np.linalg.solve(powers, values).T


def pairs(coordinate: jax.Array, order: int) -> list[tuple[jax.Array, jax.Array]]:
    """The linear samples along one axis whose weighted sum is the spline: their positions and weights."""
    middle = lax.stop_gradient(jnp.floor(coordinate if order % 2 else coordinate + 0.5))
    distance = jnp.where(jnp.isinf(coordinate), 0, coordinate - middle)
    # Not jnp.polyval, whose loop keeps XLA from computing all of this in one pass.
    weights = [functools.reduce(lambda sum, power: sum * distance + float(power), one) for one in _weights(order)]
    first = middle - order // 2
    found = []
    for tap in range(0, order, 2):
        pixel, weight = first + tap, weights[tap] + weights[tap + 1]
        position = pixel + weights[tap + 1] / weight
        # A position that is rounded up to the next pixel would have the derivative of the next two coefficients.
        below = lax.stop_gradient(jnp.minimum(position, jnp.nextafter(pixel + 1, -jnp.inf)) - position)
        found.append((position + jnp.where(jnp.isinf(position), 0, below), weight))
    return found if order % 2 else [*found, (first + order, weights[order])]


def interpolate(
    x: jax.Array,
    coordinates: Sequence[jax.Array],
    order: int,
    mode: str,
    cval: ArrayLike,
    prefilter: bool,
    sample: Callable[[jax.Array, list[jax.Array], Outside], jax.Array],
) -> jax.Array:
    """The values of the spline through the pixels of x [*sizes, channels] at coordinates in pixels.

    prefilter: whether x has pixels, and not coefficients.
    sample: the linear samples of coefficients at positions, with what stands for coefficients outside.
    """
    axes, wide = len(coordinates), jnp.promote_types(x.dtype, jnp.float32)
    dtype, fill = x.dtype, jnp.asarray(cval, wide)
    coordinates = [_as_float(one) for one in coordinates]
    beyond = [(one < 0) | (one > size - 1) for one, size in zip(coordinates, x.shape, strict=False)]
    x = x.astype(wide)
    if mode == "grid-constant":
        x = x - fill
    if prefilter and mode in ("nearest", "grid-constant"):
        frame = [(PADDING, PADDING)] * axes + [(0, 0)]
        x = jnp.pad(x, frame, mode="edge") if mode == "nearest" else jnp.pad(x, frame)
        coordinates = [one + PADDING for one in coordinates]
    if prefilter:
        x = coefficients(x, order, range(axes), mode)
    _, outside = EXTENSIONS[mode]
    total = jnp.zeros((), wide)
    for samples in itertools.product(*(pairs(one, order) for one in coordinates)):
        positions, weights = zip(*samples, strict=True)
        total += math.prod(weights)[..., None] * sample(x, list(positions), outside)
    if mode == "grid-constant":
        total += fill
    if mode == "constant":
        total = jnp.where(functools.reduce(jnp.logical_or, beyond)[..., None], fill, total)
    return total.astype(dtype)


def _as_float(coordinate: jax.Array) -> jax.Array:
    is_float = jnp.issubdtype(coordinate.dtype, jnp.floating)
    return coordinate if is_float else coordinate.astype(jnp.result_type(float))
