"""Every public function of arrays, inside a loop and inside `shard_map`, whose carries and shards have types."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_dcn
from tests.helpers.deform_conv.cases import assert_close

# These take no arrays, or compute nothing of them.
OTHERS = {
    "ComputationPlan",
    "KernelPlan",
    "kernel_plan",
    "offset_labels",
    "operators_saveable",
    "patch",
    "warn_of_offsets",
}
EXAMPLES = 2
RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=(EXAMPLES, *shape)).astype(np.float32)


def boxes(count, side=6):
    corner = RANDOM.uniform(0, side / 2, (EXAMPLES, count, 2))
    return np.concatenate([corner, corner + RANDOM.uniform(1, side / 2, corner.shape)], -1).astype(np.float32)


def convolution(dimensions):
    shape = (1, 4, 5, 3)[-dimensions:]
    taps = 3**dimensions
    arrays = normal(1, *shape, 2), normal(1, *shape, taps * dimensions), normal(*(3,) * dimensions, 2, 2)
    return getattr(jax_dcn, f"deform_conv{dimensions}d"), *arrays, normal(2), normal(1, *shape, taps)


def slope(of):
    arrays = normal(1, 4, 5, 2), normal(1, 4, 5, 2), normal(1, 4, 5, 18), normal(3, 3, 2, 2), normal(1, 4, 5, 9)
    return getattr(jax_dcn, f"deform_conv2d_{of}_grad"), *arrays


def pooling(name, channels=4, **options):
    rois = np.concatenate([np.zeros((EXAMPLES, 3, 1), np.float32), boxes(3)], -1)
    return functools.partial(getattr(jax_dcn, name), output_size=2, **options), normal(1, 6, 6, channels), rois


def attention():
    attend = functools.partial(jax_dcn.multi_scale_deformable_attention, spatial_shapes=((4, 3), (2, 2)))
    return attend, normal(1, 16, 2, 4), normal(1, 5, 2, 2, 3, 2), normal(1, 5, 2, 2, 3)


# Of each function: what takes the arrays of one example, and the arrays of all examples.
CALLS = {
    **{f"deform_conv{dimensions}d": convolution(dimensions) for dimensions in (1, 2, 3)},
    **{f"deform_conv2d_{of}_grad": slope(of) for of in ("input", "offset", "weight", "mask")},
    "dcnv3": (
        functools.partial(jax_dcn.dcnv3, kernel_size=3, padding=1, groups=2),
        normal(1, 4, 5, 4),
        normal(1, 4, 5, 36),
        normal(1, 4, 5, 18),
    ),
    "as_deform_conv": (
        functools.partial(jax_dcn.as_deform_conv, kernel_size=3),
        normal(1, 4, 5, 36),
        normal(1, 4, 5, 18),
    ),
    "roi_align": pooling("roi_align"),
    "ps_roi_align": pooling("ps_roi_align"),
    "psroi_pool": pooling("psroi_pool", group_size=2),
    "deform_roi_pool": (*pooling("deform_roi_pool"), normal(3, 2, 2, 2)),
    "deform_psroi_pool": (*pooling("deform_psroi_pool", group_size=2), normal(3, 2, 2, 2)),
    "multi_scale_deformable_attention": attention(),
    "grid_sample": (jax_dcn.grid_sample, normal(1, 4, 5, 2), normal(1, 3, 3, 2)),
    "map_coordinates": (
        lambda image, *coordinates: jax_dcn.map_coordinates(image, coordinates, order=1),
        normal(4, 5),
        2 + normal(6),
        2 + normal(6),
    ),
    "resize": (functools.partial(jax_dcn.resize, size=(7, 3)), normal(1, 4, 5, 2)),
    "nms": (functools.partial(jax_dcn.nms, iou_threshold=0.3, max_outputs=4), boxes(9), normal(9)),
    "find_peaks": (functools.partial(jax_dcn.find_peaks, count=5, rounds=1), normal(2, 6, 7)),
    "fpn_levels": (functools.partial(jax_dcn.fpn_levels, num_levels=3), boxes(9)),
    "offset_statistics": (
        functools.partial(jax_dcn.offset_statistics, image_size=(4, 5), kernel_size=3),
        normal(1, 4, 5, 18),
    ),
}


def test_each_public_function_is_here():
    functions = {name for name in jax_dcn.__all__ if callable(getattr(jax_dcn, name))}
    assert functions - OTHERS == CALLS.keys()


def in_shard_map(function, *arrays):
    def of_shard(*shards):
        return jax.tree.map(lambda leaf: leaf[None], function(*(shard[0] for shard in shards)))

    mesh = jax.sharding.Mesh(jax.devices()[:EXAMPLES], "examples")
    return jax.shard_map(of_shard, mesh=mesh, in_specs=P("examples"), out_specs=P("examples"))(*arrays)


def in_scan(function, *arrays):
    return jax.lax.scan(lambda carry, each: (carry, function(*each)), None, arrays)[1]


@pytest.mark.parametrize("name", CALLS)
def test_loops_and_shards(name):
    function, *arrays = CALLS[name]

    @jax.jit
    def compute(*arrays):
        each = [function(*(array[index] for array in arrays)) for index in range(EXAMPLES)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    expected = compute(*arrays)
    for wrapped in (in_shard_map, in_scan):
        found = jax.jit(functools.partial(wrapped, function))(*arrays)
        assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with jax.debug_nans(True):
        assert_close(in_scan(function, *arrays), expected, rtol=1e-5, atol=1e-5)
