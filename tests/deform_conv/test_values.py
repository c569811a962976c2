"""Layouts of the convolutions, and positions that float32 cannot hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import (
    BACKENDS,
    CASES,
    Case,
    assert_close,
    cast,
    pull_back,
    to_channels_first,
    to_channels_last,
)
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import compiled_pull_back


@pytest.mark.parametrize(
    "name, data_format",
    [
        *((name, "NCHW") for name in ("unbatched", "two_batch_dimensions", "empty_batch")),
        ("signal", "NCW"),
        ("groups_of_volumes", "NCDHW"),
    ],
)
def test_data_formats_agree_over_any_batch_dimensions(name, data_format, x64):
    case = CASES[name]
    channels = -1 - len(case.kernel)
    operands, cotangent = case.operands(), case.cotangent()
    y, gradients = compiled_pull_back(case, None)(cotangent, operands)
    first_y, first_gradients = pull_back(
        np.moveaxis(cotangent, -1, channels), to_channels_first(operands), data_format=data_format, **case.keywords
    )
    assert_close(jnp.moveaxis(first_y, channels, -1), y)
    assert_close(to_channels_last(jax.tree.map(np.asarray, first_gradients)), gradients)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["circular", "circular_signal", "circular_volume"])
def test_huge_offsets_stay_on_the_torus(name, backend):
    """A huge float32 location has lost its place among the pixels, but it still is one of them."""
    case = CASES[name]
    operands = cast(case.operands(masked=False), np.float32)
    offset = np.random.default_rng(0).choice([1e30, -3e9, -(2.0**63)], operands.offset.shape).astype(np.float32)
    operands = operands._replace(x=np.ones_like(operands.x), offset=offset)
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
