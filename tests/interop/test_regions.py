"""The branches of PyTorch's deformable RoI pooling packs, computed in their way: NCHW, flattened, split in two."""

import itertools

import jax
import numpy as np
import pytest
from flax import nnx

import jax_dcn
import jax_dcn.nnx
from jax_dcn import interop
from jax_dcn.linen import DeformPSRoIPool

CHANNELS, HIDDEN, STD = 4, 6, 0.1
NAMES = ("weight", "bias")
ROIS = np.array([[0, 3, 2, 20, 17], [1, 0, 5, 9, 23], [0, 8, 8, 30, 12]], np.float32)


def pack(kind, bins):
    """A state dict: of `offset_fc` alone, with `mask_fc`, or of `offset_mask_fc`."""
    random = np.random.default_rng(0)
    count, state = bins[0] * bins[1], {}

    def add(branch, *sizes):
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            state[f"{branch}.{2 * i}.weight"] = random.normal(size=(outputs, inputs)).astype(np.float32) / inputs**0.5
            state[f"{branch}.{2 * i}.bias"] = random.normal(size=outputs).astype(np.float32)

    if kind == "joint":
        add("offset_mask_fc", CHANNELS * count, HIDDEN, HIDDEN, 3 * count)
    else:
        add("offset_fc", CHANNELS * count, HIDDEN, HIDDEN, 2 * count)
    if kind == "separate":
        add("mask_fc", CHANNELS * count, HIDDEN, count)
    return state


def run_pack(state, kind, x, bins):
    """The computation of the pack, except the pooling, with arrays in PyTorch's layout."""

    def pool(offset=None):
        options = dict(output_size=bins, spatial_scale=0.5, data_format="NCHW")
        if offset is None:
            return np.asarray(jax_dcn.psroi_pool(x, ROIS, **options))
        return np.asarray(jax_dcn.deform_psroi_pool(x, ROIS, offset, trans_std=STD, **options))

    def branch(name, features):
        for i in range(0, 6, 2):
            if f"{name}.{i}.weight" in state:
                features = np.maximum(features, 0) if i else features
                features = features @ state[f"{name}.{i}.weight"].T + state[f"{name}.{i}.bias"]
        return features.reshape(len(ROIS), -1, *bins)

    flat = pool().reshape(len(ROIS), -1)
    raw = branch("offset_mask_fc" if kind == "joint" else "offset_fc", flat)
    pooled = pool(raw[:, :2])
    if kind == "offsets":
        return pooled
    logits = raw[:, 2:] if kind == "joint" else branch("mask_fc", flat)
    return pooled / (1 + np.exp(-logits))


@pytest.mark.parametrize("bins, api", [((3, 3), "linen"), ((2, 3), "nnx")])
@pytest.mark.parametrize("kind", ["offsets", "separate", "joint"])
def test_packs(kind, bins, api):
    state = pack(kind, bins)
    x = np.random.default_rng(1).normal(size=(2, CHANNELS, 14, 17)).astype(np.float32)
    expected = run_pack(state, kind, x, bins).transpose(0, 2, 3, 1)
    inputs = x.transpose(0, 2, 3, 1)
    settings = dict(
        offset_branch="fc",
        spatial_scale=0.5,
        trans_std=STD,
        modulated=kind != "offsets",
        hidden_features=2 * HIDDEN if kind == "separate" else HIDDEN,
    )
    output_size = None if bins[0] == bins[1] else bins
    if api == "linen":
        layer = DeformPSRoIPool(bins, **settings)
        like = jax.eval_shape(layer.init, jax.random.key(0), inputs, ROIS)
        filled = interop.from_torch(state, like, output_size=output_size)
        pooled = layer.apply(filled, inputs, ROIS)
    else:
        layer = jax_dcn.nnx.DeformPSRoIPool(CHANNELS, bins, **settings, rngs=nnx.Rngs(0))
        filled = interop.from_torch(state, layer, output_size=output_size)
        pooled = filled(inputs, ROIS)
    np.testing.assert_allclose(pooled, expected, rtol=1e-4, atol=1e-5)

    style = "dcnv2" if kind == "joint" else "mmcv"
    back = interop.to_torch(filled, style=style, output_size=output_size)
    assert back.keys() == state.keys()
    for key, array in back.items():
        np.testing.assert_array_equal(array, state[key])


@pytest.mark.platforms("cpu")
def test_what_cannot_be_converted():
    settings = dict(offset_branch="fc", modulated=True, hidden_features=HIDDEN)
    layer = jax_dcn.nnx.DeformPSRoIPool(CHANNELS, 3, **settings, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="style must be 'dcnv2'"):
        interop.to_torch(layer)
    with pytest.raises(ValueError, match=r"27 outputs does not predict two or three numbers for output_size=\(2, 3\)"):
        interop.to_torch(layer, style="dcnv2", output_size=(2, 3))
    with pytest.raises(ValueError, match=r"'offset_fc.0.bias' has shape .* see the layer's modulated, hidden_features"):
        interop.from_torch(pack("separate", (3, 3)), layer)
    with pytest.raises(ValueError, match=r"missing 'offset_fc.0.bias'"):
        interop.from_torch({}, layer)
    halves = pack("separate", (3, 3))
    del halves["mask_fc.2.bias"]
    with pytest.raises(ValueError, match=r"lacks 'mask_fc.2.bias', but has others of mask_fc"):
        interop.from_torch(halves, layer)
    oblong = jax_dcn.nnx.DeformPSRoIPool(CHANNELS, (2, 3), **settings, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="a branch with 24 inputs does not read the 9 bins of a region"):
        interop.from_torch(pack("joint", (2, 3)), oblong)
    odd = {f"offset_fc.{i}.{name}": np.ones((7, 7) if name == "weight" else 7) for i in (0, 2, 4) for name in NAMES}
    with pytest.raises(ValueError, match=r"7 outputs does not predict .* as many rows as columns of bins \(see"):
        interop.from_torch(odd, layer)
