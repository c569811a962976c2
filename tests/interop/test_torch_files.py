"""Files of torch.save, which are read without torch and without running code in them."""

import pathlib
import pickle
import re
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest

from jax_dcn import interop
from tests.helpers.checkpoints import assert_refused, assert_same

pytestmark = pytest.mark.platforms("cpu")

GOLDEN = pathlib.Path(__file__).parent / "golden"
FORMATS = {"zip": {}, "old": {"_use_new_zipfile_serialization": False}, "protocol 4": {"pickle_protocol": 4}}
TYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


@pytest.mark.parametrize("file", ["torch_zip.pth", "torch_old.pth"])
def test_golden_files(file):
    weight = np.arange(6, dtype=np.float32).reshape(3, 2).T
    expected = {"weight": weight, "bias": weight[1].astype(ml_dtypes.bfloat16), "count": np.array(3)}
    assert_same(interop.load(GOLDEN / file), expected)
    assert_refused(r"'path' in .* comes from 'pathlib.PosixPath', which is not read", GOLDEN / file, key="other")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def as_numpy(torch, tensors):
    """NumPy arrays by torch, which cannot make them of all types."""
    return {
        name: tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(tensor.shape)
        for name, tensor in tensors.items()
        for dtype in [np.dtype(getattr(ml_dtypes, str(tensor.dtype)[6:], str(tensor.dtype)[6:]))]
    }


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_types(options, torch, tmp_path):
    random = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 48, np.uint8))
    tensors = {
        name: (random % 2 if name == "bool" else random.clone()).view(getattr(torch, name)).reshape(3, -1)
        for name in TYPES
    }
    torch.save(tensors, tmp_path / "a.pth", **options)
    assert_same(interop.load(tmp_path / "a.pth"), as_numpy(torch, tensors))


@pytest.mark.filterwarnings("ignore")  # torch warns of its own storages
@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_views(options, torch, tmp_path):
    whole = torch.arange(120.0).reshape(2, 3, 4, 5)
    parameter, with_note, with_notes = torch.nn.Parameter(whole + 1), whole + 2, torch.nn.Parameter(whole + 3)
    with_note.note = with_notes.note = "an attribute"
    tensors = {
        "whole": whole,
        "transposed": whole.transpose(1, 3),
        "channels last": whole.clone(memory_format=torch.channels_last),
        "sliced": whole[1:, ::2, 1],
        "last": whole[-1, -1, -1, -1],
        "expanded": torch.arange(3.0)[:, None].expand(2, 3, 4),
        "diagonal": whole[0, :, :3].diagonal(),
        "parameter": parameter,
        "part of a parameter": parameter[0],
        "tensor with an attribute": with_note,
        "parameter with an attribute": with_notes,
        "buffer": torch.nn.Buffer(whole + 4),
        "empty": torch.zeros(3, 0, 2),
        "empty view": whole[2:],
        "scalar": torch.tensor(3),
        "half of a large": torch.zeros(2**16, dtype=torch.uint16)[::2],
    }
    torch.save(tensors, tmp_path / "a.pth", **options)
    expected = as_numpy(torch, tensors)
    assert_same(interop.load(tmp_path / "a.pth"), expected)
    found = interop.load(tmp_path / "a.pth")
    found["whole"][0, 0, 0, 1] = -1  # they share memory, as in torch
    assert found["transposed"][0, 1, 0, 0] == -1


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_values_beside_tensors(options, torch, tmp_path):
    """Such as those of state dicts with extra state: as before, they are left out."""
    content = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3)).state_dict()
    expected = as_numpy(torch, content)
    content |= {"a": 1, "b": "text", "c": [1, 2.5, None], "d": {True: 2**40, (1, "x"): -1}, "e": b"bytes", "f": {1, 2}}
    content |= {"g": 1j, "h": torch.float32, "i": torch.Size([2]), "j": torch.device("cpu"), "k": bytearray(b"bytes")}
    torch.save(content, tmp_path / "a.pth", **options)
    assert_same(interop.load(tmp_path / "a.pth"), expected)


class Model:
    """What a file of a whole model has in place of a state dict."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_objects_in_place_of_tensors(options, torch, tmp_path):
    ones = torch.ones(2, dtype=torch.complex64)
    for value, maker in {
        Model(): "tests.interop.test_torch_files.Model",
        torch.nn.ReLU(): "torch.nn.modules.activation.ReLU",
        torch.ones(2, 2).to_sparse(): "torch._utils._rebuild_sparse_tensor",
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8): "torch._utils._rebuild_qtensor",
        torch.ones(2, device="meta"): "torch._utils._rebuild_meta_tensor_no_storage",
        ones.conj(): "torch.Tensor.conj",
        ones.conj().imag: "torch.Tensor.conj",
        ones.to(torch.complex32): "torch.complex32",
        np.float64(1): r"numpy\..*\.scalar",
    }.items():
        torch.save({"a": torch.ones(2), "b": value, "c": torch.zeros(2)}, tmp_path / "a.pth", **options)
        assert_refused(rf"'b' in .*a.pth' comes from '{maker}'.*save a state dict of dense", tmp_path / "a.pth")
        torch.save({"state_dict": {"a": torch.ones(2), "c": torch.zeros(2)}, "b": value}, tmp_path / "a.pth", **options)
        assert_same(interop.load(tmp_path / "a.pth"), {"a": np.ones(2, np.float32), "c": np.zeros(2, np.float32)})
    torch.save(Model(), tmp_path / "a.pth", **options)
    assert_refused(r"^'.*a.pth' comes from 'tests.interop.test_torch_files.Model'", tmp_path / "a.pth")


@pytest.mark.filterwarnings("ignore")
def test_scripts(torch, tmp_path):
    torch.jit.script(torch.nn.Conv2d(2, 3, 1)).save(tmp_path / "a.pt")
    assert_refused(r"a.pt' comes from '__torch__", tmp_path / "a.pt")


# What follows writes pickles opcode by opcode, of protocol 2.


def plain(value):
    return pickle.dumps(value, 2)[2:-1]


def function(name):
    return "c{}\n{}\n".format(*name.rsplit(".", 1)).encode()


def call(name, *arguments):
    return function(name) + b"(" + b"".join(arguments) + b"tR"


def mapping(**values):
    return b"}(" + b"".join(plain(name) + value for name, value in values.items()) + b"u"


def storage(kind="FloatStorage", key="0", count=6, *others):
    rest = b"".join(map(plain, (key, "cpu", count, *others)))
    return b"(" + plain("storage") + function(f"torch.{kind}") + rest + b"tQ"


def tensor(offset=0, size=(2, 3), stride=(3, 1), of=None):
    arguments = of or storage(), *map(plain, (offset, size, stride, False, {}))
    return call("torch._utils._rebuild_tensor_v2", *arguments)


DATA = np.arange(6, dtype="<f4")


def zip_file(path, code, data=DATA, order="little", compression=zipfile.ZIP_STORED):
    members = {"data.pkl": b"\x80\x02" + code + b".", "data/0": data.tobytes(), "version": "3\n"}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (members | ({"byteorder": order} if order else {})).items():
            archive.writestr(f"weights/{name}", content)


def old_file(path, code, keys=("0",), count=6, data=DATA, magic=0x1950A86A20F9469CFC6C):
    pickles = [pickle.dumps(value, 2) for value in (magic, 1001, {"little_endian": True})]
    pickles += [b"\x80\x02" + code.replace(b"tQ", b"NtQ") + b".", pickle.dumps([*keys], 2)]
    path.write_bytes(b"".join(pickles) + count.to_bytes(8, "little") + data.tobytes())


WRITERS = {"zip": zip_file, "old": old_file}
both = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@both
def test_files_of_these_tests(write, tmp_path):
    """The files below are refused for what each of them is about, and not because they are no files of torch."""
    write(tmp_path / "a.pth", mapping(a=tensor(), b=tensor(1, (2,), (3,))))
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_same(interop.load(tmp_path / "a.pth"), {"a": whole, "b": whole[:, 1]})
    expanded = tensor(0, (3 * 2**20,), (0,))  # of 12 MiB: a parameter counts once
    write(tmp_path / "a.pth", mapping(a=call("torch._utils._rebuild_parameter", expanded, plain(False), plain({}))))
    assert interop.load(tmp_path / "a.pth")["a"].shape == (3 * 2**20,)


@both
def test_torch_reads_the_files_of_these_tests(write, torch, tmp_path):
    write(tmp_path / "a.pth", mapping(a=tensor(), b=tensor(1, (2,), (3,))))
    assert torch.load(tmp_path / "a.pth")["b"].tolist() == [1, 4]
    zip_file(tmp_path / "a.pth", mapping(a=tensor()), DATA.astype(">f4"), "big")
    assert torch.load(tmp_path / "a.pth")["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("kind", ["float32", "complex64", "int16", "bfloat16"])
def test_byte_order(kind, tmp_path, monkeypatch):
    array = np.arange(1, 7).astype(kind)
    parts = array.view(f"u{array.itemsize // (2 if kind == 'complex64' else 1)}")
    names = {"float32": "Float", "complex64": "ComplexFloat", "int16": "Short", "bfloat16": "BFloat16"}
    code = mapping(a=tensor(size=(6,), stride=(1,), of=storage(f"{names[kind]}Storage")))
    for order, data in {"little": parts, None: parts, "big": parts.byteswap()}.items():
        zip_file(tmp_path / "a.pth", code, data, order)
        assert_same(interop.load(tmp_path / "a.pth"), {"a": array})
    for write in WRITERS.values():
        write(tmp_path / "a.pth", code, data=parts)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "byteorder", "big")  # as if the loaded array had that order
            assert_same(interop.load(tmp_path / "a.pth"), {"a": parts.byteswap().view(kind)})
    zip_file(tmp_path / "a.pth", code, parts, "middle")
    assert_refused(r"a\.pth' is not a whole file that torch has written", tmp_path / "a.pth")


FROM_TYPE = "torch._tensor._rebuild_from_type_v2"  # which calls a function of the file
RUNS = {
    "os.system": lambda path: call("os.system", plain(f"touch {path}")),
    "builtins.eval": lambda path: call("builtins.eval", plain(f"open({str(path)!r}, 'w')")),
    "__builtin__.open": lambda path: call("__builtin__.open", plain(str(path)), plain("w")),
    "numpy.memmap": lambda path: call("numpy.memmap", *map(plain, (str(path), "f", "w+", 0, (1,)))),
    "subprocess.Popen": lambda path: function("subprocess.Popen") + plain((["touch", str(path)],)) + b"\x81",
    "pathlib.Path": lambda path: call("pathlib.Path", plain(str(path))) + plain({"x": 1}) + b"b",
    "torch.hub.load": lambda path: call("torch.hub.load", plain(str(path))),
    "torch.load": lambda path: call(FROM_TYPE, function("torch.load"), *[plain((path.name,))] * 3),
}


@both
@pytest.mark.parametrize(("name", "run"), RUNS.items(), ids=RUNS)
def test_code_is_not_run(name, run, write, tmp_path):
    code = run(tmp_path / "made")
    write(tmp_path / "a.pth", mapping(state_dict=mapping(a=tensor()), log=code))
    assert interop.load(tmp_path / "a.pth").keys() == {"a"}
    write(tmp_path / "a.pth", mapping(a=tensor(), b=code))
    assert_refused(rf"'b' in .*a\.pth' comes from '{name}', which is not read without torch", tmp_path / "a.pth")
    assert not (tmp_path / "made").exists()


@both
def test_state_changes_nothing(write, tmp_path):
    """A pickle may set the state of what it has made, also of what a name stands for."""
    for target in (call("collections.OrderedDict"), function("collections.OrderedDict"), mapping(x=tensor()), tensor()):
        state = b"N" + mapping(items=plain(1), shape=plain(2)) + b"\x86b"
        write(tmp_path / "a.pth", mapping(model=mapping(a=tensor()), other=target + state))
        assert interop.load(tmp_path / "a.pth").keys() == {"a"}


@both
def test_objects_inside_values(write, tmp_path):
    for value, maker in {call("os.getcwd"): "os.getcwd", storage(): "torch.Storage"}.items():
        for nested in (mapping(x=mapping(y=value)), b"](N" + value + b"e", value + b"\x85"):
            write(tmp_path / "a.pth", mapping(a=tensor(), b=nested))
            assert_refused(rf"a value inside 'b' in .*a\.pth'.* comes from '{maker}', which", tmp_path / "a.pth")


@both
def test_objects_in_place_of_state_dicts(write, tmp_path):
    content = {"state_dict": call("os.getcwd"), "ema": mapping(module=call("os.getcwd")), "net": mapping(a=tensor())}
    write(tmp_path / "a.pth", mapping(**content))
    for key, name in {None: "state_dict", "state_dict": "state_dict", "ema.module": "ema.module"}.items():
        assert_refused(rf"'{name}' in .*a\.pth' comes from 'os.getcwd', which", tmp_path / "a.pth", key=key)
    assert interop.load(tmp_path / "a.pth", key="net").keys() == {"a"}
    content |= {"state_dict": plain(1), "model": mapping(b=tensor()), "net": call("os.getcwd")}
    write(tmp_path / "a.pth", mapping(**content))
    assert interop.load(tmp_path / "a.pth").keys() == {"b"}


def often(name, arguments, count):
    """Calls a function with the same arguments again and again."""
    return b"(" + function(name) + b"q\x98(" + arguments + b"tq\x99" + b"h\x98h\x99R" * count + b"t"


EMPTY = plain(0) + plain((0,) * 32) + plain((1,) * 32)
DEEP = 3 * 10**5  # so deep that the hash of a tuple overflows a stack of 8 MiB
DAMAGED = {
    "past the end": tensor(size=(2, 4), stride=(3, 1)),
    "offset past the end": tensor(6, (1,), (1,)),
    "scalar past the end": tensor(6, (), ()),
    "negative offset": tensor(-1, (1,), (1,)),
    "negative stride": tensor(5, (2,), (-1,)),
    "negative size": tensor(0, (-1,), (1,)),
    "two negative sizes": tensor(0, (-1, -1), (1, 1)),
    "sizes without strides": tensor(0, (2, 1), (1,)),
    "a size that is no integer": tensor(0, (1.0,), (1,)),
    "bytes that overflow": tensor(0, (5,), (2**60,)),
    "elements that overflow": tensor(0, (2**32, 2**32), (0, 0)),
    "expanded": tensor(0, (2**30,), (0,)),
    "expanded often": b"(" + tensor(0, (2**21,), (0,)) * 3 + b"t",
    "empty and too large": tensor(0, (0, 2**62, 2**62), (1, 1, 1)),
    "no storage": tensor(of=plain("0")),
    "no key": storage("FloatStorage", 0),
    "another key": storage("FloatStorage", "1/../0"),
    "a key outside": storage("FloatStorage", "../version"),
    "no known type": storage(key="1").replace(function("torch.FloatStorage"), plain("object")),
    "a view of a storage": storage("FloatStorage", "0", 6, ("0", 0, 6)),
    "a name that is not a string": plain("os") + b")" + b"q\x01h\x01\x86" * 100 + b"\x93",
    "a long name": function("os." + "x" * 1001),
    "a name that repeats": b"(" + plain("x" * 1000) + b"q\x99" + b"h\x99h\x99\x93" * 10**4 + b"t",
    "called data": plain("os.system") + plain(()) + b"R",
    "a call of a list": function("builtins.set") + plain([1]) + b"R",
    "pairs of three": call("collections.OrderedDict", plain([(1, 2, 3, 4), ()])),
    "pairs that repeat": often("collections.OrderedDict", plain([(1, 2)] * 1000), 300),
    "empty tensors that repeat": often("torch._utils._rebuild_tensor", storage() + EMPTY, 40000),
    "items of a number": plain(1) + plain(2) + b"a",
    "a key without value": b"}(" + plain(1) + b"u",
    "a list as key": b"}" + plain([]) + plain(1) + b"s",
    "a long number as key": b"}" + plain(1 << 10**5) + plain(1) + b"s",
    "a long tuple as key": b"}" + plain((1,) * 9) + plain(1) + b"s",
    "a long string as key": b"}" + plain("x" * 10001) + plain(1) + b"s",
    "too few values": b"s",
    "values before a mark": b"(" + plain(1) + b"(\x85tt",
    "no mark": b"t",
    "nothing in the memo": b"h\xc8",
    "an opcode of protocol 0": b"(l",
    "an extension": b"\x82\x01",
    "a text of 2^62 bytes": b"\x8d" + (2**62).to_bytes(8, "little"),
    "bytes of 2^34": b"\x8e" + (2**34).to_bytes(8, "little"),
    "a deep tuple as key": b"}" + b")" + b"\x85" * DEEP + plain(1) + b"s",
    "a deep call": function(FROM_TYPE) + (b"(" + function(FROM_TYPE) + b"N") * 10**4 + b")" + b"Nt" * 10**4 + b"R",
}


@both
@pytest.mark.parametrize("code", DAMAGED.values(), ids=DAMAGED)
def test_pickles_that_do_not_fit(code, write, tmp_path):
    write(tmp_path / "a.pth", mapping(a=tensor(), b=code))
    assert_refused(r"a\.pth' is not a whole file that torch has written: ", tmp_path / "a.pth")


def test_tensors_as_strides(tmp_path):
    """The product of this stride, size and element in bytes overflows in NumPy's integers."""
    stride = b"(" + tensor(0, (), (), storage("LongStorage")) + b"t"
    code = call("torch._utils._rebuild_tensor", storage("LongStorage"), plain(0), plain((17,)), stride)
    zip_file(tmp_path / "a.pth", mapping(a=code), np.full(3, 2**60))
    assert_refused("sizes, strides or offset are not those of a tensor", tmp_path / "a.pth")


def in_itself(length):
    parts = []
    parts.append((parts,) * length)
    return parts[0]


NESTED = {
    "deep lists": b"]" * DEEP + b"a" * (DEEP - 1),
    "deep tuples": b")" + b"\x85" * DEEP,
    "a list of itself": b"]q\x01h\x01a",
    "tuples that are twice in each other": b")" + b"q\x01h\x01\x86" * 100,
    "a tuple in its own list": plain(in_itself(1)),  # it takes POP to write it
    "a longer tuple in its own list": plain(in_itself(4)),  # POP_MARK
    "a duplicate": plain(1) + b"2\x86",
}


@both
@pytest.mark.parametrize("code", NESTED.values(), ids=NESTED)
def test_values_that_nest_without_end(code, write, tmp_path):
    """They have no tensors, and so are left out."""
    write(tmp_path / "a.pth", mapping(a=tensor(), b=code))
    assert interop.load(tmp_path / "a.pth").keys() == {"a"}


@both
def test_mappings_that_nest_without_end(write, tmp_path):
    twice = {}
    for _ in range(100):
        twice = {"a": twice, "b": twice}
    deep = (b"}" + plain("a")) * 10**5 + plain(1) + b"s" * 10**5
    for code in (plain(twice), deep):
        write(tmp_path / "a.pth", mapping(a=tensor(), b=code))
        assert_refused(r"a\.pth' nests mappings so often", tmp_path / "a.pth")


@both
def test_large_places_in_the_memo(write, tmp_path):
    """pickle.Unpickler makes an array with this many places."""
    write(tmp_path / "a.pth", mapping(a=tensor() + b"r\xff\xff\xff\xff", b=b"j\xff\xff\xff\xff"))
    assert interop.load(tmp_path / "a.pth").keys() == {"a", "b"}


def test_archives(tmp_path):
    path, code = tmp_path / "a.pth", mapping(a=tensor())
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        zip_file(path, code, np.zeros(10**6, "<f4"), compression=compression)
        path.write_bytes(path.read_bytes().replace((4 * 10**6).to_bytes(4, "little"), (24).to_bytes(4, "little")))
        assert_refused("its entries are compressed, or larger than the file", path)
    zip_file(path, code)
    whole = path.read_bytes()
    old_file(path, code)
    path.write_bytes(path.read_bytes() + whole)  # torch looks for a zip file at the beginning only
    assert interop.load(path).keys() == {"a"}
    size = (24).to_bytes(4, "little")
    path.write_bytes(whole.replace(size * 2, (2**31).to_bytes(4, "little") * 2))
    assert_refused("its entries are compressed, or larger than the file", path)
    for content in ({}, {"weights/version": "3"}, {"weights/data.pkl": pickle.dumps({})}):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)
        assert_refused(r"a\.pth' (is not a whole file|holds no arrays)", path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": 5}, "it begins neither as a zip file nor as one of torch before 1.6"),
        ({"keys": ()}, "it does not list the storages of its tensors"),
        ({"keys": ("0", "1")}, "it does not list the storages of its tensors"),
        ({"keys": (0,)}, "it does not list the storages of its tensors"),
        ({"count": 5}, "it ends within a tensor"),
        ({"data": np.zeros(5, "<f4")}, "it ends within a tensor"),
        ({"code": mapping(a=storage("FloatStorage", "0", 2**33))}, "its tensors are larger than the file"),
        ({"code": mapping(a=storage("FloatStorage", "0", -1))}, "ValueError"),
        ({"code": storage("OtherStorage")}, "it has a storage of the unknown type torch.OtherStorage"),
    ],
)
def test_old_files_that_do_not_fit(changes, message, tmp_path):
    old_file(tmp_path / "a.pth", **{"code": mapping(a=tensor())} | changes)
    assert_refused(rf"a\.pth' is not a whole file .*: .*{re.escape(message)}", tmp_path / "a.pth")
