"""Values and first derivatives against the numpy reference; types, sizes, memory."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS, assert_close
from tests.helpers.roi_pool.cases import COTANGENT, POOLING, PSRoIPool, RoIAlign, operands, pool, pull_back
from tests.helpers.roi_pool.numpy_reference import Align, Pooling


@pytest.mark.parametrize("classes, features, group_size", [(3, 60, (1, 2)), (1, 70, (1, 1))])
def test_kernels_are_the_reference_for_many_features(classes, features, group_size, x64):
    """They work on blocks of features, across classes, and add up features in lanes."""
    pooling = dataclasses.replace(POOLING, group_size=group_size, output_size=(2, 3))
    case = PSRoIPool(pooling, classes, features)
    arguments = case.cotangent(), *case.operands()
    assert_close(*(pull_back(*arguments, pooling=pooling, backend=backend) for backend in BACKENDS))


MAX = Align(spatial_scale=0.4, mode="max")


@pytest.mark.parametrize(
    "case, dtype, offset_dtype",
    [
        *((PSRoIPool(), dtype, "float32") for dtype in ("float32", "bfloat16", "float16")),
        (PSRoIPool(), "bfloat16", "bfloat16"),
        *((case, "bfloat16", None) for case in (RoIAlign(), RoIAlign(MAX))),
    ],
    ids=["float32", "bfloat16", "float16", "offset", "mean", "max"],
)
def test_dtypes(case, dtype, offset_dtype):
    """A result and a gradient of 16 bits is rounded once."""
    x, rois, offset = case.operands()
    x, rois, cotangent = jnp.asarray(x, dtype), np.float32(rois), jnp.asarray(case.cotangent(), dtype)
    arguments = cotangent, x, rois, None if offset is None else jnp.asarray(offset, offset_dtype)
    actual = pull_back(*arguments, pooling=case.pooling)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda array: np.asarray(array, np.float64), arguments)
        exact = pull_back(*wide, pooling=case.pooling)
    for a, e, of in zip(actual, exact, (dtype, dtype, offset_dtype), strict=True):
        if e is not None:
            assert a.dtype == of
            within = 1e-4 + 4 * max(float(jnp.finfo(of).eps), float(jnp.finfo(dtype).eps))
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


@pytest.mark.parametrize("backend", [None, pytest.param("reference", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "pooling", [Pooling((2, 2)), Align((2, 2)), Align((2, 2), mode="max")], ids=["deformable", "mean", "max"]
)
def test_nothing_to_compute(pooling, backend):
    """No regions, images, rows, columns or channels: zeros, in one program."""
    shapes = [((1, 4, 4, 2), 0), ((0, 3, 3, 2), 2), ((1, 0, 4, 2), 2), ((1, 3, 0, 2), 2), ((1, 3, 3, 0), 2)]
    if isinstance(pooling, Pooling):
        del shapes[-1]  # offsets of classes need features

    def run(images):
        for x, (_, count) in zip(images, shapes, strict=True):
            rois = jnp.tile(jnp.array([0.0, -1.0, -1.0, 3.0, 3.0]), (count, 1))
            operands = (x, jnp.ones((count, 2, 2, 2))) if isinstance(pooling, Pooling) else (x,)

            def of(x, offset=None, rois=rois):
                return pool(x, rois, offset, pooling=pooling, backend=backend)

            yield of(*operands), jax.grad(lambda *o, of=of: of(*o).sum(), range(len(operands)))(*operands)
            if pooling.mode == "avg":
                yield jax.jvp(of, operands, operands)

    results = jax.jit(lambda images: list(run(images)))([jnp.ones(shape) for shape, _ in shapes])
    assert not any(np.any(array) for array in jax.tree.leaves(results))


def test_memory_does_not_grow_with_the_points():
    def temporary_bytes(samples):
        x, rois, offset = map(np.float32, operands())
        pooling = dataclasses.replace(POOLING, sample_per_part=samples)
        compiled = pull_back.lower(np.float32(COTANGENT), x, rois, offset, pooling=pooling).compile()
        return compiled.memory_analysis().temp_size_in_bytes

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
