import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import freeze

import jax_dcn
import jax_dcn.linen
import jax_dcn.nnx

X = jax.random.normal(jax.random.key(0), [2, 6, 6, 3])


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3))(x))
        return jax_dcn.linen.DeformConv(2, 3)(x)


@pytest.fixture
def variables():
    return LinenNet().init(jax.random.key(1), X)


LABELS = {
    "Conv_0": {"kernel": "default", "bias": "default"},
    "DeformConv_0": {"kernel": "default", "bias": "default", "conv_offset": {"kernel": "offset", "bias": "offset"}},
}


def test_linen(variables):
    assert jax_dcn.offset_labels(variables["params"]) == LABELS
    assert jax_dcn.offset_labels(variables) == {"params": LABELS}
    assert jax_dcn.offset_labels(freeze(variables["params"])) == freeze(LABELS)


def test_only_a_whole_name_counts():
    labels = jax_dcn.offset_labels({"conv_offset_2": 1, "my_conv_offset": 2, "fc_offset_": 3, "offset": 4})
    assert set(labels.values()) == {"default"}


def test_only_dcnv3_has_a_branch_named_offset():
    """A detection head, such as CenterNet's, has an `offset` too, also beside a layer's branch."""
    head = {"offset": {"kernel": 1}, "wh": {"kernel": 2}, "mask": {"kernel": 3}}
    labels = jax_dcn.offset_labels({"head": head, "dcn": {**head, "dw_norm": {"scale": 4}}})
    assert set(jax.tree.leaves(labels["head"])) == {"default"}
    assert labels["dcn"] == {
        "offset": {"kernel": "offset"},
        "wh": {"kernel": "default"},
        "mask": {"kernel": "default"},
        "dw_norm": {"scale": "default"},
    }


@pytest.mark.parametrize("branch, leaves", [("conv", 2), ("fc", 6)])
def test_all_of_a_pooling_layer_predicts_offsets(branch, leaves):
    x, rois = jnp.ones([1, 8, 8, 4]), jnp.ones([1, 5])
    arguments = {"output_size": 2, "offset_branch": branch, "hidden_features": 3}
    params = jax_dcn.linen.DeformPSRoIPool(**arguments).init(jax.random.key(0), x, rois)
    state = nnx.state(jax_dcn.nnx.DeformPSRoIPool(4, **arguments, rngs=nnx.Rngs(0)), nnx.Param)
    for tree in (params, state):
        assert jax.tree.leaves(jax_dcn.offset_labels(tree)) == ["offset"] * leaves


@pytest.mark.parametrize(
    "name, predicting",
    [("DCNv3", "offset"), ("DCNv4", "offset_mask"), ("MultiScaleDeformableAttention", "sampling_offsets")],
)
def test_one_layer_of_an_aggregation_predicts_offsets(name, predicting):
    state = nnx.state(getattr(jax_dcn.nnx, name)(8, rngs=nnx.Rngs(0)))
    for params in (state, nnx.to_pure_dict(state)):  # of NNX, and as of Linen
        labels = jax_dcn.offset_labels(params)
        assert jax.tree.leaves(labels[predicting]) == ["offset"] * 2
        assert jax.tree.leaves(labels).count("offset") == 2
