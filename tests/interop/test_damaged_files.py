"""Files that are damaged, malicious or of types that no parameter has: a ValueError names the file, or the array."""

import io
import json
import pathlib
import pickle
import re
import zipfile

import jax
import numpy as np
import pytest

from jax_dcn import interop

pytestmark = pytest.mark.platforms("cpu")

GOLDEN = pathlib.Path(__file__).parent / "golden"
ARRAYS = {"conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "conv.bias": np.ones(2, np.float32)}


def npz():
    file = io.BytesIO()
    np.savez_compressed(file, **ARRAYS)
    return file.getvalue()


def safetensors():
    return pytest.importorskip("safetensors.numpy").save(ARRAYS)


def load_bytes(content, path):
    path.write_bytes(content)
    return interop.load(path)


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "suffix, make",
    [
        ("npz", npz),
        ("safetensors", safetensors),
        ("pth", (GOLDEN / "torch_zip.pth").read_bytes),
        ("pth", (GOLDEN / "torch_old.pth").read_bytes),
    ],
    ids=["npz", "safetensors", "torch zip", "torch old"],
)
@pytest.mark.filterwarnings("ignore")  # zipfile warns of some damage
def test_mutations(suffix, make, count, tmp_path):
    """Bytes changed, removed or repeated at random: arrays or a ValueError that names the file."""
    whole, random, path = make(), np.random.default_rng(0), tmp_path / f"weights.{suffix}"
    refused = 0
    for _ in range(count):
        content, (start, end) = bytearray(whole), sorted(random.integers(0, len(whole), 2))
        match random.integers(4):
            case 0:
                content[start] = random.integers(256)
            case 1:
                del content[start:]
            case 2:
                del content[start:end]
            case 3:
                content[start:end] = random.bytes(end - start)
        try:
            assert all(isinstance(array, np.ndarray) for array in load_bytes(content, path).values())
        except ValueError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > count / 4


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pth"])
def test_empty_files(suffix, tmp_path):
    if suffix == "safetensors":
        pytest.importorskip(suffix)
    with pytest.raises(ValueError, match=f"weights.{suffix}' is not a whole file"):
        load_bytes(b"", tmp_path / f"weights.{suffix}")


def zip_of(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def npy(shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def test_archives_of_other_things(tmp_path):
    with pytest.raises(ValueError, match=r"weights\.npz' holds no arrays"):
        load_bytes(zip_of(), tmp_path / "weights.npz")
    with pytest.raises(ValueError, match=r"weights\.npz' holds no arrays"):
        load_bytes(zip_of(readme="text"), tmp_path / "weights.npz")
    with pytest.raises(ValueError, match=r"weights\.npz' is not a whole file that numpy.savez has written"):
        load_bytes(zip_of(**{"weight.npy": npy((2**50,))}), tmp_path / "weights.npz")
    with pytest.raises(ValueError, match=r"weights\.pkl' is not a whole file that pickle has written"):
        path = tmp_path / "weights.pkl"
        path.write_bytes(pickle.dumps(ARRAYS)[:-9])
        interop.load(path, weights_only=False)
    with pytest.raises(ValueError, match=r"weights\.pkl' is not a whole file that pickle has written"):
        path.write_bytes(pickle.dumps(ARRAYS).replace(b"numpy", b"numpz"))  # a module that nobody has
        interop.load(path, weights_only=False)


def test_safetensors_of_other_types(tmp_path):
    pytest.importorskip("safetensors")
    header = json.dumps({"conv.weight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    file = len(header).to_bytes(8, "little") + header + b"\0\0"
    try:
        loaded = load_bytes(file, tmp_path / "weights.safetensors")
    except ValueError as error:
        assert re.search(r"'conv.weight' in .*weights.safetensors' cannot be converted", str(error))
    else:
        assert loaded["conv.weight"].dtype.itemsize == 1
    with pytest.raises(ValueError, match=r"weights\.safetensors' holds no arrays"):
        load_bytes((2).to_bytes(8, "little") + b"{}", tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    "value",
    [
        np.ones(2, np.int8),
        np.ones(2, bool),
        np.array(["a", "b"]),
        np.array(["2026-01-01", "2026-01-02"], "datetime64[D]"),
        np.ones(2, np.complex64),
        np.array([1, None]),
    ],
    ids=lambda value: str(value.dtype),
)
def test_values_that_are_no_parameters(value):
    like = {"weight": jax.ShapeDtypeStruct((2,), np.float32)}
    message = f"'weight' must be of a floating type, as weight is, got {value.dtype}"
    with pytest.raises(ValueError, match=re.escape(message)):
        interop.from_torch({"weight": value}, like)


def test_values_that_do_not_fit():
    like = {"weight": jax.ShapeDtypeStruct((2,), np.float32)}
    with pytest.raises(ValueError, match="'weight' has values that float32, the type of weight, cannot hold"):
        interop.from_torch({"weight": np.array([1e300, 1])}, like)
    assert np.isinf(interop.from_torch({"weight": np.array([np.inf, 1])}, like)["weight"][0])
