"""Quantizers for the ``kernel_transform`` of a layer."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jax_dcn import _validation

# Just below the square root of two, also after rounding to any of the dtypes: none of them has a number in between.
_SQRT_2 = 1.4142135623730949


def power_of_two(w: ArrayLike, *, min_exponent: int = -14, max_exponent: int = 0) -> jax.Array:
    """Rounds every weight to a signed power of two, so that multiplying by it is a shift.

    The result is ``sign(w) * 2**clip(round(log2(|w|)), min_exponent, max_exponent)``, exactly, and zero where
    ``|w| < 2**(min_exponent - 1)`` (and where ``w`` is subnormal, on platforms that flush those). Infinities become the
    largest power; NaN stays NaN.

    The gradient is straight-through: the derivative is one everywhere, forward and reverse, so that the full-precision
    weight keeps learning.

    Args:
      w: Weights of any shape, float16, bfloat16, float32 or float64.
      min_exponent: Exponent of the smallest power. The defaults give 31 values (a sign, 15 exponents, and zero), which
        fit in 5 bits and which every dtype represents.
      max_exponent: Exponent of the largest power.

    Returns:
      The quantized weights, with the shape and dtype of ``w``.

    Raises:
      TypeError: If ``w`` has another dtype, or an exponent is not an int.
      ValueError: If ``min_exponent > max_exponent``, or a power is not a normal number of ``w``'s dtype.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn.quantize import power_of_two
      >>> w = jnp.array([0.3, -0.7, 1e-6, 3.0])
      >>> power_of_two(w).tolist()
      [0.25, -0.5, 0.0, 1.0]
      >>> jax.grad(lambda w: power_of_two(w).sum())(w).tolist()
      [1.0, 1.0, 1.0, 1.0]

      Use ``functools.partial`` to choose fewer bits:

      >>> from functools import partial
      >>> from jax_dcn.linen import DeformConv
      >>> four_bits = partial(power_of_two, min_exponent=-6)
      >>> layer = DeformConv(features=8, kernel_size=3, kernel_transform=four_bits)
    """
    w = _validation.array("w", w)
    for name, exponent in (("min_exponent", min_exponent), ("max_exponent", max_exponent)):
        if not isinstance(exponent, int):
            raise TypeError(f"{name} must be an int, got {exponent!r}")
    finfo = jnp.finfo(w.dtype)
    if not finfo.minexp <= min_exponent <= max_exponent < finfo.maxexp:
        raise ValueError(
            f"the exponents must satisfy {finfo.minexp} <= min_exponent <= max_exponent < {finfo.maxexp} for "
            f"{w.dtype.name} weights, got min_exponent={min_exponent} and max_exponent={max_exponent}"
        )
    return _straight_through_power_of_two(w, min_exponent, max_exponent)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _straight_through_power_of_two(w: jax.Array, min_exponent: int, max_exponent: int) -> jax.Array:
    magnitude = jnp.clip(jnp.abs(w), 2.0**min_exponent, 2.0**max_exponent)
    lower = _clear_mantissa(magnitude)
    power = jnp.where(magnitude > _SQRT_2 * lower, 2 * lower, lower)
    # The left side is doubled instead of halving the right: half the smallest power may be subnormal, and XLA may
    # flush it to zero.
    return jnp.where(2 * jnp.abs(w) < 2.0**min_exponent, 0, jnp.sign(w) * power)


@_straight_through_power_of_two.defjvp
def _straight_through_jvp(min_exponent: int, max_exponent: int, primals: Any, tangents: Any) -> Any:
    (w,), (w_dot,) = primals, tangents
    return _straight_through_power_of_two(w, min_exponent, max_exponent), w_dot


def _clear_mantissa(x: jax.Array) -> jax.Array:
    """The largest power of two not above positive ``x``; from the bits, because XLA's ``exp2`` and ``log2`` round."""
    finfo = jnp.finfo(x.dtype)
    bits = lax.bitcast_convert_type(x, f"uint{finfo.bits}")
    return lax.bitcast_convert_type(bits >> finfo.nmant << finfo.nmant, x.dtype)
