"""Where a sample of an image reads: its position along each axis, and the pixels around it with their weights.

lib/sampling/geometry.h has the same rules.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.bilinear import rounded_product

Method = Literal["nearest", "rounded", "linear", "cubic"]
Units = Literal["pixels", "edges", "corners"]
Fold = Literal["none", "clip", "reflect"]
Outside = Literal["zero", "clip", "wrap", "mirror", "reflect"]

CUBIC = -0.75  # the parameter of the cubic convolution, as in PyTorch and OpenCV
FAR = 2.0**30  # a position that is farther from the image counts as infinite


@dataclass(frozen=True)
class Spec:
    """How an image of `dims` axes is sampled.

    method: "nearest" rounds halves to even, "rounded" away from zero. units: of coordinates; -1 and 1 are the edges of
    the image, or the centres of its corner pixels. fold: what happens to positions outside. outside: what happens to
    pixels outside, of a position that is not folded. planar: whether the coordinates along each axis are an array of
    their own; otherwise they are [points, dims], the last axis first.
    """

    dims: int
    method: Method
    units: Units = "pixels"
    fold: Fold = "none"
    outside: Outside = "zero"
    planar: bool = False

    @property
    def taps(self) -> int:
        """The pixels of an axis that a sample reads."""
        return {"linear": 2, "cubic": 4}.get(self.method, 1)

    @property
    def sorted_taps(self) -> int:
        """The entries of a sample that CUDA kernels sort."""
        return max(self.taps, 2) ** max(self.dims, 2)


class Tap(NamedTuple):
    """A pixel along an axis for each position, -1 where there is none, and its weight."""

    pixel: jax.Array
    weight: jax.Array


def axis_taps(coordinate: jax.Array, size: Any, spec: Spec) -> list[Tap]:
    """The pixels that samples at these coordinates read along an axis of `size` pixels. NaN has weights of NaN."""
    position = _position(coordinate, size, spec)
    nan = jnp.isnan(position)
    if spec.fold != "none":
        position = jnp.where(nan, position, _folded(position, size, spec))
    # Beyond this, nothing depends on the position.
    limit = FAR if spec.fold == "reflect" or spec.outside in ("wrap", "mirror", "reflect") else size + 4
    near = jnp.abs(position) < limit
    bounded = jnp.where(near | nan, position, lax.stop_gradient(jnp.clip(position, -limit, limit)))
    known = jnp.where(nan, 0, bounded)
    if spec.method in ("nearest", "rounded"):
        away = lax.RoundingMethod.AWAY_FROM_ZERO
        low = jnp.round(known) if spec.method == "nearest" else lax.round(known, away)
    else:
        low = jnp.floor(known)
    first = lax.stop_gradient(low).astype(jnp.int32) - (spec.method == "cubic")
    is_read = ~nan if spec.outside == "clip" else near
    weights = _weights(bounded - lax.stop_gradient(low), spec.method)
    return [
        Tap(jnp.where(is_read, _pixel(first + index, size, spec.outside), -1), weight)
        for index, weight in enumerate(weights)
    ]


def _position(coordinate: jax.Array, size: Any, spec: Spec) -> jax.Array:
    """The position in pixels; 0 is the centre of the first pixel."""
    if spec.units == "pixels":
        return coordinate
    length = size if spec.units == "edges" else size - 1
    # It rounds as PyTorch does.
    product = rounded_product(coordinate + 1, length / 2)
    return jnp.where(jnp.isnan(coordinate) | (length > 0), product, 0) - (0.5 if spec.units == "edges" else 0.0)


def _folded(position: jax.Array, size: Any, spec: Spec) -> jax.Array:
    """The position within the image. Its derivative is 0 where it is clipped, also at the outermost centres."""
    if spec.fold == "reflect":
        low, span = (-0.5, size) if spec.units == "edges" else (0, size - 1)
        known = jnp.where(jnp.abs(position) < FAR, position, 0)
        distance = jnp.where(known > low, known - low, low - known)
        turns = lax.stop_gradient(jnp.floor(distance / jnp.maximum(span, 1)))
        rest = distance - turns * span
        reflected = jnp.where(turns % 2 == 0, low + rest, low + span - rest)
        # Infinite positions stay, and so are outside.
        position = jnp.where(jnp.abs(position) < FAR, reflected, jnp.inf)
        clipped = jnp.where(jnp.isinf(position), position, jnp.clip(position, 0, size - 1))
    else:
        clipped = jnp.clip(position, 0, size - 1)
    return jnp.where((position > 0) & (position < size - 1), position, lax.stop_gradient(clipped))


def _weights(fraction: jax.Array, method: Method) -> list[jax.Array]:
    if method == "linear":
        return [1 - fraction, fraction]
    if method == "cubic":
        return [_far(fraction + 1), _near(fraction), _near(1 - fraction), _far(2 - fraction)]
    return [jnp.ones_like(fraction)]


def _near(distance: jax.Array) -> jax.Array:
    """The cubic convolution of a pixel at most 1 away."""
    return ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1


def _far(distance: jax.Array) -> jax.Array:
    """The cubic convolution of a pixel 1 to 2 away."""
    return ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC


def _pixel(index: jax.Array, size: Any, outside: Outside) -> jax.Array:
    """The pixel that `index` stands for, -1 if none does."""
    if outside == "zero":
        return jnp.where((index >= 0) & (index < size), index, -1)
    if outside == "clip":
        return jnp.clip(index, 0, size - 1)
    if outside == "wrap":
        return index % jnp.maximum(size, 1) + jnp.minimum(size - 1, 0)
    period = 2 * (size - 1) if outside == "mirror" else 2 * size
    turned = index % jnp.maximum(period, 1)
    return jnp.where(turned < size, turned, period - turned - (outside == "reflect"))
