"""Functions of other libraries by means of this package's operators.

Parameters have the names and the order of the functions that are replaced, because callers pass them by name, and
because `patch` compares them. N: images; Q: queries; S: pixels of all L levels; P: points; a location is (x, y).
"""

import functools
import math
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.aggregation.functions import multi_scale_deformable_attention
from jax_dcn._operators.assignment.functions import linear_sum_assignment
from jax_dcn._operators.sampling.arguments import MAX_AXES
from jax_dcn._operators.sampling.functions import map_coordinates
from jax_dcn._primitive.promotion import by_standard_rules, sum_dtype

Shapes = Sequence[Sequence[int]]
Adapter = Callable[..., Any]
JAX_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")


class Left(Exception):
    """An adapter leaves a call to the original function; the message says of which kind it is."""


def _of_arrays(adapter: Adapter) -> Adapter:
    """An adapter that takes the arrays that operations of jax take, and refuses types that these do not mix."""

    @functools.wraps(adapter)
    def call(**arguments: Any) -> jax.Array:
        arrays = {name: jnp.asarray(value) for name, value in arguments.items() if _is_array_of_floats(value)}
        if not arrays:
            raise TypeError(f"the arrays must be of a floating type, got {_types(arguments)}")
        jnp.result_type(*arrays.values())
        return by_standard_rules(adapter)(**arguments | arrays)

    return call


def _types(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name} of {value.dtype}" for name, value in arguments.items() if hasattr(value, "dtype"))


def _is_array_of_floats(value: Any) -> bool:
    is_array = isinstance(value, jax.Array | np.ndarray) or hasattr(value, "__jax_array__")  # as a keras.Variable has
    return is_array and jnp.issubdtype(value.dtype, jnp.floating)


@_of_arrays
def channels_first(
    value: jax.Array, value_spatial_shapes: Shapes, sampling_locations: jax.Array, attention_weights: jax.Array
) -> jax.Array:
    """value [N, heads, channels, S], locations [N, Q, heads, L, P, 2], weights [N, Q, heads, L · P]."""
    weights = attention_weights.reshape(sampling_locations.shape[:-1])
    return _attend(value.transpose(0, 3, 1, 2), sampling_locations, weights, value_spatial_shapes)


@_of_arrays
def points_of_levels(
    value: jax.Array,
    value_spatial_shapes: Shapes,
    sampling_locations: jax.Array,
    attention_weights: jax.Array,
    num_points_list: Sequence[int],
) -> jax.Array:
    """value [N, S, heads, channels], locations [N, Q, heads, ΣP, 2], weights [N, Q, heads, ΣP]."""
    return _attend(value, sampling_locations, attention_weights, value_spatial_shapes, points=num_points_list)


@_of_arrays
def keras_hub(
    value: jax.Array,
    dynamic_spatial_shapes: jax.Array,
    sampling_locations: jax.Array,
    attention_weights: jax.Array,
    num_points: Sequence[int],
    slice_sizes: Sequence[int],
    spatial_shapes: Shapes,
    num_levels: int,
    num_queries: int,
    method: str = "default",
) -> jax.Array:
    """As `points_of_levels`, or with the method "discrete" from the nearest pixel."""
    ours = "discrete" if method == "discrete" else "bilinear"
    return _attend(value, sampling_locations, attention_weights, spatial_shapes, points=num_points, method=ours)


@_of_arrays
def samples(value: jax.Array, sampling_locations: jax.Array, spatial_shapes: Shapes) -> jax.Array:
    """value [N, S, heads, channels] at locations [N, Q, heads, L, P, 2], not summed: [N, Q, heads, L, P, channels].

    Of float32 or wider, as in the other library.
    """
    images, queries, heads, _, points, _ = sampling_locations.shape
    ends = np.cumsum([height * width for height, width in spatial_shapes])
    of_levels, type_ = [], sum_dtype(value.dtype)
    for level, (pixels, shape) in enumerate(zip(jnp.split(value, ends[:-1], axis=1), spatial_shapes, strict=True)):
        locations = sampling_locations[:, :, :, level].swapaxes(2, 3).reshape(images, queries * points, heads, 1, 1, 2)
        found = _attend(pixels, locations, jnp.ones(locations.shape[:-1], type_), [shape])
        of_levels.append(found.reshape(images, queries, points, heads, value.shape[-1]).swapaxes(2, 3))
    return jnp.stack(of_levels, axis=3)


@_of_arrays
def scenic_attention(
    values: jax.Array,
    sampling_locations: jax.Array,
    attn_weights: jax.Array,
    shapes: Shapes,
    use_remat: bool,
    mode: str,
) -> jax.Array:
    """values [N · heads, S, channels], locations [N · heads, L, P · Q, 2], weights [N · heads, Q, L · P].

    The kernels store no samples, so there is nothing to rematerialise, and they need no mode of batching.
    """
    maps, queries, _ = attn_weights.shape
    by_point = sampling_locations.reshape(maps, len(shapes), -1, queries, 2)
    locations = by_point.transpose(0, 3, 1, 2, 4)[:, :, None]
    return _attend(values[:, :, None], locations, attn_weights.reshape(locations.shape[:-1]), shapes)


@_of_arrays
def scenic_roi_align(feature: jax.Array, boxes: jax.Array, output_size: int, sampling_ratio: int) -> jax.Array:
    """feature [H, W, C] and boxes [R, 4] as (x1, y1, x2, y2) in pixels give [R, output_size, output_size, C].

    Unlike in `roi_align`, pixels outside are zero. So each bin is a query, which takes the mean of its samples.
    """
    height, width, channels = feature.shape
    side, type_ = output_size * sampling_ratio, jnp.result_type(feature, boxes)
    boxes = _wide(boxes)
    fractions = (jnp.arange(side, dtype=boxes.dtype) + 0.5) / side
    corner, extent = boxes[:, :2, None], boxes[:, 2:, None] - boxes[:, :2, None]
    x, y = jnp.unstack((corner + extent * fractions).reshape(-1, 2, output_size, sampling_ratio), axis=1)
    x, y = jnp.broadcast_arrays(x[:, None, :, None, :] / width, y[:, :, None, :, None] / height)
    locations = jnp.stack([x, y], axis=-1).reshape(-1, 1, 1, sampling_ratio**2, 2)
    weights = jnp.full(locations.shape[:-1], 1 / sampling_ratio**2, boxes.dtype)
    means = _attend(feature.reshape(-1, 1, channels), locations, weights, [(height, width)])
    return means.astype(type_).reshape(len(boxes), output_size, output_size, channels)


@_of_arrays
def jax_raft(img: jax.Array, grid: jax.Array) -> jax.Array:
    """img [N, H, W, C] at grid [N, h, w, 2], in pixels, gives [N, h, w, C]; pixels outside are zero."""
    x, y = jnp.unstack(_wide(grid), axis=-1)
    return map_coordinates(img, [y, x], order=1, batch_dims=1)


@_of_arrays
def sam3_roi_align(
    self: Any, vision_features: jax.Array, boxes_xyxy_denorm: jax.Array, data_format: str = "channels_last"
) -> jax.Array:
    """vision_features [N, H, W, C] and boxes [N, B, 4] as (x1, y1, x2, y2) in pixels give [N · B, C, size, size].

    A bin is a sample at its centre; the outermost pixels go on outside.
    """
    features = vision_features if data_format == "channels_last" else jnp.moveaxis(vision_features, 1, -1)
    boxes = _wide(boxes_xyxy_denorm)
    fractions = (jnp.arange(self.roi_size, dtype=boxes.dtype) + 0.5) / self.roi_size
    corner, extent = boxes[..., :2, None], boxes[..., 2:, None] - boxes[..., :2, None]
    x, y = jnp.unstack(corner + extent * fractions, axis=-2)
    pooled = map_coordinates(features, [y[..., :, None], x[..., None, :]], order=1, mode="nearest", batch_dims=1)
    pooled = pooled.astype(jnp.result_type(features, boxes, jnp.float32))
    return jnp.moveaxis(pooled, -1, 2).reshape(-1, features.shape[-1], self.roi_size, self.roi_size)


def dm_pix(
    volume: ArrayLike, coordinates: ArrayLike, *, unflattened_vol_shape: Sequence[int] | None = None
) -> jax.Array:
    """volume of one to three axes, or flat with that shape, at coordinates [axes, ...] in pixels."""
    found = jnp.asarray(coordinates)
    image = jnp.asarray(volume)
    shape = image.shape if unflattened_vol_shape is None else tuple(unflattened_vol_shape)
    _leave_unless_linear(image, [*found] if found.ndim else [], shape)
    # The original has no derivative at whole numbers, where both of its pixels are the same.
    if jnp.issubdtype(found.dtype, jnp.floating):
        found = jnp.where(found == jnp.floor(found), lax.stop_gradient(found), found)
    return map_coordinates(image.reshape(shape), [*found], order=1, mode="nearest")


def optax(cost_matrix: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """The rows and columns of an assignment with the least cost, in the order of the original.

    Pairs are not forbidden: those of infinite costs, or of NaN, cost more than all others together.
    """
    cost = jnp.asarray(cost_matrix)
    if cost.ndim != 2 or 0 in cost.shape or not jnp.issubdtype(cost.dtype, jnp.floating):
        raise Left(f"costs of {cost.dtype} and shape {cost.shape}")
    rows, columns = cost.shape
    is_finite = jnp.isfinite(cost)
    most = 1 + 2 * jnp.sum(jnp.abs(cost), where=is_finite)
    cost = jnp.where(is_finite, cost, jnp.where(cost == -jnp.inf, -most, most))
    if rows == columns:
        return linear_sum_assignment(cost.T).astype(int), jnp.arange(rows)
    of_shorter = linear_sum_assignment(cost if rows < columns else cost.T)[::-1]
    shorter = jnp.arange(min(rows, columns))[::-1]
    return (shorter, of_shorter) if rows < columns else (of_shorter, shorter)


def jax_scipy(input: ArrayLike, coordinates: Sequence[ArrayLike], order: int, mode: str, cval: ArrayLike) -> jax.Array:
    """input of one to three axes, at coordinates for each, linearly. Calls that are wrong are left to the original."""
    # Order 0 is one of the other orders, because XLA reads single pixels faster.
    if not (isinstance(order, int) and order == 1 and isinstance(mode, str) and mode in JAX_MODES):
        raise Left("an order other than 1, or an unknown mode")
    if not (isinstance(coordinates, Sequence | np.ndarray | jax.Array) and isinstance(cval, Number)):
        raise Left("coordinates or a cval of other types")
    try:
        image, found = jnp.asarray(input), [jnp.asarray(one) for one in coordinates]
    except (TypeError, ValueError) as error:
        raise Left("arrays that do not go together") from error
    _leave_unless_linear(image, found, image.shape)
    return _map_coordinates(image, found, mode, cval)


def _leave_unless_linear(image: jax.Array, coordinates: list[jax.Array], shape: tuple[int, ...]) -> None:
    """Raises Left unless kernels interpolate linearly in an image of this shape at these coordinates."""
    try:
        jnp.result_type(image, *coordinates)
        jnp.broadcast_shapes(*(one.shape for one in coordinates))
    except (TypeError, ValueError) as error:
        raise Left("arrays that do not go together") from error
    if not (1 <= len(shape) <= MAX_AXES and len(coordinates) == len(shape) and image.size == math.prod(shape) > 0):
        raise Left(f"an input of {len(shape)} axes, {len(coordinates)} coordinates, or an input without pixels")
    if not jnp.issubdtype(image.dtype, jnp.inexact):  # The originals sum integers in other types.
        raise Left(f"an input of {image.dtype}")
    try:
        for one in coordinates:
            _validation.coordinates("coordinates", one)
    except TypeError as error:
        raise Left(f"coordinates of {', '.join(sorted({str(one.dtype) for one in coordinates}))}") from error


@functools.partial(jax.jit, static_argnums=(2, 3))  # as the original
@by_standard_rules
def _map_coordinates(image: jax.Array, coordinates: list[jax.Array], mode: str, cval: Any) -> jax.Array:
    return map_coordinates(image, coordinates, order=1, mode=mode, cval=jnp.asarray(cval, image.dtype))


def _attend(value: jax.Array, locations: jax.Array, weights: jax.Array, shapes: Shapes, **options: Any) -> jax.Array:
    """Of the type that operations on all three have, as in the other library."""
    value = value.astype(jnp.result_type(value, locations, weights))
    return multi_scale_deformable_attention(value, _wide(locations), weights, spatial_shapes=shapes, **options)


def _wide(locations: jax.Array) -> jax.Array:
    """Locations of 16 bits as float32."""
    return locations.astype(sum_dtype(locations.dtype))
