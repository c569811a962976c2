"""Every public function of arrays, inside a loop and inside `shard_map`, whose carries and shards have types."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_dcn
from tests.helpers.calls import CALLS
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


def is_array(value):
    return all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))


def examples(name, array):
    """Random arrays of the examples, of the shape of this one; the corners of boxes are in order."""
    shape = EXAMPLES, *array.shape
    if name not in ("boxes", "rois"):
        return RANDOM.normal(size=shape).astype(np.float32)
    found = np.sort(RANDOM.uniform(0, 6, shape).astype(np.float32))
    return found if name == "boxes" else found * np.float32([0, 1, 1, 1, 1])


def test_each_public_function_is_here():
    functions = {name for name in jax_dcn.__all__ if callable(getattr(jax_dcn, name))}
    assert functions - OTHERS == CALLS.keys()


def in_shard_map(function, arrays):
    def of_shard(shards):
        result = function(jax.tree.map(operator.itemgetter(0), shards))
        return jax.tree.map(lambda leaf: leaf[None], result)

    mesh = jax.sharding.Mesh(jax.devices()[:EXAMPLES], "examples")
    return jax.shard_map(of_shard, mesh=mesh, in_specs=P("examples"), out_specs=P("examples"))(arrays)


def in_scan(function, arrays):
    return jax.lax.scan(lambda carry, each: (carry, function(each)), None, arrays)[1]


@pytest.mark.parametrize("name", CALLS)
def test_loops_and_shards(name):
    arrays = {key: value for key, value in CALLS[name].items() if is_array(value)}
    others = {key: value for key, value in CALLS[name].items() if key not in arrays}
    arrays = {key: jax.tree.map(functools.partial(examples, key), value) for key, value in arrays.items()}

    def function(arrays):
        return getattr(jax_dcn, name)(**arrays, **others)

    @jax.jit
    def compute(arrays):
        each = [function(jax.tree.map(operator.itemgetter(index), arrays)) for index in range(EXAMPLES)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    expected = compute(arrays)
    for wrapped in (in_shard_map, in_scan):
        assert_close(jax.jit(functools.partial(wrapped, function))(arrays), expected, rtol=1e-5, atol=1e-5)
    with jax.debug_nans(True):
        assert_close(in_scan(function, arrays), expected, rtol=1e-5, atol=1e-5)
