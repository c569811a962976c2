"""Results around 32 MiB, from which on the CPU kernels request large pages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn

WIDTH, CHANNELS = 128, 64  # rows of 32 KiB
POOLINGS = {
    "mean": jax_dcn.roi_align,
    "max": functools.partial(jax_dcn.roi_align, mode="max"),
    "position-sensitive": jax_dcn.ps_roi_align,
}


@functools.partial(jax.jit, static_argnames="name")
def input_cotangent(x, rois, name):
    def pool(x):
        return POOLINGS[name](x, rois, output_size=2, spatial_scale=1.0, sampling_ratio=2)

    pooled, pullback = jax.vjp(pool, x)
    return pullback(jnp.cos(jnp.arange(pooled.size, dtype=jnp.float32)).reshape(pooled.shape))[0]


@pytest.mark.parametrize(
    "name, height", [("mean", 511), ("mean", 512), ("mean", 513), ("max", 513), ("position-sensitive", 513)]
)
def test_input_cotangent_of_any_size_is_exact(name, height):
    """The cotangent of two images, which has about 32 MiB, consists of those of each image, which are smaller."""
    random = np.random.default_rng(height)
    corner = random.uniform(0, 0.7, (12, 2)) * [WIDTH, height]
    boxes = np.concatenate([corner, corner + random.uniform(1, 40, (12, 2))], 1)
    image = np.arange(12)[:, None] % 2
    rois = jnp.asarray(np.concatenate([image, boxes], 1), jnp.float32)
    x = jnp.asarray(random.standard_normal((2, height, WIDTH, CHANNELS), np.float32))
    d_x = input_cotangent(x, rois, name)
    for i in range(2):
        outside = rois.at[:, 0].set(jnp.where(rois[:, 0] == i, 0, -1))
        np.testing.assert_array_equal(d_x[i], input_cotangent(x[i : i + 1], outside, name)[0])
