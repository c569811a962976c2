"""Checkpoint files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_TORCH = (".pth", ".pt", ".ckpt", ".bin")


def load(path: str | os.PathLike[str], *, weights_only: bool = True) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint file, by their names.

    Args:
      path: ``.safetensors``, read by the package safetensors; ``.pth``, ``.pt``, ``.ckpt`` or ``.bin``, read by torch;
        or ``.npz``. A state dict inside a dictionary, under ``state_dict`` or ``model`` as mmdet, maskrcnn-benchmark
        and others save it, is found.
      weights_only: As in ``torch.load``: False reads files that hold other objects too, and runs code that they
        contain. Only for files that you trust.

    Returns:
      NumPy arrays; bfloat16 ones are of ml_dtypes' type.

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
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(path))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if path.suffix not in _TORCH:
        raise ValueError(f"path must end in .safetensors, .npz, {', '.join(_TORCH)}, got {str(path)!r}")
    return _state_dict(_load_torch(path, weights_only), path)


def to_array(value: Any) -> np.ndarray:
    """A NumPy array of what a state dict holds: that already, or a tensor."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # which NumPy knows by another package only
        import torch

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _load_torch(path: Path, weights_only: bool) -> Any:
    import pickle

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=weights_only)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{str(path)!r} holds more than arrays, which torch does not load unasked: if you trust the file, pass "
            "weights_only=False"
        ) from error


def _state_dict(content: Any, path: Path) -> dict[str, np.ndarray]:
    for name in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    arrays = content if isinstance(content, Mapping) else {}
    state = {name: to_array(value) for name, value in arrays.items() if hasattr(value, "shape")}
    if not state:
        raise ValueError(f"{str(path)!r} holds no arrays by name")
    return state
