"""`MultiScaleDeformableAttention`, `DCNv3` and `DCNv4`, compared with their originals, and their weights."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn import interop
from tests.helpers.layers import assert_close, both_interfaces, build, linen_layer

GOLDEN = pathlib.Path(__file__).parents[1] / "golden/aggregation/layers"
GOLDEN_CASES = {
    "deformable_detr_2d": ("MultiScaleDeformableAttention", {"num_heads": 4, "num_points": 2}),
    "rt_detr_v2_default": ("MultiScaleDeformableAttention", {"num_heads": 2, "num_points": 4, "offset_scale": 0.5}),
    "d_fine_uneven": (
        "MultiScaleDeformableAttention",
        {"num_heads": 2, "num_points": (3, 6, 3), "offset_scale": 0.5, "use_projections": False},
    ),
    "internimage_dcnv3_all": (
        "DCNv3",
        {
            "dw_kernel_size": 5,
            "groups": 4,
            "offset_scale": 2.0,
            "center_feature_scale": True,
            "remove_center": True,
            "activation": jax.nn.silu,
        },
    ),
    "dcnv4": ("DCNv4", {"groups": 2}),
}


def read_golden(case, dtype):
    """(inputs by name, options, cotangent, result, gradients of the inputs, state dict, its gradients)."""
    with np.load(GOLDEN / f"{case}.npz") as file:
        arrays = dict(file)
    meta = json.loads(str(arrays.pop("meta")))
    padding_mask = arrays.pop("mask", None)
    state, gradients = ({}, {})
    for key in list(arrays):
        for prefix, found in (("state/", state), ("gstate/", gradients)):
            if key.startswith(prefix):
                found[key.removeprefix(prefix)] = arrays.pop(key).astype(dtype)
    if "image" in meta:  # DCNv4 has the pixels of an image in one dimension
        arrays = {key: array.reshape(-1, *meta["image"], array.shape[-1]) for key, array in arrays.items()}
    arrays = {key: array.astype(dtype) for key, array in arrays.items()}
    result, cotangent = arrays.pop("y"), arrays.pop("gy")
    inputs = {key: array for key, array in arrays.items() if f"g{key}" in arrays}
    options = {}
    if "spatial_shapes" in meta:
        options = {"spatial_shapes": meta["spatial_shapes"], "padding_mask": padding_mask}
    return inputs, options, cotangent, result, {key: arrays[f"g{key}"] for key in inputs}, state, gradients


def positional(inputs):
    """The arguments of a layer, from inputs by the names of the golden files."""
    if "x" in inputs:
        return [inputs["x"]]
    query = inputs["hidden_states"] + inputs.get("position_embeddings", 0)
    return [query, inputs["reference_points"], inputs["encoder_hidden_states"]]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden_files(case, dtype):
    with jax.enable_x64(dtype == "float64"):
        inputs, options, cotangent, result, gradients, state, state_gradients = read_golden(case, dtype)
        name, arguments = GOLDEN_CASES[case]
        if name == "MultiScaleDeformableAttention":
            arguments = {"features": 16, "num_levels": 3, **arguments}
        layer = linen_layer(name, positional(inputs), {**arguments, "param_dtype": dtype}, **options)
        params = interop.from_torch(state, layer.params)

        @jax.jit
        def run(params, inputs, cotangent):
            y, pullback = jax.vjp(lambda params, inputs: layer.apply(params, *positional(inputs)), params, inputs)
            return y, *pullback(cotangent)

        y, of_params, of_inputs = run(params, inputs, cotangent)
    tolerance = {"float64": 1e-10, "float32": 1e-4}[dtype]
    assert_close(y, result, tolerance)
    assert_close(of_inputs, gradients, tolerance)
    # The files have these gradients in float32.
    assert_close(interop.to_torch(of_params), state_gradients, max(tolerance, 3e-7))


RINGS = {
    "heads8_levels4_points4": (8, 4, 4),
    "heads8_levels1_points4": (8, 1, 4),
    "heads6_levels2_points3": (6, 2, 3),
    "heads2_levels3_points4": (2, 3, 4),
    "heads1_levels1_points2": (1, 1, 2),
    "uneven_heads4_points3_6_3": (4, 3, (3, 6, 3)),
}


@pytest.mark.parametrize("name", RINGS)
def test_a_new_attention_samples_on_rays(name):
    with np.load(GOLDEN / "init_ring.npz") as file:
        expected = file[name].ravel()
    heads, levels, points = RINGS[name]
    inputs = [jnp.ones((1, heads)), jnp.ones((1, 1, 2)), jnp.ones((levels, heads))]
    arguments = {"features": heads, "num_heads": heads, "num_levels": levels, "num_points": points}
    shapes = {"spatial_shapes": ((1, 1),) * levels}
    params = linen_layer("MultiScaleDeformableAttention", inputs, arguments, **shapes).params
    # With six heads, PyTorch's sine of one direction is an ulp away from NumPy's.
    np.testing.assert_array_max_ulp(np.asarray(params["sampling_offsets"]["bias"]), expected, heads == 6)


@both_interfaces
def test_which_parameters_start_at_zero(make):
    """The golden files have the names and shapes of all parameters."""
    options = {"kernel_size": (3, 5), "dw_kernel_size": 1, "center_feature_scale": True, "remove_center": True}
    attention, _ = build(make, "MultiScaleDeformableAttention", num_points=(3, 1))
    dcnv3, _ = build(make, "DCNv3", **options)
    dcnv4, _ = build(make, "DCNv4", **options, output_bias=False)
    assert dcnv4.params["offset_mask"]["bias"].shape == (88,)  # 2 · 14 · 3 = 84, and 4 of padding
    zero = {"attention_weights", "offset", "mask", "offset_mask", "center_feature_scale_proj"}
    for params in (attention.params, dcnv3.params, dcnv4.params):
        for name, dense in params.items():
            if "kernel" in dense:
                assert bool(dense["kernel"].any()) is (name not in {*zero, "sampling_offsets"}), name
    bare, _ = build(make, "DCNv4", use_projections=False)
    assert set(bare.params) == {"offset_mask"}


def test_the_depthwise_convolution_begins_like_pytorchs():
    """Uniform in ±1/sqrt(taps), kernel and bias."""
    params = build(linen_layer, "DCNv3", dw_kernel_size=7)[0].params["dw_conv"]
    for leaf in params.values():
        assert 0.5 / 7 < abs(leaf).max() <= 1 / 7 + 1e-7
        assert leaf.min() < 0 < leaf.max()


def test_new_layers():
    layer, (x,) = build(linen_layer, "DCNv3")
    plain = {"offset": jnp.zeros((2, 5, 6, 36)), "mask": jnp.full((2, 5, 6, 18), 1 / 9)}

    def projected(name, x):
        return x @ layer.params[name]["kernel"] + layer.params[name]["bias"]

    mean = jax_dcn.dcnv3(projected("input_proj", x), **plain, kernel_size=3, padding=1, groups=2)
    assert_close(layer.apply(layer.params, x), projected("output_proj", mean))
    layer, (x,) = build(linen_layer, "DCNv4")
    assert not layer.apply(layer.params, x).any()
    gradient = jax.jit(jax.grad(lambda params: (layer.apply(params, x) - 1).sum()))(layer.params)
    learning = {(name, leaf) for name, dense in gradient.items() for leaf in dense if dense[leaf].any()}
    assert learning == {("offset_mask", "kernel"), ("offset_mask", "bias"), ("output_proj", "bias")}
    layer, inputs = build(linen_layer, "MultiScaleDeformableAttention", return_sampling=True)
    _, _, weights = layer.apply(layer.params, *inputs)
    np.testing.assert_allclose(weights, 1 / 6, rtol=1e-6)


def test_only_dcnv3_has_dcnv3s_names():
    """A module of a user that has a dw_conv and a dw_norm keeps its names."""
    block = {"block": {"dw_conv": {"kernel": np.ones((3, 3, 1, 8))}, "dw_norm": {"scale": np.ones(8)}}}
    assert sorted(interop.to_torch(block)) == ["block.dw_conv.weight", "block.dw_norm.weight"]
    other = {"head": {"center_feature_scale_proj": {"kernel": np.ones((8, 2))}}}
    assert list(interop.to_torch(other)) == ["head.center_feature_scale_proj.weight"]


def test_constants_of_other_libraries_are_ignored_by_their_whole_names():
    params = build(linen_layer, "MultiScaleDeformableAttention")[0].params
    state = interop.to_torch(params, module="a.b")
    buffers = {"a.b.n_points_scale": np.ones(6), "a.b.num_points_scale": np.ones(6)}
    assert_close(interop.from_torch(state | buffers, params, module="a.b"), params, 0)
    with pytest.raises(ValueError, match="unexpected 'my_n_points_scale'"):
        interop.from_torch(interop.to_torch(params) | {"my_n_points_scale": np.ones(6)}, params)
