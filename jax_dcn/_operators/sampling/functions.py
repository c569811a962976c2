"""The public functions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from numpy.lib.array_utils import normalize_axis_tuple

from jax_dcn import _validation
from jax_dcn._operators.sampling.arguments import (
    MAX_AXES,
    MODES,
    ORDERS,
    SCIPY_NAMES,
    CanonicalCall,
    canonicalize_coordinates,
    canonicalize_grid,
    canonicalize_size,
    is_channels_first,
    shape_of_coordinates,
)
from jax_dcn._operators.sampling.geometry import Outside
from jax_dcn._operators.sampling.primitive import deform_sampling
from jax_dcn._operators.sampling.splines import SPLINE_ORDERS, coefficients, interpolate
from jax_dcn._primitive.jax_internals import reshape
from jax_dcn._primitive.promotion import by_standard_rules

DataFormat = Literal["NHWC", "NCHW", "NDHWC", "NCDHW"]


def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    method: Literal["bilinear", "nearest", "bicubic"] = "bilinear",
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = False,
    data_format: DataFormat | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Samples images at the points of a grid, as `torch.nn.functional.grid_sample` does.

    A coordinate is in [-1, 1] within the image: -1 and 1 are its edges, or with `align_corners` the centres of its
    outermost pixels. Pixel i has its centre at i. Along an axis of s pixels, a coordinate g lies at::

        p = ((g + 1) · s - 1) / 2          align_corners=False
        p = (g + 1) / 2 · (s - 1)          align_corners=True

    What lies outside is zero ("zeros"), the nearest pixel ("border"), or the image mirrored at its edges, or with
    `align_corners` at its outermost centres ("reflection"). "bilinear" interpolates between the 2 pixels next to p
    along each axis (trilinear in 3-D), "bicubic" between 4 (a = -0.75), and "nearest" rounds p, halves to even.

    Derivatives exist to any order, in forward and reverse mode. Where p is an integer, the derivative of "bilinear" is
    the right-hand one, and it is zero at and beyond the outermost centres with "border" and "reflection", as in
    PyTorch. A NaN coordinate makes the sample NaN. An infinite one is outside: zero with "zeros" and "reflection",
    the nearest pixel with "border". docs/sampling.md compares PyTorch, SciPy and this package.

    Over several devices, `jit` shards it by batch dimensions, points and channels.

    Args:
      x: [..., H, W, C], or [..., D, H, W, C]; float16, bfloat16, float32 or float64. With any number of leading
        dimensions, none included.
      grid: [..., P, 2] as (x, y), or [..., P, 3] as (x, y, z), with the leading dimensions of x. P stands for any
        number of dimensions of points, at least one; float32, float64 or integers. 16-bit types are refused: they
        cannot tell the pixels of a large image apart. One grid for several images has 1 in place of their dimensions:
        ``grid[None]`` for a batch. [P, 2] and [P, 3] with one dimension P need none.
      method: "bilinear", "nearest", or in 2-D "bicubic".
      padding_mode: "zeros", "border" or "reflection".
      align_corners: whether -1 and 1 are the centres of the outermost pixels, not the edges of the image.
      data_format: None for channels last, as "NHWC" and "NDHWC" mean; "NCHW" and "NCDHW" have the channels before the
        axes of the image, and before the points in the result. N stands for all leading dimensions.
      backend: None for the kernels of the platform that the computation runs on, "reference" for the `jax.numpy` form.

    Returns:
      [..., P, C], of x's type. Weights and sums are float32 or wider.

    Raises:
      TypeError: an argument has a wrong type, or an array has a dtype that is not supported.
      ValueError: shapes do not fit together, or an option has an unknown value.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.arange(12.0).reshape(3, 4, 1)
      >>> grid = jnp.array([[0.0, 0.0], [-1.0, -1.0], [1.0, 0.0]])
      >>> jax_dcn.grid_sample(x, grid, align_corners=True)[:, 0]
      Array([5.5, 0. , 7. ], dtype=float32)
    """
    canonical = canonicalize_grid(
        x, grid, method=method, padding_mode=padding_mode, align_corners=align_corners, data_format=data_format
    )
    return _sample_as(canonical, x, data_format, backend)


def resize(
    x: ArrayLike,
    size: int | tuple[int, int],
    *,
    method: Literal["bilinear", "bicubic"] = "bilinear",
    align_corners: bool = False,
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Resizes images, as `torch.nn.functional.interpolate` does with a `size` and without antialiasing.

    Along an axis that is resized from s to t pixels, pixel i of the result lies at::

        p = (i + 0.5) · s / t - 0.5        align_corners=False
        p = i · (s - 1) / (t - 1)          align_corners=True; 0 if t = 1

    "bilinear" interpolates between the 2 pixels next to p along each axis, "bicubic" between 4 (a = -0.75). The
    outermost pixels continue outside. There is no antialiasing: where an image becomes much smaller, some of its pixels
    are not read. (`jax.image.resize` has antialiasing by default, and its "cubic" has a = -0.5.)

    It runs the kernels of :func:`jax_dcn.grid_sample`, has derivatives to any order, and is sharded like it.

    Args:
      x: [..., H, W, C]; float16, bfloat16, float32 or float64. With any number of leading dimensions, none included.
      size: height and width of the result in pixels; an int means a square.
      method: "bilinear" or "bicubic".
      align_corners: whether the centres of the corner pixels stay in the corners, not the edges of the image.
      data_format: "NHWC", or "NCHW" for [..., C, H, W] and such a result. N stands for all leading dimensions.
      backend: None for the kernels of the platform that the computation runs on, "reference" for the `jax.numpy` form.

    Returns:
      [..., height, width, C], of x's type. Positions, weights and sums are float32 or wider.

    Raises:
      TypeError: an argument has a wrong type, or x has a dtype that is not supported.
      ValueError: x has too few dimensions, or an option has an unknown value.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.array([[0.0, 4.0], [8.0, 12.0]])[..., None]
      >>> jax_dcn.resize(x, (2, 4))[..., 0]
      Array([[ 0.,  1.,  3.,  4.],
             [ 8.,  9., 11., 12.]], dtype=float32)
    """
    canonical = canonicalize_size(x, size, method=method, align_corners=align_corners, data_format=data_format)
    return _sample_as(canonical, x, data_format, backend)


@by_standard_rules
def map_coordinates(
    input: ArrayLike,
    coordinates: Sequence[ArrayLike],
    order: int,
    mode: str = "constant",
    cval: ArrayLike = 0.0,
    *,
    prefilter: bool = True,
    batch_dims: int = 0,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """`jax.scipy.ndimage.map_coordinates` by kernels: samples an array at coordinates in pixels.

    It takes the arguments of that function and has its results, for arrays of one to three axes. The splines of orders
    2 to 5 are those of `scipy.ndimage.map_coordinates`, which jax lacks. `input` may also have a last axis of channels,
    which the coordinates lack: then every point samples a vector. And it may be a batch, as under `jax.vmap`.

    The modes say which pixel stands for one outside, at the end of a row a b c d::

        "constant"   cval cval | a b c d | cval cval
        "nearest"         a a  | a b c d | d d
        "wrap"            c d  | a b c d | a b          SciPy's "grid-wrap"
        "mirror"          c b  | a b c d | c b
        "reflect"         b a  | a b c d | d c

    "grid-constant" is the same as "constant" with orders 0 and 1. With splines, "constant" mirrors the pixels, as SciPy
    does, and every point outside the centres of the outermost pixels is cval.

    Derivatives exist to any order, in forward and reverse mode. Where a coordinate is an integer, those of order 1 are
    right-hand ones. A NaN coordinate makes the sample NaN. An infinite one, or one of 2**30 and more with "wrap",
    "mirror" or "reflect", gives zero, the cval of "constant" and "grid-constant", and the outermost pixel of "nearest".
    Splines need a copy of `input` in float32 or wider, and the prefilter spreads a pixel that is not finite over its
    neighbours. Their error in float32 grows with the position, as the spacing of float32 coordinates does:
    docs/sampling.md has numbers.

    Args:
      input: [batch, sizes] or [batch, sizes, channels], with no batch by default, and one to three sizes; floats,
        integers, bool or complex numbers. The samples of integers are rounded, halves away from zero, and clipped to
        the limits of their type; those of bool are True from 0.5 on. Orders 1 to 5 compute them in float32, or in
        float64 with `jax_enable_x64`; order 0 has the integers themselves.
      coordinates: an array or a sequence of arrays, one for each of the one to three axes, of shapes that broadcast to
        that of the points; float32, float64 or integers. With `batch_dims` they broadcast to [batch, points], or to a
        shape with 1 in place of a dimension of the batch: then its images have the same points.
      order: 0 for the nearest pixel, rounding halves away from zero, as jax and not as SciPy; 1 for linear
        interpolation; 2 to 5 for splines of this order through the pixels.
      mode: "constant", "grid-constant", "nearest", "wrap", "mirror" or "reflect".
      cval: what pixels outside are with mode="constant"; a number or an array without dimensions.
      prefilter: False if `input` holds spline coefficients, from `spline_filter`. Orders 0 and 1 have no filter.
      batch_dims: how many dimensions of `input` are the batch.
      backend: None for the kernels of the platform that the computation runs on, "reference" for the `jax.numpy` form.

    Returns:
      [batch, points] or [batch, points, channels], as `input` has channels or not; of input's type.

    Raises:
      TypeError: an argument has a wrong type, or an array has a dtype that is not supported.
      ValueError: the number or the shape of the coordinates does not fit input, or an option has an unknown value.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.arange(12.0).reshape(3, 4)
      >>> jax_dcn.map_coordinates(x, [jnp.array([0.5, 1.5]), jnp.array([1.5, 2.5])], order=1)
      Array([3.5, 8.5], dtype=float32)
      >>> batch = jnp.stack([x, -x])
      >>> jax_dcn.map_coordinates(batch, [jnp.array([[0.5], [1.5]]), jnp.array([[1.5], [2.5]])], order=1, batch_dims=1)
      Array([[ 3.5],
             [-8.5]], dtype=float32)
    """
    order = _validation.natural("order", order)
    _validation.choice("order", order, (*ORDERS, *SPLINE_ORDERS))
    _check_mode(mode)
    _validation.choice("prefilter", prefilter, (True, False))
    batch_dims = _validation.natural("batch_dims", batch_dims)
    array = _validation.as_array("input", input)
    listed = [_validation.coordinates(f"coordinates[{k}]", jnp.asarray(one)) for k, one in enumerate(coordinates)]
    num_channel_axes = array.ndim - batch_dims - len(listed)
    if not 1 <= len(listed) <= MAX_AXES or num_channel_axes not in (0, 1):
        raise ValueError(
            f"coordinates must have one array for each axis of input, at most {MAX_AXES}, of which a last one may be "
            f"channels and the first batch_dims={batch_dims} are none, got {len(listed)} for input of shape "
            f"{array.shape}"
        )
    shape = shape_of_coordinates(listed, array.shape[:batch_dims])
    shared = [axis for axis in range(batch_dims) if shape[axis] == 1]
    sample = partial(_of_any_type, order=order, mode=mode, cval=cval, prefilter=prefilter, backend=backend)
    for axis in reversed(range(batch_dims)):
        sample = jax.vmap(sample, in_axes=(0, None if axis in shared else 0))
    x = array if num_channel_axes else array[..., None]
    sampled = sample(x, [jnp.squeeze(jnp.broadcast_to(one, shape), shared) for one in listed])
    return sampled if num_channel_axes else sampled[..., 0]


@by_standard_rules
def spline_filter(
    input: ArrayLike, order: int = 3, mode: str = "mirror", *, axes: Sequence[int] | None = None
) -> jax.Array:
    """`scipy.ndimage.spline_filter`: the coefficients of the spline through the pixels of an array.

    An array that is sampled more than once can be filtered once. `map_coordinates` samples the coefficients with the
    same order and mode, and ``prefilter=False``. The samples are those of the array itself, not rounded to its type.
    With "nearest" and "grid-constant" they differ near the border, as in SciPy: `map_coordinates` adds 12 pixels around
    the array before it filters it, and `spline_filter` adds none.

    Args:
      input: an array of any shape; floats, integers, bool or complex numbers.
      order: 2 to 5. With 0 and 1, pixels are their own coefficients.
      mode: how the array continues outside, by the names of `map_coordinates`: "nearest" as "reflect", and "constant"
        and "grid-constant" as "mirror".
      axes: those that are filtered, by default all. Leave out those of channels and of a batch. Negative axes count
        from the last one.

    Returns:
      The coefficients, of input's shape, in its type if that is a complex one or of floats of at least 32 bits. Others
      become float32, and integers float64 with `jax_enable_x64`.

    Raises:
      TypeError, ValueError: an argument has a wrong type or an unknown value, or a filtered axis has no pixels.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.array([0.0, 1.0, 4.0, 9.0, 16.0])
      >>> filtered = jax_dcn.spline_filter(x)
      >>> jax_dcn.map_coordinates(filtered, [jnp.array([1.0, 2.5])], order=3, mode="mirror", prefilter=False).round(2)
      Array([1.  , 5.91], dtype=float32)
    """
    order = _validation.natural("order", order)
    _validation.choice("order", order, (*ORDERS, *SPLINE_ORDERS))
    _check_mode(mode)
    x = _validation.as_array("input", input)
    try:
        filtered = range(x.ndim) if axes is None else normalize_axis_tuple(axes, x.ndim)
    except (TypeError, ValueError) as error:
        expected = f"different axes of input, from {-x.ndim} to {x.ndim - 1}"
        raise ValueError(f"axes must be {expected}, got {axes!r}") from error
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(*(spline_filter(part, order, mode, axes=filtered) for part in (x.real, x.imag)))
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32) if x.dtype in _validation.FLOATS else jnp.result_type(float))
    if order not in SPLINE_ORDERS:
        return x
    if any(x.shape[axis] == 0 for axis in filtered):
        raise ValueError(f"input must have pixels along each axis for order={order}, got shape {x.shape}")
    return coefficients(x, order, filtered, mode)


def _check_mode(mode: Any) -> None:
    if mode in SCIPY_NAMES:
        raise ValueError(f"mode must be {SCIPY_NAMES[mode]!r} for SciPy's {mode!r}")
    _validation.choice("mode", mode, tuple(MODES))


def _of_any_type(
    x: jax.Array, coordinates: list[jax.Array], order: int, mode: str, cval: ArrayLike, prefilter: bool, backend: Any
) -> jax.Array:
    """The samples of x with channels, which are sampled as one or more channels of floats each."""
    encode, decode = _channels_of_floats(x.dtype, order)
    fills: ArrayLike = 0.0
    if not _is_zero(cval):
        fills = encode(jnp.full(x.shape[-1:], _fill(cval, x.dtype)))
    return decode(_of_floats(encode(x), coordinates, order, mode, fills, prefilter, backend))


def _channels_of_floats(dtype: Any, order: int) -> tuple[Callable[[jax.Array], jax.Array], ...]:
    """A function from arrays [..., C] of this type to floats [..., n · C], and one from samples of these back."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (
            lambda array: jnp.concatenate([array.real, array.imag], -1),
            lambda sampled: lax.complex(*jnp.split(sampled, 2, -1)).astype(dtype),
        )
    if jnp.issubdtype(dtype, jnp.floating):
        return (lambda array: _validation.array("input", array)), (lambda sampled: sampled.astype(dtype))
    words = dtype.itemsize // 2
    if order == 0 and words > 1:  # float32 does not hold all integers of these types, but all words of 16 bits
        return (
            lambda array: reshape(
                lax.bitcast_convert_type(array, jnp.uint16), (*array.shape[:-1], words * array.shape[-1])
            ).astype(jnp.float32),
            lambda sampled: lax.bitcast_convert_type(
                reshape(sampled.astype(jnp.uint16), (*sampled.shape[:-1], sampled.shape[-1] // words, words)), dtype
            ),
        )
    return (lambda array: array.astype(jnp.result_type(float))), partial(_rounded, dtype=dtype)


def _rounded(sampled: jax.Array, dtype: Any) -> jax.Array:
    """Integers next to samples, halves away from zero, and the limits of the type for those outside; 0 for NaN."""
    rounded = lax.round(sampled)
    if jnp.issubdtype(dtype, jnp.bool_):
        return rounded > 0
    limits = jnp.iinfo(dtype)
    # XLA does not define the integer of a float outside the type, and the float of limits.max may be outside.
    inside = jnp.clip(rounded, float(limits.min), float(limits.max)).astype(dtype)
    return jnp.where(rounded >= float(limits.max), jnp.asarray(limits.max, dtype), inside)


def _fill(cval: ArrayLike, dtype: Any) -> jax.Array:
    """cval as an array of this type."""
    is_known, kind = not isinstance(cval, jax.core.Tracer), jnp.issubdtype
    type_ = np.asarray(cval).dtype if is_known else jnp.result_type(cval)
    is_number = kind(type_, jnp.number) or kind(type_, jnp.bool_)
    if not is_number or (kind(type_, jnp.complexfloating) and not kind(dtype, jnp.complexfloating)):
        raise TypeError(f"cval must be a number that fits input of type {dtype}, got {cval!r}")
    if jnp.ndim(cval):
        raise ValueError(f"cval must be a number or an array without dimensions, got shape {jnp.shape(cval)}")
    if kind(dtype, jnp.integer) and is_known:
        limits = jnp.iinfo(dtype)
        if not limits.min <= np.asarray(cval) <= limits.max:
            raise ValueError(f"cval must be from {limits.min} to {limits.max} for input of type {dtype}, got {cval}")
    if kind(type_, jnp.floating) and not kind(dtype, jnp.inexact):
        return _rounded(jnp.asarray(cval, float), dtype)
    return jnp.asarray(cval, dtype)


def _is_zero(value: ArrayLike) -> bool:
    return isinstance(value, int | float) and value == 0


def _of_floats(
    x: jax.Array, coordinates: list[jax.Array], order: int, mode: str, cval: ArrayLike, prefilter: bool, backend: Any
) -> jax.Array:
    """The samples of x with channels, of a floating type; cval may be one for each channel."""
    if order in SPLINE_ORDERS:
        if 0 in x.shape[: len(coordinates)]:
            raise ValueError(f"input must have pixels along each axis for order={order}, got shape {x.shape[:-1]}")

        def sample(found: jax.Array, positions: list[jax.Array], outside: Outside) -> jax.Array:
            return _sample(canonicalize_coordinates(found, positions, order=1, outside=outside), backend)

        return interpolate(x, coordinates, order, mode, cval, prefilter, sample)
    if mode in ("constant", "grid-constant") and not _is_zero(cval):
        # Every pixel outside is one of those that are added around the image.
        frame = [(1, 1)] * len(coordinates) + [(0, 0)]
        around = jnp.pad(jnp.ones(x.shape[:-1], bool), frame[:-1])[..., None]
        x = jnp.where(around, jnp.pad(x, frame), jnp.asarray(cval, x.dtype))
        coordinates, mode = [_shifted(coordinate, order) for coordinate in coordinates], "nearest"
    return _sample(canonicalize_coordinates(x, coordinates, order=order, outside=MODES[mode]), backend)


def _shifted(coordinate: jax.Array, order: int) -> jax.Array:
    """The coordinate of the same pixels in an image with one more in front."""
    rounds = order == 0 and jnp.issubdtype(coordinate.dtype, jnp.floating)
    rounded = lax.round(coordinate, lax.RoundingMethod.AWAY_FROM_ZERO) if rounds else coordinate
    return rounded + jnp.int32(1)  # not in 8 bits


def _sample_as(canonical: CanonicalCall, x: ArrayLike, data_format: DataFormat | None, backend: Any) -> jax.Array:
    """The samples, of the type and the layout of x."""
    out = _sample(canonical, backend).astype(jnp.asarray(x).dtype)
    return jnp.moveaxis(out, -1, out.ndim - 1 - len(canonical.points)) if is_channels_first(data_format) else out


def _sample(canonical: CanonicalCall, backend: Any) -> jax.Array:
    """The samples, with the dimensions of the points."""
    _validation.choice("backend", backend, _validation.BACKENDS)
    operands, spec, points = canonical
    out = deform_sampling(operands, spec=spec, backend=backend)
    return reshape(out, (*out.shape[:-2], *points, out.shape[-1]))
