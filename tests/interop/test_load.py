"""Checkpoint files."""

import pickle
import re

import ml_dtypes
import numpy as np
import pytest

from jax_dcn import interop
from tests.helpers.checkpoints import assert_refused, assert_same

pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture
def arrays():
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    return {"conv.weight": weight, "conv.bias": weight[0].astype(ml_dtypes.bfloat16)}


def test_safetensors(arrays, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file(arrays, tmp_path / "weights.safetensors")
    assert_same(interop.load(tmp_path / "weights.safetensors"), arrays)


def test_npz(arrays, tmp_path):
    del arrays["conv.bias"]  # a type that NumPy files do not support
    np.savez(tmp_path / "weights.npz", **arrays)
    assert_same(interop.load(str(tmp_path / "weights.npz")), arrays)


def test_pickles(arrays, tmp_path):
    """Files of Detectron2, which contain a second state dict."""
    content = {"model": arrays, "averaged": {"conv.weight": 2 * arrays["conv.weight"]}, "best": np.ones(1)}
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(content))
    assert_refused(r"may hold code.* pass weights_only=False", path)
    assert_same(interop.load(path, weights_only=False), arrays)
    assert_same(interop.load(path, key="averaged", weights_only=False), content["averaged"])
    assert_refused(r"key must be one of \['model', 'averaged'\].* got 'best'", path, key="best", weights_only=False)
    path.write_bytes(pickle.dumps({"ema": arrays}))
    assert_refused(r"holds no arrays by name; key may be one of \['ema'\]", path, weights_only=False)


def test_nested_state_dicts(arrays, tmp_path):
    """A key with dots reaches any of them, and an error lists them all."""
    path = tmp_path / "model.pkl"
    inner = {"model": {"state_dict": arrays}, "ema": {"module": arrays, "updates": 9}, 3: {"optimizer": arrays}}
    path.write_bytes(pickle.dumps(inner))
    for key in ("model.state_dict", "ema.module"):
        assert_same(interop.load(path, key=key, weights_only=False), arrays)
    candidates = r"one of \['model.state_dict', 'ema.module'\]; RT-DETR and D-FINE evaluate 'ema.module'"
    for key, message in ((None, "holds no arrays by name; key may be "), ("ema.x", "key must be ")):
        assert_refused(message + candidates, path, key=key, weights_only=False)


def test_keys_with_dots_in_their_names(arrays, tmp_path):
    """A mapping is found at any depth, one that contains itself is no trap, and two of one name are not confused."""
    path = tmp_path / "model.pkl"
    content = {"a": {"b": {"c": {"d": {"e": {"f": arrays}}}}}, "model": arrays}
    content["a"]["itself"] = content["a"]
    path.write_bytes(pickle.dumps(content))
    assert_same(interop.load(path, key="a.b.c.d.e.f", weights_only=False), arrays)
    assert_same(interop.load(path, weights_only=False), arrays)
    path.write_bytes(pickle.dumps({"ema.module": arrays, "ema": {"module": {"x": np.ones(1)}}}))
    message = r"key must name one mapping in .*, got 'ema.module', which names several"
    assert_refused(message, path, key="ema.module", weights_only=False)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (lambda one: {"state_dict": {"head": one, "backbone": {"conv": one}}}, "backbone"),
        (lambda one: {"head": one, "parts": {0: [one]}}, "parts"),
        (lambda one: {"head": one, "parts": [[[[[[[one]]]]]]]}, "parts"),
        (lambda one: {"model": {"head": one, "levels": [one, one]}}, "levels"),
    ],
)
def test_arrays_inside_what_lies_beside_arrays(content, named, tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(content(np.ones(2))))
    message = rf"{named!r} in .*model.pkl' lies among arrays and holds arrays itself, .*; key may be one of \["
    assert_refused(message, path, weights_only=False)


OTHER_ARRAYS = {
    "params_ema": ({"params": 1, "params_ema": 2}, "'params_ema'.*BasicSR evaluate 'params_ema'"),
    "ema": ({"model": 1, "ema": {"module": 2}}, "'ema'.*RT-DETR and D-FINE evaluate 'ema.module'"),
    "timm": ({"state_dict": 1, "state_dict_ema": 2}, "'state_dict_ema'.*timm evaluate 'state_dict_ema'"),
    "mmengine": ({"state_dict": 1, "ema_state_dict": 2}, r"'ema_state_dict'.*'ema_state_dict'\]$"),
    "two keys": ({"model": 2, "state_dict": 1}, "'model'"),
    "an array": ({"model": 1, "scale": np.ones(2)}, "'scale'"),
    "a list": ({"model": 1, "others": [{"a": np.ones(2)}]}, "'others'"),
    "an optimizer": ({"model": 1, "optimizer": {"state": {0: {"mean": np.ones(2)}}}, "iteration": 3}, None),
}


@pytest.mark.parametrize(("content", "named"), OTHER_ARRAYS.values(), ids=OTHER_ARRAYS)
def test_arrays_that_are_left_out_are_named(content, named, tmp_path, caplog):
    """A number stands for a state dict of this value."""

    def filled(value):
        if isinstance(value, dict):
            return {name: filled(one) for name, one in value.items()}
        return {"a": np.full(2, float(value))} if isinstance(value, int) and value < 3 else value

    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(filled(content)))
    assert_same(interop.load(path, weights_only=False), filled(1))
    if named is None:
        assert not caplog.messages
    else:
        (message,) = caplog.messages
        assert re.search(f"model.pkl': the arrays of '.*' are loaded. Others are left out: {named}", message)
        caplog.clear()
        interop.load(path, key=next(iter(content)), weights_only=False)
        assert not caplog.messages


def test_errors(tmp_path):
    assert_refused(r"path must end in .safetensors, .npz, .pkl, .pth.*got .*weights.h5", tmp_path / "weights.h5")
    with pytest.raises(FileNotFoundError):
        interop.load(tmp_path / "weights.npz")
