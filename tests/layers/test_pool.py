"""`DeformPSRoIPool` in Linen and NNX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jax_dcn
import jax_dcn.linen
import jax_dcn.nnx
from tests.helpers.layers import (
    BINS,
    FEATURES,
    MOVES,
    POOLING,
    SAMPLING,
    SCORES,
    assert_close,
    both_interfaces,
    linen_layer,
    normal,
    scores_and_regions,
)

ARGUMENTS = POOLING | {"modulated": False}
X, ROIS, READ = scores_and_regions()
OFFSET = normal(4, (6, 2, 3, 6))
both_branches = pytest.mark.parametrize("branch", ["conv", "fc"])


def pool_layer(make, inputs, **arguments):
    """Most of these tests are about layers without masks."""
    return make("DeformPSRoIPool", inputs, ARGUMENTS | arguments)


def deforming(layer):
    """The layer with random parameters instead of zeros."""
    return layer._replace(params=jax.tree.map(lambda leaf: 0.3 * normal(leaf.ndim, leaf.shape), layer.params))


def times_mask_of_parts(pooled, mask):
    """Each bin is multiplied by the mask of its part and class."""
    of = (np.arange(bins) * parts // bins for bins, parts in zip(pooled.shape[1:], mask.shape[1:], strict=True))
    return pooled * mask[:, *np.ix_(*of)]


@both_interfaces
@pytest.mark.parametrize("modulated, numbers", [(False, 2), (True, 3)])
def test_parameters(make, modulated, numbers):
    outputs = numbers * 3 * 2 * 3
    conv = pool_layer(make, scores_and_regions("conv"), modulated=modulated).params
    assert jax.tree.map(jnp.shape, conv) == {"conv_offset": {"kernel": (1, 1, FEATURES, outputs), "bias": (outputs,)}}
    options = {"offset_branch": "fc", "modulated": modulated, "kernel_init": nn.initializers.constant(0.5)}
    fc = pool_layer(make, scores_and_regions("fc"), **options).params["fc_offset"]
    assert jax.tree.map(jnp.shape, fc) == {
        "layers_0": {"kernel": (5 * 4 * 6, 8), "bias": (8,)},
        "layers_2": {"kernel": (8, 8), "bias": (8,)},
        "layers_4": {"kernel": (8, outputs), "bias": (outputs,)},
    }
    assert all((fc[name]["kernel"] == 0.5).all() for name in ("layers_0", "layers_2"))
    assert not any(leaf.any() for leaf in jax.tree.leaves([conv, fc["layers_4"]]))


@both_branches
@pytest.mark.parametrize("arguments", [{}, {"modulated": True, "mask_scale": 2.0}], ids=str)
def test_a_new_layer_pools_plainly(branch, arguments):
    inputs = scores_and_regions(branch)
    layer = pool_layer(linen_layer, inputs, offset_branch=branch, **arguments)
    assert_close(layer.apply(layer.params, *inputs), jax_dcn.psroi_pool(*inputs[:2], **BINS))


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("given", [True, False], ids=["features", "x"])
def test_conv_branch(modulated, given):
    """The first 2·classes features pooled from the convolution's maps are the offset, the rest the mask's logits."""
    inputs = scores_and_regions("conv" if given else "fc")
    layer = deforming(pool_layer(linen_layer, inputs, modulated=modulated, mask_scale=3.0))
    pooled, offset, mask = jax.jit(partial(layer.apply, return_offsets=True))(layer.params, *inputs)

    x, rois, *features = inputs
    conv = layer.params["conv_offset"]
    maps = jnp.einsum("nhwi,io->nhwo", *features or [x], conv["kernel"][0, 0]) + conv["bias"]
    raw = jax_dcn.psroi_pool(maps, rois, output_size=(2, 3), group_size=(2, 3), **SAMPLING)
    assert jnp.abs(raw[..., :6]).max() > 0.3
    assert_close(offset, raw[..., :6])
    expected = jax_dcn.deform_psroi_pool(*inputs[:2], offset, **BINS, **MOVES)
    if modulated:
        assert raw.shape[-1] == 9
        assert_close(mask, 3 / (1 + jnp.exp(-raw[..., 6:])))
        expected = times_mask_of_parts(expected, mask)
    else:
        assert raw.shape[-1] == 6 and mask is None
    assert_close(pooled, expected)


@both_branches
def test_parts_are_the_bins_by_default(branch):
    inputs = scores_and_regions(branch)
    layer = pool_layer(linen_layer, inputs, offset_branch=branch, part_size=None, classes=1, return_offsets=True)
    assert layer.apply(layer.params, *inputs)[1].shape == (6, 5, 4, 2)
    assert layer.apply(layer.params, *inputs, return_offsets=False).shape == (6, 5, 4, 6)


def test_linen_with_offsets_from_outside():
    x, rois, features = scores_and_regions("conv")
    for branch in ("conv", "fc"):
        layer = jax_dcn.linen.DeformPSRoIPool(**POOLING, offset_branch=branch)
        assert not layer.init(jax.random.key(0), x, rois, offset=OFFSET)
        check_given_offsets(partial(layer.apply, {}), x, rois)
    pooled = jax_dcn.linen.DeformPSRoIPool(**ARGUMENTS).apply({}, x, rois, features, OFFSET)
    np.testing.assert_array_equal(pooled, jax_dcn.deform_psroi_pool(x, rois, OFFSET, **BINS, **MOVES))


@both_branches
def test_nnx_with_offsets_from_outside(branch):
    x, rois = scores_and_regions("fc")
    layer = jax_dcn.nnx.DeformPSRoIPool(SCORES, **POOLING, offset_branch=branch, rngs=nnx.Rngs(0))
    nnx.update(layer, jax.tree.map(lambda leaf: 0.3 * normal(leaf.ndim, leaf.shape), nnx.state(layer)))
    check_given_offsets(layer, x, rois)
    layer.conv_offset = layer.fc_offset = None
    assert not jax.tree.leaves(nnx.state(layer))
    check_given_offsets(layer, x, rois)
    with pytest.raises(ValueError, match=f"offset must be given to a layer whose {branch}_offset is None"):
        layer(x, rois)


def check_given_offsets(apply, x, rois):
    mask, expected = normal(5, (6, 2, 3, 3)), jax_dcn.deform_psroi_pool(x, rois, OFFSET, **BINS, **MOVES)
    pooled, used_offset, used_mask = apply(x, rois, offset=OFFSET, return_offsets=True)
    np.testing.assert_array_equal(pooled, expected)
    np.testing.assert_array_equal(used_offset, OFFSET)
    assert used_mask is None
    assert_close(apply(x, rois, offset=OFFSET, mask=mask), times_mask_of_parts(expected, mask))


@both_branches
@pytest.mark.parametrize("padding", [[-1, 2, 2, 9, 9], [-1, jnp.nan, jnp.inf, 0, 0]], ids=str)
def test_padding(branch, padding):
    """A padding region gives zeros, and does not change any gradient."""
    x, rois, *features = scores_and_regions(branch)
    options = {"offset_branch": branch, "modulated": True, "return_offsets": True}
    layer = deforming(pool_layer(linen_layer, [x, rois, *features], **options))

    @jax.jit
    def run(rois):
        def loss(params, x, *features):
            pooled, offset, mask = layer.apply(params, x, rois, *features)
            return jnp.sin(pooled).sum(), (pooled, offset, mask)

        arguments = layer.params, x, *features
        return jax.grad(loss, range(len(arguments)), has_aux=True)(*arguments)

    gradients, (pooled, offset, mask) = run(rois.at[2].set(jnp.array(padding)))
    assert not pooled[2].any()
    assert jnp.isfinite(offset).all() and jnp.isfinite(mask).all()
    if branch == "conv":
        assert not offset[2].any()
    expected, _ = run(jnp.delete(rois, 2, 0, assume_unique_indices=True))
    assert_close(gradients, expected, 1e-4)


def test_nnx_knows_its_number_of_features():
    x, rois, features = scores_and_regions("conv")
    layer = jax_dcn.nnx.DeformPSRoIPool(FEATURES, **ARGUMENTS, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="x must have in_features=7 channels, got 36"):
        layer(x, rois)
    with pytest.raises(ValueError, match="features must have in_features=7 channels, got 6"):
        layer(x, rois, features[..., :6])
    layer = jax_dcn.nnx.DeformPSRoIPool(SCORES, **ARGUMENTS, offset_branch="fc", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="x must have in_features=36 channels, got 18"):
        layer(x[..., :18], rois)
