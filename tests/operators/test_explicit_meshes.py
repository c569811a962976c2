"""Every dimension of every operand sharded over an Explicit mesh, where the results' sizes cannot be sharded alike.

An operator must then replicate what it cannot shard, rather than raise an error.
"""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.run_exported import with_gradients
from tests.helpers.sharding import make_mesh

pytestmark = pytest.mark.platforms("cpu")


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def regions(count):
    low, high = np.random.default_rng(0).uniform(0, 4, (2, count, 2))
    return np.concatenate([np.arange(count)[:, None] % 2, low, low + high], 1, dtype=np.float32)


IMAGES, DEFORMED = random(2, 8, 8, 4), (random(2, 8, 8, 4), regions(5), random(5, 3, 3, 2))
ATTENTION = random(2, 24, 2, 4), random(2, 5, 2, 2, 2, 2), random(2, 5, 2, 2, 2)
attention = partial(jax_dcn.multi_scale_deformable_attention, spatial_shapes=((4, 5), (2, 2)))
windows = partial(jax_dcn.dcnv3, kernel_size=2, padding=0)
STRIDED = random(2, 6, 6, 4), random(2, 3, 3, 18), random(3, 3, 4, 3), random(3), random(2, 3, 3, 9)
PROBLEMS = {
    "strided_convolution": (partial(jax_dcn.deform_conv2d, strides=2, padding=1), STRIDED),
    "convolution_without_padding": (
        partial(jax_dcn.deform_conv2d, padding="VALID"),
        (IMAGES, random(2, 7, 7, 8), random(2, 2, 4, 6)),
    ),
    "average": (partial(jax_dcn.roi_align, output_size=3), (IMAGES, regions(5))),
    "maximum": (partial(jax_dcn.roi_align, output_size=3, mode="max"), (IMAGES, regions(5))),
    "deformable_regions": (partial(jax_dcn.deform_roi_pool, output_size=3), DEFORMED),
    "score_maps": (partial(jax_dcn.deform_psroi_pool, output_size=3, group_size=2), DEFORMED),
    "attention": (attention, ATTENTION),
    "windows": (partial(windows, groups=2), (IMAGES, random(2, 7, 7, 16), random(2, 7, 7, 8))),
    "three_groups": (partial(windows, groups=3), (random(2, 8, 8, 6), random(2, 7, 7, 24), random(2, 7, 7, 12))),
}


def place(mesh, operands, specs):
    return [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(operands, specs, strict=True)]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["types", "values"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_any_dimension(name, compiled):
    (function, operands), mesh = PROBLEMS[name], make_mesh("Explicit", (2,))
    run = with_gradients(function)
    whole = run(*operands)
    for number, operand in enumerate(operands):
        for dimension in (k for k, size in enumerate(operand.shape) if size % 2 == 0):
            specs = [P()] * len(operands)
            specs[number] = P(*[None] * dimension, "a")
            placed = place(mesh, operands, specs)
            with jax.set_mesh(mesh):
                _, *gradients = jax.eval_shape(run, *placed)
                expected = NamedSharding(mesh.abstract_mesh, specs[number])
                assert gradients[number].sharding.is_equivalent_to(expected, operand.ndim)
                if compiled:
                    assert_close(jax.jit(run)(*placed), whole, 1e-4, 1e-4)
