"""Every dimension of every operand sharded over an Explicit mesh, where the results' sizes cannot be sharded alike.

An operator must then replicate what it cannot shard, rather than raise an error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from tests.helpers.sharding import make_mesh

pytestmark = pytest.mark.platforms("cpu")


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def regions(count):
    low, high = np.random.default_rng(0).uniform(0, 4, (2, count, 2))
    return np.concatenate([np.arange(count)[:, None] % 2, low, low + high], 1, dtype=np.float32)


def strided_convolution(*operands):
    return jax_dcn.deform_conv2d(*operands, strides=2, padding=1)


def convolution_without_padding(*operands):
    return jax_dcn.deform_conv2d(*operands, padding="VALID")


def average(x, rois):
    return jax_dcn.roi_align(x, rois, output_size=3)


def maximum(x, rois):
    return jax_dcn.roi_align(x, rois, output_size=3, mode="max")


def deformable_regions(x, rois, offset):
    return jax_dcn.deform_roi_pool(x, rois, offset, output_size=3)


def score_maps(x, rois, offset):
    return jax_dcn.deform_psroi_pool(x, rois, offset, output_size=3, group_size=2)


def attention(*operands):
    return jax_dcn.multi_scale_deformable_attention(*operands, spatial_shapes=((4, 5), (2, 2)))


def windows(*operands):
    return jax_dcn.dcnv3(*operands, kernel_size=2, padding=0, groups=2)


def three_groups(*operands):
    return jax_dcn.dcnv3(*operands, kernel_size=2, padding=0, groups=3)


ATTENTION = random(2, 24, 2, 4), random(2, 5, 2, 2, 2, 2), random(2, 5, 2, 2, 2)
IMAGES = random(2, 8, 8, 4)
PROBLEMS = {
    strided_convolution: (
        *(random(2, 6, 6, 4), random(2, 3, 3, 18), random(3, 3, 4, 3), random(3), random(2, 3, 3, 9)),
    ),
    convolution_without_padding: (IMAGES, random(2, 7, 7, 8), random(2, 2, 4, 6)),
    average: (IMAGES, regions(5)),
    maximum: (IMAGES, regions(5)),
    deformable_regions: (IMAGES, regions(5), random(5, 3, 3, 2)),
    score_maps: (IMAGES, regions(5), random(5, 3, 3, 2)),
    attention: ATTENTION,
    windows: (IMAGES, random(2, 7, 7, 16), random(2, 7, 7, 8)),
    three_groups: (random(2, 8, 8, 6), random(2, 7, 7, 24), random(2, 7, 7, 12)),
}


def place(mesh, operands, specs):
    return [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(operands, specs, strict=True)]


def with_gradients(function, operands):
    result, pull_back = jax.vjp(function, *operands)
    return result, pull_back(jnp.cos(result))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["types", "values"])
@pytest.mark.parametrize("function", PROBLEMS, ids=lambda function: function.__name__)
def test_any_dimension(function, compiled):
    operands, mesh = PROBLEMS[function], make_mesh("Explicit", (2,))
    whole = with_gradients(function, operands)
    for number, operand in enumerate(operands):
        for dimension in (k for k, size in enumerate(operand.shape) if size % 2 == 0):
            specs = [P()] * len(operands)
            specs[number] = P(*[None] * dimension, "a")
            placed = place(mesh, operands, specs)
            with jax.set_mesh(mesh):
                _, gradients = jax.eval_shape(lambda *operands: with_gradients(function, operands), *placed)
                expected = NamedSharding(mesh.abstract_mesh, specs[number])
                assert gradients[number].sharding.is_equivalent_to(expected, operand.ndim)
                if compiled:
                    split = jax.jit(lambda *operands: with_gradients(function, operands))(*placed)
                    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), split, whole)


@pytest.mark.parametrize(
    "specs",
    [
        (P("a"), P("a", None, None, "b", "c"), P("a", None, None, "b", "c")),
        (P("a", None, "b"), P("a", None, "b", None, "c"), P("a", None, "b", "c")),
        (P(), P(None, None, None, "a", "c"), P(None, None, None, "c", "b")),
    ],
    ids=str,
)
def test_levels_and_points_of_attention(specs):
    devices, types = jax.devices("cpu")[:8], (jax.sharding.AxisType.Explicit,) * 3
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=types, devices=devices)
    with jax.set_mesh(mesh):
        split = jax.jit(lambda *operands: with_gradients(attention, operands))(*place(mesh, ATTENTION, specs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), split, with_gradients(attention, ATTENTION))
