"""Values and first derivatives against the numpy reference; types, memory, agreement with RoIAlign."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.scipy.ndimage import map_coordinates

import jax_dcn
from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.roi_pool import numpy_reference
from tests.helpers.roi_pool.cases import (
    BACKENDS,
    COTANGENT,
    POOLING,
    Problem,
    operands,
    pool,
    problems,
    pull_back,
)


@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.thorough)])
def test_any_shape(count):
    @settings(max_examples=count)
    @given(problems())
    def check(problem):
        cotangent, arrays, pooling = problem.cotangent(), problem.operands(), problem.pooling
        expected = numpy_reference.pool(*arrays, cotangent, pooling)
        with jax.enable_x64(True):
            for backend in BACKENDS:
                assert_close(pull_back(cotangent, *arrays, pooling=pooling, backend=backend), expected)

    check()


@pytest.mark.parametrize("classes, class_features, group_size", [(4, 20, (1, 2)), (1, 70, (1, 1))])
def test_kernels_are_the_reference_for_many_features(classes, class_features, group_size, x64):
    """They work on blocks of features, across classes, and add up features in lanes."""
    pooling = dataclasses.replace(POOLING, group_size=group_size, output_size=(2, 3))
    problem = Problem(1, False, 2, (9, 8), classes, class_features, has_offset=True, pooling=pooling)
    arguments = problem.cotangent(), *problem.operands()
    assert_close(*(pull_back(*arguments, pooling=pooling, backend=backend) for backend in BACKENDS))


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("bfloat16", 3e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("offset_dtype", ["float32", "bfloat16"])
def test_dtypes(dtype, tolerance, offset_dtype):
    x, rois, offset = operands()
    x, offset = jnp.asarray(x, dtype), jnp.asarray(offset, offset_dtype)
    cotangent = jnp.asarray(COTANGENT, dtype)
    actual = pull_back(cotangent, x, np.float32(rois), offset)
    assert [array.dtype.name for array in actual] == [dtype, dtype, offset_dtype]
    with jax.enable_x64(True):
        exact = pull_back(*(np.asarray(array, np.float64) for array in (cotangent, x, rois, offset)))
    for a, e, name in zip(actual, exact, (dtype, dtype, offset_dtype), strict=True):
        within = max(tolerance, 3e-2 if name == "bfloat16" else 0)
        assert_close(a, e, within, within * np.abs(e).max())


def test_integer_regions():
    x, rois, offset = map(np.float32, operands())
    expected = pull_back(np.float32(COTANGENT), x, np.trunc(rois), offset)
    for dtype in ("int32", "int16"):
        actual = pull_back(np.float32(COTANGENT), x, rois.astype(dtype), offset)
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a, e)


def test_coordinates_keep_their_precision_in_half_precision_images():
    x = jnp.broadcast_to(jnp.arange(4096.0), (1, 1, 4096))[..., None].astype(jnp.float16)
    rois = jnp.array([[0, 3001, 0, 3001, 0]])
    assert jax_dcn.psroi_pool(x, rois, output_size=1, sample_per_part=1)[0, 0, 0, 0] == 3000.5 // 2 * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_pooling_without_offset_is_that_with_zero_offset(backend):
    x, rois, offset = map(np.float32, operands())
    plain = {k: v for k, v in dataclasses.asdict(POOLING).items() if k not in ("part_size", "trans_std")}
    without = jax.jit(lambda: jax_dcn.psroi_pool(x, rois, backend=backend, **plain))()
    assert_close(without, jax.jit(lambda: pool(x, rois, np.zeros_like(offset), backend=backend))(), 1e-6, 1e-6)


def test_an_offset_of_half_a_step_makes_it_roi_align(x64):
    """RoIAlign averages the middles of its sub-bins, of a box [x0, x1) in continuous coordinates, over all channels."""
    x, box = np.random.default_rng(0).normal(size=(1, 12, 14, 2)), (2, 1, 11, 10)
    output_size, samples, scale, trans_std = 3, 2, 0.5, 0.1
    offset = jnp.full((1, output_size, output_size, 2), 1 / (2 * output_size * samples * trans_std))
    options = {"output_size": output_size, "sample_per_part": samples, "spatial_scale": scale, "trans_std": trans_std}
    roi = jnp.array([[0, box[0], box[1], box[2] - 1, box[3] - 1]])
    pooled = jax_dcn.deform_psroi_pool(x, roi, offset, **options)[0]

    count = output_size * samples
    columns, rows = (
        (np.arange(count) + 0.5) * (box[2 + k] - box[k]) * scale / count + box[k] * scale - 0.5 for k in range(2)
    )
    middles = jnp.stack(jnp.meshgrid(rows, columns, indexing="ij"))
    read = jnp.stack([map_coordinates(x[0, ..., c], middles, 1, "nearest") for c in range(2)], -1)
    assert_close(pooled, read.reshape(output_size, samples, output_size, samples, 2).mean((1, 3)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_compute(backend):
    """No images, rows, columns or regions: zeros, in one program."""
    shapes = [((0, 3, 4, 2), 1), ((1, 0, 4, 2), 1), ((1, 3, 0, 2), 1), ((1, 3, 4, 2), 0)]
    problems = [(jnp.ones(shape), jnp.ones((count, 2, 2, 2))) for shape, count in shapes]

    @jax.jit
    def run(problems):
        def of(x, offset):
            rois = jnp.tile(jnp.array([0.0, -1.0, -1.0, 3.0, 3.0]), (len(offset), 1))
            return jax_dcn.deform_psroi_pool(x, rois, offset, output_size=2, backend=backend)

        return [(jax.jvp(of, p, p), jax.grad(lambda *p: of(*p).sum(), (0, 1))(*p)) for p in problems]

    results = run(problems)
    assert [tangents[0].shape for tangents, _ in results] == [(count, 2, 2, 2) for _, count in shapes]
    assert not any(np.any(array) for array in jax.tree.leaves(results))


def test_memory_does_not_grow_with_the_points():
    def temporary_bytes(samples):
        x, rois, offset = map(np.float32, operands())
        pooling = dataclasses.replace(POOLING, sample_per_part=samples)
        compiled = pull_back.lower(np.float32(COTANGENT), x, rois, offset, pooling=pooling).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes((8, 8)) == temporary_bytes((1, 1))
