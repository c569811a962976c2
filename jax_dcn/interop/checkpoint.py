"""Reads checkpoint files."""

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_TORCH = (".pth", ".pt", ".ckpt", ".bin")
_KEYS = ("state_dict", "model", "params", "model_state_dict", "net")  # under which files store their state dict


def load(path: str | os.PathLike[str], *, key: str | None = None, weights_only: bool = True) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint file, by their names.

    Args:
      path: ``.safetensors``, read by the package safetensors; ``.pth``, ``.pt``, ``.ckpt`` or ``.bin``, read by torch;
        Detectron2's ``.pkl``; or ``.npz``.
      key: The key of the state dict in the file, such as "params_ema". None looks for "state_dict" (mmdet), "model"
        (Detectron2, maskrcnn-benchmark), "params" (EDVR), "model_state_dict" and "net", and otherwise takes the whole
        file.
      weights_only: As in ``torch.load``. False also reads files that contain other objects, and runs code in them: use
        it only for files that you trust. A ``.pkl`` file needs it.

    Returns:
      NumPy arrays; bfloat16 is the type of ml_dtypes.

    Raises:
      ValueError: For a file of another kind, one that torch refuses, or one without arrays.
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
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(path))
    if suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{str(path)!r} is not a file that numpy.savez has written") from error
    if suffix == ".pkl":
        if weights_only:
            raise ValueError(
                f"{str(path)!r} may hold code, as all of its kind: if you trust it, pass weights_only=False"
            )
        return _state_dict(pickle.loads(path.read_bytes(), encoding="latin1"), key, path)
    if suffix not in _TORCH:
        raise ValueError(f"path must end in .safetensors, .npz, .pkl, {', '.join(_TORCH)}, got {str(path)!r}")
    return _state_dict(_load_torch(path, weights_only), key, path)


def to_array(value: Any) -> np.ndarray:
    """Converts a value of a state dict, which is an array or a tensor, to a NumPy array."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy has this type only through ml_dtypes
        import torch

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _load_torch(path: Path, weights_only: bool) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=weights_only)
    except pickle.UnpicklingError as error:
        if "Unsupported global" not in str(error):
            raise ValueError(f"{str(path)!r} is not a file that torch has written") from error
        raise ValueError(
            f"{str(path)!r} holds more than arrays, which torch does not load unasked: if you trust the file, pass "
            "weights_only=False"
        ) from error


def _state_dict(content: Any, key: str | None, path: Path) -> dict[str, np.ndarray]:
    inside = [name for name in content if isinstance(content[name], Mapping)] if isinstance(content, Mapping) else []
    if key is not None and key not in inside:
        raise ValueError(f"key must be one of {inside}, which {str(path)!r} has, got {key!r}")
    name = key or next((name for name in _KEYS if name in inside), None)
    if name:
        content = content[name]
    arrays = content if isinstance(content, Mapping) else {}
    state = {name: to_array(value) for name, value in arrays.items() if hasattr(value, "shape")}
    if not state:
        raise ValueError(f"{str(path)!r} holds no arrays by name; there may be some under {inside}, by key")
    return state
