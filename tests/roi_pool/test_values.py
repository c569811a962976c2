"""What only the poolings have: regions of integers, maxima, wide and large images."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS, assert_close, cast
from tests.helpers.operators import OPERATORS, compiled_pull_back, pull_back
from tests.helpers.roi_pool.cases import Operands, PSRoIPool, RoIAlign, pool
from tests.helpers.roi_pool.numpy_reference import Align

CASE = PSRoIPool()


def test_an_infinite_cotangent_reaches_what_its_bin_reads(x64):
    one, infinity = np.zeros_like(CASE.cotangent()), np.zeros_like(CASE.cotangent())
    one[0, 1, 1], infinity[0, 1, 1] = 1, np.inf
    run = compiled_pull_back(OPERATORS["deform_psroi_pool"].case, None)
    reached, infinite = (run(cotangent, CASE.operands())[1].x for cotangent in (one, infinity))
    np.testing.assert_array_equal(infinite, np.where(np.asarray(reached) > 0, np.inf, 0))


def test_the_last_column_of_a_wide_image():
    """It has more columns than float32 has consecutive integers."""
    width = 2**24 + 4
    x, rois = jnp.zeros((1, 1, width, 1)).at[0, 0, -1].set(3), jnp.array([[0.0, width, 0, width, 0]])
    np.testing.assert_array_equal(jax_dcn.psroi_pool(x, rois, output_size=1), 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_of_equal_points_and_nan_win(backend, x64):
    case = RoIAlign(Align((1, 1), sampling_ratio=(2, 2), mode="max"))
    run = functools.partial(compiled_pull_back(case, backend), np.ones((1, 1, 1, 1)))
    ones = Operands(np.ones((1, 4, 4, 1)), np.array([[0, 0.5, 0.5, 4.5, 4.5]]))  # points at 1 and 3
    assert np.argwhere(run(ones)[1].x).tolist() == [[0, 1, 1, 0]]
    last_is_nan = ones.x.copy()
    last_is_nan[0, 3, 3] = np.nan
    assert np.isnan(run(ones._replace(x=last_is_nan))[0]).all()
    assert run(ones._replace(x=-2e4 * ones.x))[0].item() == -2e4  # mmcv's maximum starts at -10000


def test_integer_regions():
    cotangent, operands = cast((CASE.cotangent(), CASE.operands()), np.float32)

    def results(rois):
        pooled, gradients = compiled_pull_back(CASE, None)(cotangent, operands._replace(rois=rois))
        return pooled, gradients.x, gradients.offset

    for dtype in ("int32", "int16"):
        assert_close(results(operands.rois.astype(dtype)), results(np.trunc(operands.rois)), 0, 0)


def test_coordinates_keep_their_precision_in_half_precision_images():
    x = jnp.broadcast_to(jnp.arange(4096.0), (1, 1, 4096))[..., None].astype(jnp.float16)
    rois = jnp.array([[0, 3001, 0, 3001, 0]])
    assert jax_dcn.psroi_pool(x, rois, output_size=1, sample_per_part=1)[0, 0, 0, 0] == 3000.5 // 2 * 2


def test_memory_does_not_grow_with_the_points():
    def temporary_bytes(samples):
        case = PSRoIPool(dataclasses.replace(CASE.pooling, sample_per_part=samples))
        cotangent, operands = cast((case.cotangent(), case.operands()), np.float32)
        return pull_back.lower(case.with_backend(), cotangent, operands).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes((8, 8)) == temporary_bytes((1, 1))


@functools.partial(jax.jit, static_argnames="pooling")
def x_cotangent(x, rois, pooling):
    pooled, pullback = jax.vjp(lambda x: pool(x, rois, pooling=pooling), x)
    return pullback(jnp.cos(jnp.arange(pooled.size, dtype=jnp.float32)).reshape(pooled.shape))[0]


SAMPLED = Align((2, 2), sampling_ratio=(2, 2))


@pytest.mark.parametrize(
    "pooling, height",
    [
        *((SAMPLED, height) for height in (511, 512, 513)),
        (dataclasses.replace(SAMPLED, mode="max"), 513),
        (dataclasses.replace(SAMPLED, position_sensitive=True), 513),
    ],
)
def test_x_cotangent_of_any_size_is_exact(pooling, height):
    """From 32 MiB on, the CPU kernels request large pages for a result.

    The cotangent of two images, which has about 32 MiB, consists of those of each image, which are smaller.
    """
    width, channels = 128, 64  # rows of 32 KiB
    random = np.random.default_rng(height)
    corner = random.uniform(0, 0.7, (12, 2)) * [width, height]
    boxes = np.concatenate([corner, corner + random.uniform(1, 40, (12, 2))], 1)
    image = np.arange(12)[:, None] % 2
    rois = jnp.asarray(np.concatenate([image, boxes], 1), jnp.float32)
    x = jnp.asarray(random.standard_normal((2, height, width, channels), np.float32))
    d_x = x_cotangent(x, rois, pooling)
    for i in range(2):
        outside = rois.at[:, 0].set(jnp.where(rois[:, 0] == i, 0, -1))
        np.testing.assert_array_equal(d_x[i], x_cotangent(x[i : i + 1], outside, pooling)[0])
