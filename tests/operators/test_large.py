"""Arrays of more than 2^32 elements on a GPU: the last place has the value that it has alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jax_dcn


def convolution(x, offset):
    weight = np.random.default_rng(0).uniform(size=(1, 1, x.shape[-1], 2))
    return jax_dcn.deform_conv2d(x, offset, jnp.asarray(weight, x.dtype))


def rows(x, offset):
    """A convolution of one image [rows, columns, channels]."""
    return convolution(x[None], offset[None])[0]


def attention(value, locations, weights):
    return jax_dcn.multi_scale_deformable_attention(value, locations, weights, spatial_shapes=((1, 1),))


def regions(x, offset):
    rois = jnp.broadcast_to(jnp.array([0.0, 0, 0, 1, 1]), (len(x), 1, 5))
    return jax_dcn.deform_psroi_pool(x, rois, offset, output_size=1)


# A function of arrays with one batch dimension, and the shapes of an element of each.
CASES = {
    "rows": (rows, (2**22, 256), (2**22, 2)),
    "images": (convolution, (1, 1, 4096), (1, 1, 2)),
    "attention": (attention, (1, 1, 4096), (1, 1, 1, 1, 2), (1, 1, 1, 1)),
    "regions": (regions, (1, 2, 2, 1024), (1, 1, 1, 2)),
    "samples": (jax_dcn.grid_sample, (1, 1, 4096), (1, 1, 2)),
}


def compare_last(name, elements):
    """Compares value, gradients and tangent of the last place with those of a batch of one; all others are zero."""
    function, *shapes = CASES[name]
    random = np.random.default_rng(0)
    types = ["bfloat16", *["float32"] * (len(shapes) - 1)]
    last = [jnp.asarray(random.uniform(0.3, 0.7, shape), dtype) for shape, dtype in zip(shapes, types, strict=True)]

    @functools.partial(jax.jit, static_argnums=0)
    def results(count, *last):
        def repeated(array):
            return jnp.zeros((count, *array.shape), array.dtype).at[-1].set(array)

        operands = [*map(repeated, last)]
        y, pullback = jax.vjp(function, *operands)
        tangent = jax.jvp(function, operands, operands)[1]
        return [array[-1] for array in (y, tangent, *pullback(repeated(jnp.ones(y.shape[1:], y.dtype))))]

    found, expected = (results(count, *last) for count in (elements // last[0].size + 1, 1))
    for one, like in zip(found, expected, strict=True):
        one, like = np.float32(one), np.float32(like)
        assert np.any(like)
        assert_allclose(one, like, rtol=2**-6, atol=2**-6 * abs(like).max())


@pytest.mark.thorough
@pytest.mark.platforms("cuda")
@pytest.mark.parametrize("name", CASES)
def test_the_last_place(name):
    compare_last(name, 2**32)
