"""Reads files of torch.save, in both of its formats, without torch.

The structure of such a file is in pickles. A pickle is a program for a stack machine, which may call any function.
`_Machine` runs it, but makes plain values and arrays only, and calls no function of the file: `_Machine._call` has all
that it knows. It takes the place of pickle.Unpickler, which can be made to allocate any amount of memory by one number
in the file, and to overflow the stack of the process by a deeply nested key, even if it may not find any function.
"""

import os
import pickletools
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

_STORAGES = {  # the data types of the storages that pickles name
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8",
    # Only _rebuild_qtensor uses these. Their sizes are needed to read what follows them in the old format.
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "QUInt4x2Storage": "uint8",
    "QUInt2x4Storage": "uint8",
}
_TYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        *_STORAGES.values(),
        *("uint16", "uint32", "uint64"),  # these and the following have untyped storages
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}

_OLD_MAGIC, _OLD_VERSION = 0x1950A86A20F9469CFC6C, 1001

# Expanded tensors and tensors that share a storage have more elements than the file. To copy them all, which users may
# do, needs at most this many bytes for each byte of the file, and this many more. interop.load documents both.
_COPIES, _SMALL = 16, 2**24

_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
# Sets become lists and tuples, because the hash of a deeply nested tuple overflows the stack.
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_DICT": dict,
}
# How many values of the stack an opcode takes; None takes those after the last mark.
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None, "FROZENSET": None}
_ITEMS = {"APPEND": 1, "SETITEM": 2, "APPENDS": None, "SETITEMS": None, "ADDITEMS": None}
_DROPPED = {"POP": 1, "POP_MARK": None, "BUILD": 1, "NEWOBJ_EX": 2}  # BUILD takes a state, NEWOBJ_EX arguments
# Functions that make plain values. Their arguments take the place of these.
_PLAIN = {
    *("_codecs.encode", "torch.device", "torch.Size"),
    *("builtins.set", "builtins.frozenset", "builtins.bytearray", "builtins.complex"),
    *("__builtin__.set", "__builtin__.frozenset", "__builtin__.bytearray", "__builtin__.complex"),  # in protocol 2
}


@dataclass(frozen=True, eq=False)
class Skipped:
    """Stands for a function or a class that is not called, and for what it would have returned."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class _Storage(Skipped):
    """The elements of tensors. Outside of a tensor, it is skipped."""

    data: bytearray
    dtype: np.dtype[Any]


def read(path: Path) -> Any:
    """What torch.save has written to a file: plain values, arrays, and :class:`Skipped` in place of all else."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return _read_zip(file, size) if file.peek()[:4] == b"PK\3\4" else _read_old(file, size)


def _read_zip(file: BufferedReader, size: int) -> Any:
    """Reads the format of torch 1.6 and newer."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        root = names[0].split("/")[0]
        left = size

        def read_entry(name: str) -> bytes:
            nonlocal left
            entry = archive.getinfo(f"{root}/{name}")
            left -= entry.file_size
            if entry.compress_type != zipfile.ZIP_STORED or left < 0:
                raise ValueError("its entries are compressed, or larger than the file")
            return archive.read(entry)

        order = read_entry("byteorder") if f"{root}/byteorder" in names else b"little"
        is_little = {b"little": True, b"big": False}[order]

        def new_storage(key: str, dtype: np.dtype[Any], _: int) -> bytearray:
            data = bytearray(read_entry(f"data/{key}"))
            _make_native(data, dtype, is_little)
            return data

        return _Machine(new_storage, size).run(BytesIO(read_entry("data.pkl")))


def _read_old(file: BufferedReader, size: int) -> Any:
    """Reads the format of torch before 1.6, which mmdet still publishes: pickles, and then the storages."""
    left = size

    def new_storage(_: str, dtype: np.dtype[Any], count: int) -> bytearray:
        nonlocal left
        left -= count * dtype.itemsize
        if left < 0:
            raise ValueError("its tensors are larger than the file")
        return bytearray(count * dtype.itemsize)

    machine = _Machine(new_storage, size)
    if machine.run(file) != _OLD_MAGIC or machine.run(file) != _OLD_VERSION:
        raise ValueError("it begins neither as a zip file nor as one of torch before 1.6")
    machine.run(file)  # the sizes of integers where it was written; storages are little-endian anyway
    content, keys = machine.run(file), machine.run(file)
    if not all(isinstance(key, str) for key in keys) or {*keys} != machine.storages.keys():
        raise ValueError("it does not list the storages of its tensors")
    for storage in map(machine.storages.__getitem__, keys):
        if not isinstance(storage, _Storage):
            raise ValueError(f"it has a storage of the unknown type {storage.name}")
        count = int.from_bytes(file.read(8), "little")
        if count * storage.dtype.itemsize != len(storage.data) or file.readinto(storage.data) != len(storage.data):
            raise ValueError("it ends within a tensor")
        _make_native(storage.data, storage.dtype, is_little=True)
    return content


def _make_native(data: bytearray, dtype: np.dtype[Any], is_little: bool) -> None:
    """Changes the byte order of elements to that of this machine."""
    if is_little != (sys.byteorder == "little"):
        width = dtype.itemsize // (2 if dtype.kind == "c" else 1)
        np.ndarray(len(data) // width, f"u{width}", data).byteswap(inplace=True)


class _Machine:
    """Runs the pickles of one file.

    new_storage: Returns the bytes of a storage, of this key, data type and count of elements; they may be filled later.
    size: The size of the file in bytes.
    """

    def __init__(self, new_storage: Callable[[str, np.dtype[Any], int], bytearray], size: int) -> None:
        self.storages: dict[str, Skipped] = {}
        self._new_storage = new_storage
        self._left = _COPIES * size + _SMALL

    def run(self, file: IO[bytes]) -> Any:
        """The value of the next pickle in a file."""
        stack: list[Any] = []
        marks = [0]
        memo: dict[int, Any] = {}

        def pop(count: int | None) -> list[Any]:
            start = marks.pop() if count is None else len(stack) - count
            if not marks or start < marks[-1]:
                raise ValueError("it takes more values from the stack than it has put there")
            values = stack[start:]
            del stack[start:]
            return values

        def top() -> Any:
            stack.extend(pop(1))
            return stack[-1]

        instructions: Iterator[tuple[Any, Any, Any]] = pickletools.genops(file)
        for opcode, argument, _ in instructions:
            name = opcode.name
            if name in _LITERALS:
                stack.append(argument)
            elif name in _NEW:
                stack.append(_NEW[name]())
            elif name in _TUPLES:
                stack.append(tuple(pop(_TUPLES[name])))
            elif name in _ITEMS:
                values = pop(_ITEMS[name])
                _extend(top(), values)
            elif name in _DROPPED:
                pop(_DROPPED[name])
            else:
                match name:
                    case "BINPUT" | "LONG_BINPUT":
                        memo[argument] = top()
                    case "MEMOIZE":
                        memo[len(memo)] = top()
                    case "BINGET" | "LONG_BINGET":
                        stack.append(memo[argument])
                    case "DUP":
                        stack.append(top())
                    case "MARK":
                        marks.append(len(stack))
                    case "GLOBAL":
                        stack.append(self._named(*argument.split(" ")))
                    case "STACK_GLOBAL":
                        stack.append(self._named(*pop(2)))
                    case "BINPERSID":
                        stack.append(self._storage(*pop(1)))
                    case "REDUCE" | "NEWOBJ":
                        stack.append(self._call(*pop(2)))
                    case "STOP":
                        return top()
                    case "PROTO" | "FRAME":
                        pass
                    case _:
                        raise ValueError(f"it has the opcode {name}, which torch.save does not write")
        raise AssertionError("genops ends by STOP or by an error")

    def _take(self, size: int) -> None:
        """Counts bytes of values that may be larger than what the file has of them."""
        self._left -= size
        if self._left < 0:
            raise ValueError(f"its values repeat: copies would need more than {_COPIES} times its size and 16 MiB")

    def _named(self, module: Any, name: Any) -> str | Skipped:
        """What a global name of a pickle stands for: the name of a data type, or a function or class."""
        if not all(isinstance(one, str) and len(one) <= 1000 for one in (module, name)):
            raise ValueError("it has a function whose name is not a string of at most 1000 characters")
        self._take(len(module) + len(name))
        if module in ("torch", "torch.storage") and _STORAGES.get(name, name) in _TYPES:
            return _STORAGES.get(name, name)
        return Skipped(f"{module}.{name}")

    def _storage(self, identity: Any) -> Skipped:
        """What a persistent ID stands for. Those of the old format end by a view of a storage, or by None."""
        match identity:
            case ("module", Skipped() as skipped, *_):
                return skipped
            case ("storage", kind, str(key), _, int(count), *view) if view in ([], [None]):
                if key not in self.storages and isinstance(kind, Skipped):
                    self.storages[key] = kind
                elif key not in self.storages:
                    data = self._new_storage(key, _TYPES[kind], count)
                    self.storages[key] = _Storage("torch.Storage", data, _TYPES[kind])
                return self.storages[key]
        raise ValueError("it has a persistent ID that is not a storage")

    def _call(self, function: Any, arguments: Any) -> Any:
        if not (isinstance(function, Skipped) and isinstance(arguments, tuple)):
            raise ValueError("it calls a value that is not a function, or with arguments that are not a tuple")
        match function.name:
            case "collections.OrderedDict":
                return self._ordered_dict(*arguments)
            case "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2":
                return self._tensor(*[*arguments[:6], None, *arguments[6:]])
            case "torch._utils._rebuild_tensor_v3":
                return self._tensor(*arguments)
            case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state":
                return arguments[0]
            case "torch._tensor._rebuild_from_type_v2":
                return self._call(arguments[0], arguments[2])
        return arguments if function.name in _PLAIN else function

    def _ordered_dict(self, pairs: Any = ()) -> Any:
        self._take(100 * len(pairs))  # a list in the memo may become many mappings
        return _extend({}, [one for key, value in pairs for one in (key, value)])

    def _tensor(
        self,
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        _requires_grad: Any = None,
        _hooks: Any = None,
        dtype: Any = None,
        metadata: Any = None,
    ) -> Any:
        """An array of elements of a storage. offset and stride count them; dtype is None for that of the storage."""
        if metadata:
            return Skipped("torch.Tensor.conj")  # or another view that changes values
        for one in (storage, dtype):
            if isinstance(one, Skipped) and not isinstance(one, _Storage):
                return one
        if not (isinstance(storage, _Storage) and isinstance(dtype, str | None)):
            raise ValueError("it has a tensor without a storage or a data type")
        # int, and no array of NumPy, whose sums overflow. NumPy's own check of bounds overflows, too.
        if len(size) != len(stride) or any(type(one) is not int or one < 0 for one in (offset, *size, *stride)):
            raise ValueError("it has a tensor whose sizes, strides or offset are not those of a tensor")
        of_type = storage.dtype if dtype is None else _TYPES[dtype]
        if 0 in size:
            array = np.zeros(size, of_type)
        else:
            last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
            if last >= len(storage.data) // of_type.itemsize:
                raise ValueError("it has a tensor that exceeds its storage")
            steps = tuple(step * of_type.itemsize for step in stride)
            array = np.ndarray(size, of_type, storage.data, offset * of_type.itemsize, steps)
        self._take(array.nbytes + sys.getsizeof(array))
        return array


def _extend(target: Any, values: list[Any]) -> Any:
    """Adds values to a list, or keys and values in turn to a dictionary."""
    if isinstance(target, dict):
        keys = values[::2]
        if not all(map(_is_key, keys)):
            raise ValueError("it has a mapping whose keys are not short strings, numbers, or short tuples of them")
        target.update(zip(keys, values[1::2], strict=True))
    elif isinstance(target, list):
        target.extend(values)
    elif not isinstance(target, Skipped):
        raise ValueError("it adds items to a value that is not a list or a mapping")
    return target


def _is_key(value: Any) -> bool:
    """Whether a value may be a key: its hash, its text and a search in it need little time."""
    if isinstance(value, tuple):
        return len(value) <= 8 and all(not isinstance(one, tuple) and _is_key(one) for one in value)
    if isinstance(value, int):
        return value.bit_length() < 64
    return value is None or isinstance(value, float | Skipped) or (isinstance(value, str) and len(value) <= 10**4)
