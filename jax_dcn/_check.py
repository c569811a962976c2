"""Checks of what a user passes. Each names the argument, says what it must be and what it is."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = tuple(map(jnp.dtype, (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)))
_FLOAT_NAMES = "float16, bfloat16, float32 or float64"


def array(name: str, value: Any) -> jax.Array:
    """`value` as an array of one of the four floating types."""
    if not isinstance(value, jax.Array | np.ndarray | np.generic) and not hasattr(value, "__jax_array__"):
        raise TypeError(f"{name} must be an array, got {value!r} of type {type(value).__name__}")
    converted = jnp.asarray(value)
    if converted.dtype not in FLOATS:
        raise TypeError(f"{name} must be of type {_FLOAT_NAMES}, got {converted.dtype}")
    return converted


def dtype(name: str, value: Any) -> np.dtype:
    try:
        converted = jnp.dtype(value)
    except TypeError:
        converted = None
    if converted not in FLOATS:
        raise TypeError(f"{name} must be {_FLOAT_NAMES}, got {value!r}")
    return converted


def rank(name: str, value: jax.Array, ndim: int, axes: str, least: bool = False) -> None:
    if value.ndim != ndim and not (least and value.ndim > ndim):
        raise ValueError(f"{name} must have {'at least ' * least}{ndim} dimensions {axes}, got shape {value.shape}")


def choice(name: str, value: Any, choices: Sequence) -> None:
    if not any(value is c or (isinstance(c, str) and value == c) for c in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def positive(name: str, value: Any) -> int:
    if not _is_int(value) or value < 1:
        raise _wrong(name, "a positive int", value)
    return int(value)


def pair(name: str, value: Any) -> tuple[int, int]:
    """A positive int or two, as two."""
    values = (value, value) if _is_int(value) else value
    if not _are_ints(values) or min(values) < 1:
        raise _wrong(name, "a positive int or a pair of them", value)
    return int(values[0]), int(values[1])


def padding(value: Any, image_size, kernel_size, strides, kernel_dilation):
    """((top, bottom), (left, right)), and whether the image is a torus."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_size, kernel_dilation, strict=True)]
    if isinstance(value, str):
        if value in ("SAME", "SAME_LOWER", "VALID"):
            pads = jax.lax.padtype_to_pads(image_size, reach, strides, value)
            return tuple((int(low), int(high)) for low, high in pads), False
        if value == "CIRCULAR":
            return tuple(((r - 1) // 2, r // 2) for r in reach), True
    elif _is_int(value):
        return ((int(value), int(value)),) * 2, False
    elif isinstance(value, Sequence) and len(value) == 2:
        sides = [(v, v) if _is_int(v) else v for v in value]
        if all(map(_are_ints, sides)):
            return tuple((int(low), int(high)) for low, high in sides), False
    expected = "'SAME', 'SAME_LOWER', 'VALID', 'CIRCULAR', an int, a pair of ints or ((top, bottom), (left, right))"
    raise _wrong("padding", expected, value)


def _is_int(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _are_ints(values) -> bool:
    return isinstance(values, Sequence | np.ndarray) and len(values) == 2 and all(map(_is_int, values))


def _wrong(name, expected, value) -> Exception:
    error = ValueError if _is_int(value) or isinstance(value, str | Sequence | np.ndarray) else TypeError
    return error(f"{name} must be {expected}, got {value!r}")
