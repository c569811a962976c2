"""Anchors, and boxes encoded relative to other boxes."""

import jax
import jax.numpy as jnp

from examples.digits_library.backbone import locations

SIDES = (10.0, 18.0, 32.0, 56.0)
LOG_SCALES = (None, 2.0)


def anchors(height: int, width: int) -> jax.Array:
    """Squares of all `SIDES` around each cell: [cells · sides, 4] as (x0, y0, x1, y1), cell by cell.

    >>> anchors(8, 8)[:2].tolist()
    [[-1.0, -1.0, 9.0, 9.0], [-5.0, -5.0, 13.0, 13.0]]
    """
    centres = locations(height, width)[:, None]
    half = jnp.array(SIDES)[:, None] / 2
    return jnp.concatenate([centres - half, centres + half], -1).reshape(-1, 4)


def encode(boxes: jax.Array, base: jax.Array, min_side: float = 1.0) -> jax.Array:
    """Boxes [..., 4] relative to base [..., 4]: shift of the centre (x, y) in sides of the base, and log scales (x, y).

    The parametrisation of R-CNN (arXiv 1311.2524, equations 6 to 9). Sides below `min_side` pixels count as that long.
    """
    centre, size = _centre_and_size(boxes, min_side)
    base_centre, base_size = _centre_and_size(base, min_side)
    return jnp.concatenate([(centre - base_centre) / base_size, jnp.log(size / base_size)], -1)


def decode(
    deltas: jax.Array,
    base: jax.Array,
    min_side: float = 1.0,
    log_scales: tuple[float | None, float | None] = LOG_SCALES,
) -> jax.Array:
    """The inverse of `encode`, with log scales clipped to a range.

    >>> base = jnp.array([0.0, 0.0, 8.0, 4.0])
    >>> decode(encode(jnp.array([2.0, 1.0, 6.0, 9.0]), base), base).round(3).tolist()
    [2.0, 1.0, 6.0, 9.0]
    """
    base_centre, base_size = _centre_and_size(base, min_side)
    centre = base_centre + deltas[..., :2] * base_size
    half = base_size * jnp.exp(jnp.clip(deltas[..., 2:], *log_scales)) / 2
    return jnp.concatenate([centre - half, centre + half], -1)


def _centre_and_size(boxes, min_side):
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, jnp.maximum(high - low, min_side)
