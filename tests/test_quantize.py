import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_dcn.quantize import power_of_two

NARROW, WIDE = ("float16", "bfloat16"), ("float32", "float64")


def to_float64(array):
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.asarray(array).astype(np.float64)


def by_definition(w, low, high):
    w = to_float64(w)
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.sign(w) * 2.0 ** np.clip(np.round(np.log2(np.abs(w))), low, high)
        return np.where(np.abs(w) < 2.0 ** (low - 1), 0, powers)


@pytest.mark.parametrize("low, high", [(-14, 15), (-3, 0), (0, 0)])
@pytest.mark.parametrize("dtype", NARROW)
def test_every_narrow_number_as_defined(dtype, low, high):
    w = lax.bitcast_convert_type(jnp.arange(2**16, dtype=jnp.uint16), dtype)
    quantised = power_of_two(w, min_exponent=low, max_exponent=high)
    assert quantised.dtype == dtype
    np.testing.assert_array_equal(to_float64(quantised), by_definition(w, low, high))


@pytest.mark.parametrize("dtype", WIDE)
def test_exact_over_the_whole_range_of_exponents(x64, dtype):
    finfo = np.finfo(dtype)
    low, high = int(finfo.minexp), int(finfo.maxexp) - 1
    exponents = np.arange(low, high)
    powers = np.ldexp(np.ones((), dtype), exponents)
    root = np.sqrt(np.longdouble(2)).astype(dtype)
    below, above = (root, np.nextafter(root, 2)) if np.longdouble(root) ** 2 < 2 else (np.nextafter(root, 1), root)

    def quantise(w):
        return np.asarray(power_of_two(w, min_exponent=low, max_exponent=high))

    np.testing.assert_array_equal(quantise(powers), powers)
    np.testing.assert_array_equal(quantise(-powers), -powers)
    np.testing.assert_array_equal(quantise(powers[1:] * (1 - finfo.epsneg)), powers[1:])
    np.testing.assert_array_equal(quantise(powers * below.astype(dtype)), powers)
    np.testing.assert_array_equal(quantise(powers * above.astype(dtype)), 2 * powers)


def test_small_large_and_special_numbers():
    w = jnp.array([0.0, 2.0**-4, 2.0**-5, 2.0**-5 * 0.99, 100.0, jnp.inf, -jnp.inf, jnp.nan])
    quantised = power_of_two(w, min_exponent=-4, max_exponent=1)
    np.testing.assert_array_equal(quantised, [0, 2.0**-4, 2.0**-4, 0, 2, 2, -2, jnp.nan])


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_straight_through_in_both_modes_and_under_transformations(x64, dtype):
    w = jnp.array([0.3, -0.7, 0.0, 5.0], dtype)
    tangent = jnp.array([1.0, 2.0, 3.0, 4.0], dtype)
    expected = jnp.array([0.25, -0.5, 0.0, 1.0], dtype)

    primal_out, tangent_out = jax.jit(lambda w, t: jax.jvp(power_of_two, (w,), (t,)))(w, tangent)
    np.testing.assert_array_equal(primal_out, expected)
    np.testing.assert_array_equal(tangent_out, tangent)
    (cotangent,) = jax.vjp(power_of_two, w)[1](tangent)
    np.testing.assert_array_equal(cotangent, tangent)
    assert cotangent.dtype == tangent_out.dtype == dtype

    np.testing.assert_array_equal(jax.vmap(power_of_two)(w), expected)
    np.testing.assert_array_equal(jax.vmap(jax.grad(power_of_two))(w), jnp.ones(4))
    curvature = jax.hessian(lambda w: (power_of_two(w) ** 2).sum())(w)
    np.testing.assert_array_equal(curvature, 2 * jnp.eye(4))
