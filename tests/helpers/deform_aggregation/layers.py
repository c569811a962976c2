"""The layers of deformable aggregation in both interfaces, and their inputs."""

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


class Layer(NamedTuple):
    """A Linen or NNX layer as a function of its parameters, with the same names."""

    params: dict
    apply: Callable


def linen_layer(name, inputs, arguments, **options):
    """`options` are those of a call, such as spatial_shapes."""
    layer = getattr(jax_dcn.linen, name)(**arguments)
    params = layer.init(jax.random.key(0), *inputs, **options)["params"]
    return Layer(params, lambda params, *inputs, **more: layer.apply({"params": params}, *inputs, **options | more))


def nnx_layer(name, inputs, arguments, **options):
    features = {} if "features" in arguments else {"features": inputs[0].shape[-1]}
    graphdef, state = nnx.split(getattr(jax_dcn.nnx, name)(**features, **arguments, rngs=nnx.Rngs(0)))

    def apply(params, *inputs, **more):
        return nnx.merge(graphdef, params)(*inputs, **options | more)

    return Layer(nnx.to_pure_dict(state), apply)


both_interfaces = pytest.mark.parametrize("make", [linen_layer, nnx_layer], ids=["linen", "nnx"])
INTERFACES = (linen_layer, nnx_layer)


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


def problem(name, **arguments):
    """The inputs, arguments and options of a layer of this name."""
    if name == "MultiScaleDeformableAttention":
        return queries(), ATTENTION | arguments, {"spatial_shapes": LEVELS}
    return image(), CONVOLUTION | arguments, {}


def build(make, name, **arguments):
    inputs, arguments, options = problem(name, **arguments)
    return make(name, inputs, arguments, **options), inputs


def randomized(params, scale=0.3):
    return jax.tree.map(lambda leaf: leaf + scale * normal(leaf.size, leaf.shape, leaf.dtype), params)


def assert_close(actual, expected, tolerance=1e-5):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), actual, expected)
