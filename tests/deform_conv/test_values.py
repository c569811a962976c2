"""Values and gradients against the numpy reference and jax's own convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.deform_conv.cases import (
    BACKENDS,
    CASE,
    CASES,
    Case,
    assert_close,
    cast,
    compiled_pull_back,
    pull_back,
    to_channels_first,
    to_channels_last,
)
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.slow import slow_unless

# What the reference, whose programs take long to compile, computes by default.
BY_REFERENCE = ("strided_dilated", "6_groups_4_offset_groups", "circular", "unbatched", "signal", "volume")


@pytest.mark.parametrize(
    "case, backend",
    [
        slow_unless(backend is None or case.name in BY_REFERENCE, case, backend)
        for case in CASES
        for backend in BACKENDS
    ],
    ids=str,
)
def test_numpy_reference(case, backend):
    run = compiled_pull_back(case, backend)

    @settings(max_examples=3 if backend is None else 2)
    @given(
        seed=st.integers(0, 2**32 - 1),
        offset_scale=st.sampled_from([0.5, 2.0, 20.0]),
        grid=st.sampled_from([1, 2, 64]),
        masked=st.booleans() if backend is None else st.just(True),
    )
    def check(seed, offset_scale, grid, masked):
        operands, cotangent = case.operands(seed, offset_scale, grid, masked), case.cotangent(seed)
        with jax.enable_x64(True):
            assert_close(run(cotangent, operands), case.expected(cotangent, operands))

    check()


@pytest.mark.parametrize(
    "name, data_format",
    [
        *((name, "NCHW") for name in ("unbatched", "two_batch_dimensions", "empty_batch")),
        ("signal", "NCW"),
        ("groups_of_volumes", "NCDHW"),
    ],
)
def test_data_formats_agree_over_any_batch_dimensions(name, data_format, x64):
    case = CASE[name]
    channels = -1 - len(case.kernel)
    operands, cotangent = case.operands(), case.cotangent()
    y, gradients = compiled_pull_back(case, None)(cotangent, operands)
    first_y, first_gradients = pull_back(
        np.moveaxis(cotangent, -1, channels), to_channels_first(operands), data_format=data_format, **case.keywords
    )
    assert_close(jnp.moveaxis(first_y, channels, -1), y)
    assert_close(to_channels_last(jax.tree.map(np.asarray, first_gradients)), gradients)


def far(offset, *values):
    return np.random.default_rng(0).choice(values, offset.shape).astype(offset.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, name", [("float32", "plain"), ("float64", "plain"), ("float32", "volume")])
def test_samples_far_outside_are_zero(dtype, name, backend):
    case = CASE[name]
    with jax.enable_x64(dtype == "float64"):
        operands = cast(case.operands(), dtype)
        operands = operands._replace(offset=far(operands.offset, 1e30, -3e9, 2.0**31, -(2.0**63), np.inf))
        y, gradients = compiled_pull_back(case, backend)(cast(case.cotangent(), dtype), operands)
    np.testing.assert_array_equal(y, np.broadcast_to(operands.bias, y.shape))
    for gradient in gradients._replace(bias=None):
        assert gradient is None or not np.any(gradient)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["circular", "circular_signal", "circular_volume"])
def test_huge_offsets_stay_on_the_torus(name, backend):
    """A huge float32 location has lost its place among the pixels, but it still is one of them."""
    case = CASE[name]
    operands = cast(case.operands(masked=False), np.float32)
    operands = operands._replace(x=np.ones_like(operands.x), offset=far(operands.offset, 1e30, -3e9, -(2.0**63)))
    y, gradients = compiled_pull_back(case, backend)(cast(case.cotangent(), np.float32), operands)
    on_every_pixel = operands.weight.reshape(-1, case.cout).sum(0) + operands.bias
    np.testing.assert_allclose(y, np.broadcast_to(on_every_pixel, y.shape), rtol=1e-4, atol=1e-4)
    assert all(np.isfinite(gradient).all() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("backend", [*BACKENDS, "im2col"])
def test_start_and_tap_distance_are_added_as_integers(backend):
    """float32 holds neither of the two, but their sum: the middle taps are inside, and the others far outside."""

    def run(distance):
        convolution = Convolution((1, 1), distance, (distance, distance))
        case = Case("far_taps", (5, 6), 16, 8, (3, 3), convolution=convolution)
        return compiled_pull_back(case, backend)(cast(case.cotangent(), "float32"), cast(case.operands(), "float32"))

    assert_close(run(2**24 + 1), run(64), 0, 0)
