"""All layers in both interfaces, and their inputs."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_dcn
import jax_dcn.linen
import jax_dcn.nnx

LEVELS = ((5, 6), (3, 2))
PIXELS, QUERIES, CHANNELS = 36, 4, 8
ATTENTION = {"features": CHANNELS, "num_heads": 2, "num_levels": 2, "num_points": 3}
CONVOLUTION = {"groups": 2}
SAMPLING = {"spatial_scale": 0.5, "sample_per_part": (3, 2)}
# 6 features, a group size of 3 x 2, bins that are neither square nor as many as the parts
BINS = {"output_size": (5, 4), "group_size": (3, 2), **SAMPLING}
MOVES = {"part_size": (2, 3), "trans_std": 0.2}
POOLING = {**BINS, **MOVES, "classes": 3, "hidden_features": 8, "modulated": True}
FEATURES, SCORES = 7, 36


class Layer(NamedTuple):
    """A Linen or NNX layer as a function of its parameters, with the names of Linen."""

    params: dict
    apply: Callable


def linen_layer(name, inputs, arguments, **options):
    """`options` are those of a call, such as spatial_shapes."""
    layer = getattr(jax_dcn.linen, name)(**arguments)
    params = jax.jit(partial(layer.init, **options))(jax.random.key(0), *inputs).get("params", {})
    return Layer(params, lambda params, *inputs, **more: layer.apply({"params": params}, *inputs, **options | more))


def nnx_layer(name, inputs, arguments, **options):
    graphdef, state = nnx.split(nnx_module(name, inputs, **arguments))

    def apply(params, *inputs, **more):
        if "fc_offset" in params:
            layers = {int(name.removeprefix("layers_")): dense for name, dense in params["fc_offset"].items()}
            params = {"fc_offset": {"layers": layers}}
        return nnx.merge(graphdef, params)(*inputs, **options | more)

    params = nnx.to_pure_dict(state)
    if "fc_offset" in params:
        params = {"fc_offset": {f"layers_{i}": dense for i, dense in params["fc_offset"]["layers"].items()}}
    return Layer(params, apply)


def nnx_module(name, inputs, **arguments):
    """The layer of NNX, which also takes the numbers of channels."""
    if name == "DeformConv":
        arguments = {"in_features": inputs[0].shape[-1], "out_features": arguments.pop("features"), **arguments}
    elif name == "DeformPSRoIPool":
        arguments["in_features"] = inputs[2 if len(inputs) > 2 else 0].shape[-1]
    else:
        arguments.setdefault("features", inputs[0].shape[-1])
    return getattr(jax_dcn.nnx, name)(**arguments, rngs=nnx.Rngs(0))


INTERFACES = (linen_layer, nnx_layer)
both_interfaces = pytest.mark.parametrize("make", INTERFACES, ids=["linen", "nnx"])


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def queries(lead=(2,), coordinates=2, levels=2):
    """query, reference points and value."""
    references = np.random.default_rng(2).uniform(0.1, 0.6, (*lead, QUERIES, levels, coordinates))
    return [
        normal(1, (*lead, QUERIES, CHANNELS)),
        jnp.asarray(references, jnp.float32),
        normal(3, (*lead, PIXELS, CHANNELS)),
    ]


def image(lead=(2,), dtype=jnp.float32):
    return [normal(1, (*lead, 5, 6, CHANNELS), dtype)]


def scores_and_regions(branch="conv", lead=(), dtype=jnp.float32):
    """x, six regions, some of which reach outside, and, for the convolution, the features that it reads."""
    random = np.random.default_rng(3)
    corner = random.uniform(-4, 10, size=(*lead, 6, 2))
    size = random.uniform(2, 12, size=(*lead, 6, 2))
    rois = np.concatenate([random.integers(0, 2, (*lead, 6, 1)), corner, corner + size], -1)
    channels = (SCORES, FEATURES) if branch == "conv" else (SCORES,)
    x, *features = (normal(count, (*lead, 2, 9, 8, count), dtype) for count in channels)
    return [x, jnp.asarray(rois, dtype), *features]


def problem(name, lead=None, **arguments):
    """The inputs, arguments and options of a layer of this name."""
    if name == "MultiScaleDeformableAttention":
        return queries(lead or (2,)), ATTENTION | arguments, {"spatial_shapes": LEVELS}
    if name == "DeformPSRoIPool":
        return scores_and_regions(arguments.get("offset_branch", "conv"), lead or ()), POOLING | arguments, {}
    own = {"features": CHANNELS, "kernel_size": 3} if name == "DeformConv" else CONVOLUTION
    return image(lead or (2,)), own | arguments, {}


def build(make, name, **arguments):
    inputs, arguments, options = problem(name, **arguments)
    return make(name, inputs, arguments, **options), inputs


def returning(name):
    """The option with which a layer also returns what it predicts."""
    return {"return_sampling" if name == "MultiScaleDeformableAttention" else "return_offsets": True}


def randomized(params, scale=0.3):
    """The parameters with random numbers added, because those of a new layer are zeros in part."""
    return jax.tree.map(lambda leaf: leaf + scale * normal(leaf.size, leaf.shape, leaf.dtype), params)


def assert_close(actual, expected, tolerance=1e-5):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), actual, expected)
