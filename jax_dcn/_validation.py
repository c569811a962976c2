"""Checks of users' arguments. Each message names the argument, and says what it must be and what it is."""

import math
import operator
import reprlib
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_dcn._primitive import jax_internals

FLOATS = tuple(map(jnp.dtype, (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)))
BACKENDS = (None, "reference")  # of operators that have one kernel for each computation
_LIMIT = 2**31  # the kernels count positions on the grid in 32 bits
_FLOAT_NAMES = "float16, bfloat16, float32 or float64"
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 2  # the lengths of nested lists could fill a screen
_COUNTS = {1: "a tuple of one", 2: "a pair of them", 3: "three of them"}
_PADDINGS = {
    1: "or ((left, right),)",
    2: "a pair of ints or ((top, bottom), (left, right))",
    3: "three ints or ((front, back), (top, bottom), (left, right))",
}
_Pads = tuple[tuple[int, int], ...]  # (before, after) along each axis
_KNOWN = " that is known when the function is traced, as a Python number is"


def array(name: str, value: Any) -> jax.Array:
    """`value` as an array of one of the four floating types."""
    converted = as_array(name, value)
    if converted.dtype not in FLOATS:
        raise TypeError(f"{name} must be of type {_FLOAT_NAMES}, got {converted.dtype}")
    return converted


def coordinates(name: str, value: Any) -> jax.Array:
    """`value` as an array of float32, float64 or integers: 16 bits cannot tell the pixels of a large image apart."""
    converted = as_array(name, value)
    expected = f"{name} must be of type float32, float64 or an integer one, got {converted.dtype}"
    if converted.dtype in (jnp.float16, jnp.bfloat16):
        raise TypeError(
            f"{expected}, which loses whole pixels: pass float32 that was never rounded to 16 bits, or "
            f"{name}.astype('float32') where whole pixels do not matter"
        )
    if converted.dtype not in FLOATS and not jnp.issubdtype(converted.dtype, jnp.integer):
        raise TypeError(expected)
    return converted


def as_array(name: str, value: Any) -> jax.Array:
    """`value`, an array of any library, as one of jax."""
    if not isinstance(value, jax.Array | np.ndarray | np.generic) and not hasattr(value, "__jax_array__"):
        raise TypeError(f"{name} must be an array, got {_BRIEF.repr(value)} of type {type(value).__name__}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array without a mask of its elements: pass array.filled()")
    try:
        return jnp.asarray(value)
    except TypeError as error:  # for a type that jax does not have
        if not isinstance(value, np.ndarray | np.generic):
            raise
        order = (
            "" if value.dtype.isnative else " in the byte order of another machine: pass array.astype(array.dtype.type)"
        )
        raise TypeError(f"{name} must be of a type that jax has, got {value.dtype}{order}") from error


def dtype(name: str, value: Any) -> np.dtype:
    """`value` as one of the four floating types; float64 is float32 unless jax has it enabled, as in all of jax."""
    try:
        converted = jnp.dtype(value)
    except TypeError as error:
        raise TypeError(f"{name} must be {_FLOAT_NAMES}, got {value!r}") from error
    if converted not in FLOATS:
        raise TypeError(f"{name} must be {_FLOAT_NAMES}, got {value!r}")
    return jax.dtypes.canonicalize_dtype(converted)


# Names that jax.default_matmul_precision takes, besides those of precisions and algorithms.
_OLDER_NAMES = ("bfloat16", "tensorfloat32", "float32", "bfloat16_3x", "fastest")


def precision(value: Any) -> Any:
    """`value`, or jax's default, as `jax.lax.dot_general` takes it, and hashable."""
    if value is None:  # read now, as jax's own products do: the default may have changed when this is lowered
        default = jax_internals.config("jax_default_matmul_precision")
        if default in _OLDER_NAMES:
            return jax.lax.Precision(default)
        value = default or None
    kinds = (jax.lax.Precision, jax.lax.DotAlgorithm, jax.lax.DotAlgorithmPreset)

    def of_one(value: Any) -> Any:
        if value is None or isinstance(value, kinds):
            return value
        for kind in (jax.lax.Precision, jax.lax.DotAlgorithmPreset):
            if isinstance(value, str) and value.upper() in kind.__members__:
                return kind[value.upper()]
        names = "None, a jax.lax.Precision, a jax.lax.DotAlgorithmPreset, the name of one, or a pair of precisions"
        raise ValueError(f"precision must be {names}, got {value!r}")

    return tuple(map(of_one, value)) if isinstance(value, tuple | list) and len(value) == 2 else of_one(value)


def rank(name: str, value: jax.Array, ndim: int, axes: str, least: bool = False) -> None:
    if value.ndim != ndim and not (least and value.ndim > ndim):
        raise ValueError(f"{name} must have shape {axes}, got {value.shape}")


def choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if not any(value is c or (isinstance(c, str) and value == c) for c in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def run_options(deterministic: Any, backend: Any, backends: Sequence[Any] = BACKENDS) -> None:
    choice("deterministic", deterministic, (None, True, False))
    choice("backend", backend, backends)


def known_keywords(function: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises TypeError, as Python does, if `function` does not take one of the options."""
    if unknown := options.keys() - set(known):
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")


def number(name: str, value: Any) -> float:
    """`value`, a real number or an array of no dimensions, as a finite float."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} must be a number{_KNOWN}, got {value!r}")
    scalar = value.item() if isinstance(value, jax.Array | np.ndarray | np.generic) and value.ndim == 0 else value
    if not isinstance(scalar, Real) or isinstance(scalar, bool):
        raise TypeError(f"{name} must be a finite number, got {value!r}")
    try:
        converted = float(scalar)
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return converted


def scale(name: str, value: Any) -> float:
    """`value` as a number that float32 holds as a positive one, and whose inverse it holds."""
    converted = number(name, value)
    if not 1e-37 < converted < 1e37:
        raise ValueError(f"{name} must be a positive number that float32 can hold, got {value!r}")
    return converted


def function(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {value!r}")


def positive(name: str, value: Any) -> int:
    if not _is_int(value) or value < 1:
        raise _wrong(name, "a positive int", value)
    return int(value)


def natural(name: str, value: Any) -> int:
    if not _is_int(value) or value < 0:
        raise _wrong(name, "a non-negative int", value)
    return int(value)


def index(name: str, value: Any, count: int) -> int:
    if not _is_int(value) or not 0 <= value < count:
        raise _wrong(name, f"an int from 0 to {count - 1}", value)
    return int(value)


def pair(name: str, value: Any, least: Literal[0, 1] = 1) -> tuple[int, int]:
    """A positive int or two, as two; with `least` of 0, they may also be 0."""
    first, second = sizes(name, value, 2, least)
    return first, second


def num_axes(name: str, value: Any) -> int:
    """The number of axes, one to three, that a size has: two for an int."""
    count = 2 if _is_int(value) or not hasattr(value, "__len__") else len(value)
    if count not in _COUNTS:
        raise _wrong(name, "an int, or one to three of them", value)
    return count


def sizes(name: str, value: Any, count: int, least: Literal[0, 1] = 1) -> tuple[int, ...]:
    """A positive int or `count` of them, as `count`; with `least` of 0, they may also be 0."""
    values = (value,) * count if _is_int(value) else value
    if not _are_ints(values, count) or not all(least <= int(v) < _LIMIT for v in values):
        sign = "positive" if least else "non-negative"
        raise _wrong(name, f"a {sign} int or {_COUNTS[count]}, less than 2**31", value)
    return tuple(map(int, values))


def padding(
    value: Any,
    image_size: Sequence[int],
    kernel_size: Sequence[int],
    strides: Sequence[int],
    kernel_dilation: Sequence[int],
) -> tuple[_Pads, bool]:
    """The pixels added (before, after) along each axis, and whether the image is a torus."""
    count = len(kernel_size)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_size, kernel_dilation, strict=True)]
    if max(reach) >= _LIMIT:
        raise _wrong("kernel_dilation", "so small that the kernel reaches less than 2**31 pixels", kernel_dilation)
    concrete = np.asarray(value).tolist() if _is_array(value) else value
    if isinstance(concrete, str):
        pads = _pads_of_name(concrete, image_size, reach, strides)
    else:
        pads = _pads_of_ints(concrete, count)
    if pads is None or any(abs(n) >= _LIMIT for pair in pads for n in pair):
        raise _wrong("padding", f"'SAME', 'SAME_LOWER', 'VALID', 'CIRCULAR', an int, {_PADDINGS[count]}", value)
    return pads, concrete == "CIRCULAR"


def _pads_of_name(name: str, image_size: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> _Pads | None:
    if name == "CIRCULAR":
        return tuple(((r - 1) // 2, r // 2) for r in reach)
    if name not in ("SAME", "SAME_LOWER", "VALID"):
        return None
    pads = _pads_of_ints(jax.lax.padtype_to_pads(image_size, reach, strides, name), len(reach))
    if pads is None:  # of symbolic dimensions, of an exported function
        shown = ", ".join(map(str, image_size))
        raise ValueError(f"padding must be given in ints for an image of size ({shown}), got {name!r}")
    return pads


def _pads_of_ints(value: Any, count: int) -> _Pads | None:
    """The pads that an int means for all axes, or one int or two for each; None if it is none of these."""
    sides = [value] * count if _is_int(value) else value
    if not isinstance(sides, Sequence) or len(sides) != count:
        return None
    pairs = [(side, side) if _is_int(side) else side for side in sides]
    if not all(_are_ints(pair, 2) for pair in pairs):
        return None
    return tuple((int(before), int(after)) for before, after in pairs)


def _is_int(value: Any) -> bool:
    """Whether `value` is an int, or an integer of numpy or jax that is known while tracing."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_array(value: Any) -> bool:
    """Whether `value` is an array that is known while tracing."""
    return isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer)


def _are_ints(values: Any, count: int) -> bool:
    a_sequence = isinstance(values, Sequence) or (_is_array(values) and values.ndim == 1)
    return a_sequence and len(values) == count and all(map(_is_int, values))


def _wrong(name: str, expected: str, value: Any) -> Exception:
    if isinstance(value, jax.core.Tracer):
        expected += _KNOWN
    error = ValueError if _is_int(value) or isinstance(value, str | Sequence) or _is_array(value) else TypeError
    return error(f"{name} must be {expected}, got {value!r}")
