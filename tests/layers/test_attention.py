"""What only `MultiScaleDeformableAttention` has: reference points, masks, levels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
import jax_dcn.linen
import jax_dcn.nnx
from tests.helpers.layers import (
    ATTENTION,
    LEVELS,
    QUERIES,
    assert_close,
    both_interfaces,
    linen_layer,
    queries,
    randomized,
)


def locations_of(layer, inputs):
    return layer.apply(layer.params, *inputs, return_sampling=True)[1]


def offsets_of(layer, query):
    """The predicted offsets [..., Q, heads, taps, 2]."""
    dense = layer.params["sampling_offsets"]
    return (query @ dense["kernel"] + dense["bias"]).reshape(*query.shape[:-1], 2, -1, 2)


def random_attention(make, inputs, **arguments):
    layer = make("MultiScaleDeformableAttention", inputs, ATTENTION | arguments, spatial_shapes=LEVELS)
    return layer._replace(params=randomized(layer.params))


@both_interfaces
def test_references_of_points_and_heads(make):
    """As in BEVFormer's spatial attention: each query has anchors, between which the points of each level alternate."""
    anchors, points = 2, 4
    query, _, value = queries()
    pillars = np.random.default_rng(7).uniform(0.2, 0.8, (2, QUERIES, anchors, 2)).astype(np.float32)
    references = jnp.tile(pillars, (1, 1, points // anchors * len(LEVELS), 1))
    layer = random_attention(make, [query, references, value], num_points=points)
    offsets = offsets_of(layer, query) if make is linen_layer else None
    locations = locations_of(layer, [query, references, value])
    if offsets is not None:
        by_anchor = offsets.reshape(2, QUERIES, 2, len(LEVELS), points // anchors, anchors, 2)
        sizes = np.array(LEVELS)[:, ::-1].reshape(-1, 1, 1, 2)
        expected = pillars[:, :, None, None, None] + by_anchor / sizes
        assert_close(locations, expected.reshape(locations.shape))
    of_heads = jnp.stack([references, references + 0.1], 2)
    both = locations_of(layer, [query, of_heads, value])
    assert_close(both[:, :, 0], locations[:, :, 0])
    assert_close(both[:, :, 1], locations[:, :, 1] + 0.1)


@both_interfaces
def test_locations_of_the_caller(make):
    """Without offsets, the reference points are the sampling locations, and have gradients."""
    query, _, value = queries()
    locations = jnp.asarray(np.random.default_rng(8).uniform(0, 1, (2, QUERIES, 2, 8, 2)), jnp.float32)
    layer = random_attention(make, [query, locations, value], num_points=4, use_offsets=False)
    assert "sampling_offsets" not in layer.params
    y, sampled, weights = layer.apply(layer.params, query, locations, value, return_sampling=True)
    np.testing.assert_array_equal(sampled, locations)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    gradient = jax.grad(lambda locations: layer.apply(layer.params, query, locations, value).sum())(locations)
    assert np.isfinite(gradient).all() and np.any(gradient)
    shared = locations[:, :, :1]
    y = layer.apply(layer.params, query, jnp.broadcast_to(shared, locations.shape), value)
    assert_close(layer.apply(layer.params, query, shared[:, :, 0], value), y)
    with pytest.raises(ValueError, match=r"reference_points must have shape .* with n = .*, got \(2, 4, 2, 8, 4\)"):
        layer.apply(layer.params, query, jnp.tile(locations, 2), value)


def test_float64_references_do_not_widen_the_computation():
    with jax.enable_x64(True):
        query, references, value = queries()
        inputs = [query, references.astype(jnp.float64), value]
        layer = random_attention(linen_layer, inputs, dtype="bfloat16", return_sampling=True)
        y, locations, weights = layer.apply(layer.params, *inputs)
        assert (y.dtype, locations.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
        traced = jax.jit(layer.apply).lower(layer.params, *inputs).as_text()
        operands = next(line for line in traced.splitlines() if "dcn_aggregate" in line)
        assert "xbf16>" in operands and "xf64>" not in operands


def test_numbers_of_points_may_be_of_any_kind():
    inputs = queries()
    layer = random_attention(linen_layer, inputs)
    expected = layer.apply(layer.params, *inputs)
    for points in ((3, 3), [np.int32(3)] * 2, np.array([3, 3]), np.int64(3)):
        other = random_attention(linen_layer, inputs, num_points=points)
        np.testing.assert_array_equal(other.apply(layer.params, *inputs), expected)
    for points in ([3, 3], np.int64(3)):
        hash(jax_dcn.linen.MultiScaleDeformableAttention(8, 2, 2, points, spatial_shapes=[[5, 6], np.array([3, 2])]))


@both_interfaces
def test_levels_as_an_attribute(make):
    inputs = queries()
    layer = random_attention(make, inputs)
    other = make("MultiScaleDeformableAttention", inputs, ATTENTION | {"spatial_shapes": np.array(LEVELS)})
    expected = layer.apply(layer.params, *inputs)
    np.testing.assert_array_equal(other.apply(layer.params, *inputs), expected)
    rows = make("MultiScaleDeformableAttention", inputs, ATTENTION | {"spatial_shapes": ((1, 34), (1, 2))})
    np.testing.assert_array_equal(rows.apply(layer.params, *inputs, spatial_shapes=LEVELS), expected)
    with pytest.raises(ValueError, match=r"spatial_shapes must be .* got None"):
        layer.apply(layer.params, *inputs, spatial_shapes=None)
