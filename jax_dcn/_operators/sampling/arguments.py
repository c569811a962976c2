"""Checks what users pass, and makes the canonical operands of it.

x is [..., *sizes, channels], an image of one to three axes.
"""

import math
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.sampling.geometry import Fold, Method, Outside, Spec, Units
from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.jax_internals import reshape
from jax_dcn._primitive.promotion import kernel_dtypes, sum_dtype
from jax_dcn._types import A, Shaped

MAX_AXES = 3
METHODS: dict[str, Method] = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
PADDING_MODES: dict[str, Fold] = {"zeros": "none", "border": "clip", "reflection": "reflect"}
AXES_OF_FORMAT = {"NHWC": 2, "NCHW": 2, "NDHWC": 3, "NCDHW": 3}
# Beyond the outermost centres, PyTorch clips positions of "bilinear" and pixels of "bicubic", as its grid_sample does.
RESIZE_SPECS = {"bilinear": Spec(2, "linear", fold="clip"), "bicubic": Spec(2, "cubic", outside="clip")}
ORDERS: dict[int, Method] = {0: "rounded", 1: "linear"}
MODES: dict[str, Outside] = {
    "constant": "zero",
    "grid-constant": "zero",
    "nearest": "clip",
    "wrap": "wrap",
    "mirror": "mirror",
    "reflect": "reflect",
}
SCIPY_NAMES = {"grid-wrap": "wrap", "grid-mirror": "reflect"}  # SciPy's "wrap" is another mode


class Operands(NamedTuple, Generic[A]):
    """The canonical operands, as arrays or as their shapes and types.

    locations: [..., points, axes], the last axis first; or if the spec is planar None, and the coordinates along each
    axis are [..., points].
    """

    x: A
    locations: A | None
    along_0: A | None = None
    along_1: A | None = None
    along_2: A | None = None

    @property
    def located(self) -> dict[str, A]:
        """The locations, or the coordinates along each axis."""
        return {name: array for name, array in self._asdict().items() if name != "x" and array is not None}


class CanonicalCall(NamedTuple):
    """Operands and a spec; the dimensions of the points are `points`, of which locations have the product."""

    operands: Operands[jax.Array]
    spec: Spec
    points: tuple[int, ...]


def canonicalize_grid(
    x: ArrayLike, grid: ArrayLike, *, method: Any, padding_mode: Any, align_corners: Any, data_format: Any
) -> CanonicalCall:
    """The canonical call of `grid_sample`; channels of x are moved to the end."""
    _validation.choice("method", method, tuple(METHODS))
    _validation.choice("padding_mode", padding_mode, tuple(PADDING_MODES))
    _validation.choice("align_corners", align_corners, (True, False))
    _validation.choice("data_format", data_format, (None, *AXES_OF_FORMAT))
    x, grid = _validation.array("x", x), _validation.coordinates("grid", grid)
    dims = grid.shape[-1] if grid.ndim else 0
    if dims not in (2, 3):
        raise ValueError(f"grid must have 2 or 3 coordinates (x, y[, z]) in its last dimension, got shape {grid.shape}")
    if data_format and AXES_OF_FORMAT[data_format] != dims:
        raise ValueError(
            f"data_format must be that of an image of {dims} axes, as grid has {dims} coordinates, got {data_format!r}"
        )
    if method == "bicubic" and dims == 3:
        raise ValueError("method must be 'bilinear' or 'nearest' for a grid of 3 coordinates, got 'bicubic'")
    x = _channels_last(x, dims, data_format)
    leading = x.shape[: -dims - 1]
    if grid.ndim == 2:  # without leading dimensions, whatever those of x are
        grid = grid.reshape(*[1] * len(leading), *grid.shape)
    if grid.ndim < len(leading) + 2 or not _broadcasts(grid.shape, leading):
        raise ValueError(
            f"grid must have the leading dimensions {leading} of x, or 1 in their place, then those of the points and "
            f"a last one of {dims} coordinates, got shape {grid.shape}"
        )
    units: Units = "corners" if align_corners else "edges"
    if method == "bicubic":  # which folds pixels, not positions
        pixels: dict[str, Outside] = {
            "zeros": "zero",
            "border": "clip",
            "reflection": "mirror" if align_corners else "reflect",
        }
        spec = Spec(dims, "cubic", units, outside=pixels[padding_mode])
    else:
        spec = Spec(dims, METHODS[method], units, PADDING_MODES[padding_mode])
    points = grid.shape[len(leading) : -1]
    grid = jnp.broadcast_to(grid, (*leading, *points, dims))
    return _canonical_call(x, [reshape(grid, (*leading, math.prod(points), dims))], spec, points)


def canonicalize_size(x: ArrayLike, size: Any, *, method: Any, align_corners: Any, data_format: Any) -> CanonicalCall:
    """The canonical call of `resize`, whose locations are in pixels."""
    _validation.choice("method", method, tuple(RESIZE_SPECS))
    _validation.choice("align_corners", align_corners, (True, False))
    _validation.choice("data_format", data_format, ("NHWC", "NCHW"))
    points = _validation.pair("size", size)
    x = _channels_last(_validation.array("x", x), 2, data_format)
    axes = [
        _resized_axis(length, count, align_corners, sum_dtype(x.dtype))
        for length, count in zip(x.shape[-3:-1], points, strict=True)
    ]
    grid = jnp.stack(jnp.meshgrid(*axes, indexing="ij")[::-1], -1)
    locations = jnp.broadcast_to(grid.reshape(-1, 2), (*x.shape[:-3], math.prod(points), 2))
    return _canonical_call(x, [locations], RESIZE_SPECS[method], points)


def _resized_axis(length: Any, count: int, align_corners: bool, dtype: Any) -> jax.Array:
    """The positions of `count` pixels on an axis of `length`, which is an array for a symbolic dimension."""
    index, length = jnp.arange(count, dtype=dtype), jnp.asarray(length).astype(dtype)
    if align_corners:
        return index * ((length - 1) / max(count - 1, 1))
    return (index + 0.5) * (length / count) - 0.5


def canonicalize_coordinates(
    x: jax.Array, coordinates: Sequence[jax.Array], *, order: int, outside: Outside
) -> CanonicalCall:
    """The canonical call of `map_coordinates`, for x with channels and without a batch, and coordinates of a shape."""
    spec = Spec(len(coordinates), ORDERS[order], outside=outside, planar=True)
    points = coordinates[0].shape
    return _canonical_call(x, [reshape(array, (math.prod(points),)) for array in coordinates], spec, points)


def shape_of_coordinates(coordinates: Sequence[jax.Array], batch: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that coordinates broadcast to: the batch dimensions, or 1 in place of them, and the points."""
    shape = jnp.broadcast_shapes(*(array.shape for array in coordinates))
    if not _broadcasts(shape, batch):
        raise ValueError(
            f"coordinates must have the batch dimensions {batch} of input, or 1 in their place, and then those of the "
            f"points, got shape {shape}"
        )
    return shape


def _broadcasts(shape: Sequence[int], leading: Sequence[int]) -> bool:
    """Whether a shape begins with these dimensions, or with 1 in place of some."""
    return len(shape) >= len(leading) and all(
        size in (1, of_images) for size, of_images in zip(shape, leading, strict=False)
    )


def check_operands(operands: Operands[Shaped], spec: Spec) -> None:
    """Raises ValueError unless the canonical operands fit."""
    x, located = operands.x, operands.located
    leading, sizes = x.shape[: -spec.dims - 1], x.shape[-spec.dims - 1 : -1]
    points = num_points(operands)
    shapes = [(*leading, points)] * spec.dims if spec.planar else [(*leading, points, spec.dims)]
    if [array.shape for array in located.values()] != shapes:
        raise ValueError(
            f"locations must have the leading dimensions {leading} of x, and {spec.dims} coordinates for each point, "
            f"got shapes {', '.join(str(array.shape) for array in located.values())}"
        )
    read = points * spec.sorted_taps
    if isinstance(math.prod(sizes), int) and math.prod(sizes) >= 2**31:
        raise ValueError(f"x must have fewer than 2**31 pixels an image, got shape {x.shape}")
    pixel_bytes = x.shape[-1] * x.dtype.itemsize
    if isinstance(pixel_bytes, int) and pixel_bytes >= 2**31:
        raise ValueError(f"the channels of a pixel of x must have fewer than 2**31 bytes, got {pixel_bytes}")
    if isinstance(read, int) and read >= 2**31:
        raise ValueError(
            f"the samples of an image must read fewer than 2**31 pixels together (4, 8 or 16 each), got {read}"
        )
    # Positions that are clipped or turned are exact in 32 bits.
    if any(isinstance(size, int) and size >= 2**29 for size in sizes):
        raise ValueError(f"x must have fewer than 2**29 pixels along each axis, got shape {x.shape}")


def num_points(operands: Operands[Shaped]) -> Any:
    """The number of points of each image."""
    first = next(iter(operands.located.values()))
    return first.shape[-1 if operands.locations is None else -2]


def axis_coordinates(operands: Operands[jax.Array]) -> list[jax.Array]:
    """The coordinates [..., points] along each axis of the image."""
    if operands.locations is None:
        return [*operands.located.values()]
    return [operands.locations[..., last] for last in reversed(range(operands.locations.shape[-1]))]


def _channels_last(x: jax.Array, dims: int, data_format: Any) -> jax.Array:
    """x, whose rank is checked, with its channels at the end."""
    axes = "H, W" if dims == 2 else "D, H, W"
    if not is_channels_first(data_format):
        _validation.rank("x", x, dims + 1, f"[..., {axes}, C]", least=True)
        return x
    _validation.rank("x", x, dims + 1, f"[..., C, {axes}]", least=True)
    return jnp.moveaxis(x, -dims - 1, -1)


def is_channels_first(data_format: str | None) -> bool:
    return data_format is not None and data_format[1] == "C"


def _canonical_call(x: jax.Array, located: list[jax.Array], spec: Spec, points: tuple[int, ...]) -> CanonicalCall:
    """located: the locations, or the coordinates along each axis."""
    data_dtype, wide = kernel_dtypes(x.dtype, *(array.dtype for array in located))
    x, *arrays = jax_internals.vary_alike([x.astype(data_dtype), *(array.astype(wide) for array in located)])
    operands = Operands(x, None, *arrays) if spec.planar else Operands(x, *arrays)
    check_operands(operands, spec)
    return CanonicalCall(operands, spec, points)
