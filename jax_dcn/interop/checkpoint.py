"""Reads checkpoint files."""

import logging
import os
import pickle
import reprlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jax_dcn.interop import torch_file

_TORCH = (".pth", ".pt", ".ckpt", ".bin")
_KEYS = ("state_dict", "model", "params", "model_state_dict", "net")  # under which files store their state dict
_AVERAGES = {  # averaged weights, and whose code evaluates them
    "ema.module": "RT-DETR and D-FINE",
    "params_ema": "BasicSR",
    "state_dict_ema": "timm",
}
_NAMES = 2**20  # characters of the names of all mappings in a file; mappings that hold each other have endless names

_SHORT = reprlib.Repr()  # for names in messages
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlist = 100


def load(path: str | os.PathLike[str], *, key: str | None = None, weights_only: bool = True) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint file, by their names.

    Args:
      path: ``.safetensors``, read by the package safetensors; ``.pth``, ``.pt``, ``.ckpt`` or ``.bin`` in either format
        of ``torch.save``, read without torch; Detectron2's ``.pkl``; or ``.npz``. Copies of all tensors in a file of
        ``torch.save`` must not need more than 16 times its size and 16 MiB: this limits expanded tensors.
      key: The key of the state dict in the file, such as "params_ema", or with dots, such as "ema.module" of RT-DETR's
        and D-FINE's authors. None looks for "state_dict" (mmdet), "model" (Detectron2, maskrcnn-benchmark), "params"
        (EDVR), "model_state_dict" and "net", and otherwise takes the whole file. A logged warning names other arrays in
        the file, unless they are of an optimizer. In files of mmengine, "state_dict" has the averaged weights, and
        "ema_state_dict" those that are not averaged.
      weights_only: False reads a ``.pkl`` file, and runs code in it: use it only for files that you trust. Other files
        do not need it, because no code in them is run: objects, such as the logs in a checkpoint of mmengine, are left
        out.

    Returns:
      NumPy arrays; bfloat16 is the type of ml_dtypes.

    Raises:
      ValueError: For a file of another kind, a damaged one, one without arrays, an array that NumPy cannot hold, an
        object among the arrays that was left out, such as a quantised or sparse tensor or a NumPy array in a file of
        ``torch.save``, or a mapping or a list among the arrays that holds such an object or more arrays. The message
        names the file, such an array or object, and the class of the object or the function that makes it.
      OSError: For a file that is missing or must not be read.
      ImportError: For a ``.safetensors`` file, if the package safetensors is not installed.

    Example:
      >>> import tempfile, numpy as np
      >>> from jax_dcn import interop
      >>> with tempfile.NamedTemporaryFile(suffix=".npz") as file:
      ...     np.savez(file, weight=np.ones((8, 4, 3, 3)))
      ...     file.flush()
      ...     interop.load(file.name)["weight"].shape
      (8, 4, 3, 3)
    """
    path = Path(path)
    return arrays_of(read(path, weights_only), path, key)


def read(path: Path, weights_only: bool = True) -> Any:
    """All that a checkpoint file contains, as :func:`load` reads it: arrays and texts by name, or what torch saved."""
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _safetensors(path)
    if suffix == ".npz":
        with _reading(path, "numpy.savez"), open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
            return {name: array for name, array in content.items() if isinstance(array, np.ndarray)}
    if suffix == ".pkl":
        if weights_only:
            raise ValueError(
                f"{str(path)!r} may hold code, as all of its kind: if you trust it, pass weights_only=False"
            )
        with _reading(path, "pickle"):
            return pickle.loads(path.read_bytes(), encoding="latin1")
    if suffix not in _TORCH:
        raise ValueError(f"path must end in .safetensors, .npz, .pkl, {', '.join(_TORCH)}, got {str(path)!r}")
    with _reading(path, "torch"):
        return torch_file.read(path)


class Unreadable(ValueError):
    """An error whose message names the file or the array already."""


@contextmanager
def _reading(path: Path, writer: str) -> Iterator[None]:
    """Raises ValueError for every error of a reader, and a damaged file may cause any, but for what the system says."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError, Unreadable):
        raise
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is not a whole file that {writer} has written: {type(error).__name__}: {str(error)[:1000]}"
        ) from error


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import safe_open

    arrays = {}
    with _reading(path, "safetensors"), safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118, because it is no mapping
            with _array_named(name, path):
                arrays[name] = file.get_tensor(name)
    return arrays


@contextmanager
def _array_named(name: str, path: Path | None = None) -> Iterator[None]:
    """Raises Unreadable, which names the array, for an error of its conversion."""
    try:
        yield
    except Exception as error:
        where = f" in {str(path)!r}" if path else ""
        raise Unreadable(
            f"{name!r}{where} cannot be converted to a NumPy array of a dense floating type: "
            f"{type(error).__name__}: {error}"
        ) from error


def to_array(name: str, value: Any, path: Path | None = None) -> np.ndarray:
    """Converts the value of this name in a state dict, which is an array or a tensor, to a NumPy array."""
    with _array_named(name, path):
        return _to_array(value)


def _to_array(value: Any) -> np.ndarray:
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy has this type only through ml_dtypes
        import torch

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def arrays_of(content: Any, path: Path, key: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of the state dict in what :func:`read` returned, at `key` or where files usually have it."""
    mappings = list(_inside(content, path))
    inside = dict(mappings)
    for one in _KEYS if key is None else (key,):
        if one in inside:
            break
        outer, _, last = one.rpartition(".")
        holder = inside.get(outer) if outer else content
        _check_is_read(holder.get(last) if isinstance(holder, Mapping) else None, f"{one!r} in {str(path)!r}")
    if key is not None and key not in inside:
        raise ValueError(f"key must be {_candidates(inside)}, which {str(path)!r} has, got {key!r}")
    if key is not None and [one for one, _ in mappings].count(key) > 1:
        raise ValueError(f"key must name one mapping in {str(path)!r}, got {key!r}, which names several")
    name = key or next((name for name in _KEYS if name in inside), None)
    _check_is_read(content, repr(str(path)))
    values = inside[name] if name else content if isinstance(content, Mapping) else {}
    for one, value in values.items():
        _check_is_read(value, f"{_SHORT.repr(one)} in {str(path)!r}")
    state = {name: to_array(name, value, path) for name, value in values.items() if _is_array(value)}
    if not state:
        raise Unreadable(f"{str(path)!r} holds no arrays by name; key may be {_candidates(inside)}")
    for one, value in _holders(values, lambda value: _is_array(value) or isinstance(value, torch_file.Skipped)):
        if one not in state:
            where = f"{_SHORT.repr(one)} in {str(path)!r}"
            _check_is_read(value, f"a value inside {where}, which lies among arrays,")
            raise Unreadable(
                f"{where} lies among arrays and holds arrays itself, which would be left out; "
                f"key may be {_candidates(inside)}"
            )
    left_out = [one for one, _ in _holders(content, _is_array) if one != name] if name and key is None else []
    if left_out:
        logging.getLogger(__name__).warning(
            "%r: the arrays of %r are loaded. Others are left out: %s. The argument key of interop.load may be %s",
            *(str(path), name, _SHORT.repr(left_out)[1:-1], _candidates(inside)),
        )
    return state


def _check_is_read(value: Any, where: str) -> None:
    if isinstance(value, torch_file.Skipped):
        raise Unreadable(
            f"{where} comes from {_SHORT.repr(value.name)}, which is not read without torch: with torch, save a state "
            "dict of dense tensors in its place"
        )


def _holders(values: Mapping[Any, Any], is_wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, Any]]:
    """The names of values that are wanted or hold a wanted value, each with such a value.

    Those of optimizers are left out, and what several values share is searched for the first of them only.
    """
    seen = set[int]()
    for name, value in values.items():
        waiting = [(name, value)]
        while waiting:
            inner, one = waiting.pop()
            if _is_of_optimizer(inner):
                continue
            if is_wanted(one):
                yield name, one
                break
            if isinstance(one, Mapping | list | tuple) and id(one) not in seen:
                seen.add(id(one))
                waiting += one.items() if isinstance(one, Mapping) else enumerate(one)


def _is_of_optimizer(name: Any) -> bool:
    return isinstance(name, str) and "optimizer" in name


def _inside(content: Any, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The mappings in what a file contains, by their names with dots."""
    waiting: deque[tuple[str, Any, tuple[Any, ...]]] = deque([("", content, ())])
    inner: dict[int, list[tuple[str, Any]]] = {}  # the mappings in each mapping
    length = 0
    while waiting:
        prefix, outer, outside = waiting.popleft()
        if id(outer) not in inner:
            items = outer.items() if isinstance(outer, Mapping) else ()
            inner[id(outer)] = [one for one in items if isinstance(one[0], str) and isinstance(one[1], Mapping)]
        for name, value in inner[id(outer)]:
            length += len(prefix) + len(name) + 1
            if length > _NAMES:
                raise Unreadable(f"{str(path)!r} nests mappings so often that their names are too long")
            if not any(value is one for one in outside):
                yield f"{prefix}{name}", value
                waiting.append((f"{prefix}{name}.", value, (*outside, value)))


def _candidates(inside: Mapping[str, Mapping[str, Any]]) -> str:
    """The keys of mappings that hold arrays, and which of them are evaluated by those who trained them."""
    mappings = {id(values): values for values in inside.values()}
    holders = {one for one, values in mappings.items() if any(map(_is_array, values.values()))}
    names = [name for name, values in inside.items() if id(values) in holders and not _is_of_optimizer(name)]
    evaluated = [f"; {users} evaluate {name!r}" for name, users in _AVERAGES.items() if name in names]
    return f"one of {_SHORT.repr(names)}{''.join(evaluated)}"


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and not (isinstance(value, np.ndarray) and value.dtype.kind == "U")
