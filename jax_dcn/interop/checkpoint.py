"""Reads checkpoint files."""

import logging
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_TORCH = (".pth", ".pt", ".ckpt", ".bin")
_KEYS = ("state_dict", "model", "params", "model_state_dict", "net")  # under which files store their state dict
_AVERAGES = {  # averaged weights, and whose code evaluates them
    "ema.module": "RT-DETR and D-FINE",
    "params_ema": "BasicSR",
    "state_dict_ema": "timm",
}


def load(path: str | os.PathLike[str], *, key: str | None = None, weights_only: bool = True) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint file, by their names.

    Args:
      path: ``.safetensors``, read by the package safetensors; ``.pth``, ``.pt``, ``.ckpt`` or ``.bin``, read by torch;
        Detectron2's ``.pkl``; or ``.npz``.
      key: The key of the state dict in the file, such as "params_ema", or with dots, such as "ema.module" of RT-DETR's
        and D-FINE's authors. None looks for "state_dict" (mmdet), "model" (Detectron2, maskrcnn-benchmark), "params"
        (EDVR), "model_state_dict" and "net", and otherwise takes the whole file. A logged warning names other arrays in
        the file, unless they are of an optimizer. In files of mmengine, "state_dict" has the averaged weights, and
        "ema_state_dict" those that are not averaged.
      weights_only: True runs no code in the file: objects of classes that torch does not know, such as the logs in a
        checkpoint of mmengine, are left out. False reads them as well, and runs code in the file: use it only for files
        that you trust. A ``.pkl`` file needs it.

    Returns:
      NumPy arrays; bfloat16 is the type of ml_dtypes.

    Raises:
      ValueError: For a file of another kind, a damaged one, one that torch refuses, one without arrays, an array that
        NumPy cannot hold, such as a quantised or sparse tensor, an object among the arrays that was left out, or a
        mapping or a list among the arrays that holds more of them. The message names the file, and such an array.
      OSError: For a file that is missing or must not be read.
      ImportError: If the package that reads such files is not installed.

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
    return _load_torch(path, weights_only)


class Skipped:
    """Stands for an object of a class that torch does not know: its arguments and its state are dropped."""

    def __new__(cls, *_: Any, **__: Any) -> "Skipped":
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


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
            f"{str(path)!r} is not a whole file that {writer} has written: {type(error).__name__}: {error}"
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


def _load_torch(path: Path, weights_only: bool) -> Any:
    import torch

    with _reading(path, "torch"):
        try:
            return torch.load(path, map_location="cpu", weights_only=weights_only)
        except pickle.UnpicklingError as error:
            if "unsupported global" not in str(error).lower():  # its long message suggests to pass weights_only=False
                raise Unreadable(f"{str(path)!r} is not a whole file that torch has written") from error
        try:
            unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            with torch.serialization.safe_globals([(Skipped, name) for name in unknown]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise Unreadable(
                f"{str(path)!r} holds objects that torch does not load unasked: if you trust the file, pass "
                "weights_only=False"
            ) from error


def arrays_of(content: Any, path: Path, key: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of the state dict in what :func:`read` returned, at `key` or where files usually have it."""
    mappings = list(_inside(content))
    inside = dict(mappings)
    if key is not None and key not in inside:
        raise ValueError(f"key must be {_candidates(inside)}, which {str(path)!r} has, got {key!r}")
    if key is not None and [one for one, _ in mappings].count(key) > 1:
        raise ValueError(f"key must name one mapping in {str(path)!r}, got {key!r}, which names several")
    name = key or next((name for name in _KEYS if name in inside), None)
    values = inside[name] if name else content if isinstance(content, Mapping) else {}
    skipped = [name for name, value in values.items() if isinstance(value, Skipped)]
    if skipped:
        raise Unreadable(
            f"{skipped[0]!r} in {str(path)!r} is an object that torch does not load unasked: if you trust the file, "
            "pass weights_only=False"
        )
    state = {name: to_array(name, value, path) for name, value in values.items() if _is_array(value)}
    if not state:
        raise Unreadable(f"{str(path)!r} holds no arrays by name; key may be {_candidates(inside)}")
    nested = [one for one in _with_arrays(values.items()) if one not in state]
    if nested:
        raise Unreadable(
            f"{nested[0]!r} in {str(path)!r} lies among arrays and holds arrays itself, which would be left out; "
            f"key may be {_candidates(inside)}"
        )
    left_out = [repr(one) for one in _with_arrays(content.items()) if one != name] if name and key is None else []
    if left_out:
        logging.getLogger(__name__).warning(
            "%r: the arrays of %r are loaded. Others are left out: %s. The argument key of interop.load may be %s",
            *(str(path), name, ", ".join(left_out), _candidates(inside)),
        )
    return state


def _with_arrays(values: Iterable[tuple[Any, Any]], outer: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The names of values that are arrays or hold some, other than those of optimizers.

    outer: the values that hold these, which may hold each other.
    """
    for name, value in values:
        inside: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping | list | tuple) and not _is_among(value, outer):
            inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        holds_arrays = _is_array(value) or any(True for _ in _with_arrays(inside, (*outer, value)))
        if holds_arrays and not _is_of_optimizer(name):
            yield name


def _is_among(value: Any, others: Iterable[Any]) -> bool:
    return any(value is other for other in others)


def _is_of_optimizer(name: Any) -> bool:
    return "optimizer" in str(name)


def _inside(content: Any, prefix: str = "", outer: tuple[Any, ...] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The mappings in what a file contains, by their names with dots."""
    for name, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(value, Mapping) and isinstance(name, str) and not _is_among(value, outer):
            yield f"{prefix}{name}", value
            yield from _inside(value, f"{prefix}{name}.", (*outer, value))


def _candidates(inside: Mapping[str, Mapping[str, Any]]) -> str:
    """The keys of mappings that hold arrays, and which of them are evaluated by those who trained them."""
    names = [name for name, values in inside.items() if any(map(_is_array, values.values()))]
    names = [name for name in names if not _is_of_optimizer(name)]
    evaluated = [f"; {users} evaluate {name!r}" for name, users in _AVERAGES.items() if name in names]
    return f"one of {names}{''.join(evaluated)}"


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and not (isinstance(value, np.ndarray) and value.dtype.kind == "U")
