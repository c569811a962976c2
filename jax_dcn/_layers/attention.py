"""The code that the Linen and the NNX `MultiScaleDeformableAttention` share."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._layers.conv import check_channels
from jax_dcn._operators.aggregation import multi_scale_deformable_attention
from jax_dcn._operators.aggregation.arguments import BACKENDS, level_sizes

Method = Literal["bilinear", "discrete"]


class Settings(common.HasDtype, Protocol):
    """The attributes of both layers that control the computation."""

    features: int
    num_heads: int
    num_levels: int
    num_points: int | Sequence[int]
    method: Method
    offset_scale: float | None
    spatial_shapes: Sequence[Sequence[int]] | None
    return_sampling: bool
    backend: Literal["reference"] | None


def check(layer: Settings) -> None:
    check_channels("features", layer.features, num_heads=layer.num_heads)
    points(layer)
    _validation.choice("backend", layer.backend, BACKENDS)
    _validation.choice("method", layer.method, ("bilinear", "discrete"))
    if layer.offset_scale is not None:
        _validation.number("offset_scale", layer.offset_scale)
    if layer.dtype is not None:
        _validation.dtype("dtype", layer.dtype)


def canonical_points(value: Any) -> int | tuple[int, ...]:
    """`num_points` in Python's ints, which are hashable: Flax's transformations hash the attributes of a module."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_validation.positive(f"num_points[{k}]", count) for k, count in enumerate(value))
    return _validation.positive("num_points", value)


def canonical_shapes(value: Any) -> tuple[tuple[int, int], ...] | None:
    """`spatial_shapes` in Python's ints, which are hashable."""
    return None if value is None else level_sizes(value)


def points(layer: Settings) -> tuple[int, ...]:
    """The number of points on each level."""
    levels = _validation.positive("num_levels", layer.num_levels)
    counts = (layer.num_points,) * levels if isinstance(layer.num_points, int) else tuple(layer.num_points)
    if len(counts) != levels:
        raise ValueError(f"num_points must be an int, or one for each of num_levels={levels}, got {counts}")
    return counts


def weight_features(layer: Settings) -> int:
    """The output channels of `attention_weights`: one for each head and point. `sampling_offsets` has twice as many."""
    return layer.num_heads * sum(points(layer))


def ring(layer: Settings) -> Callable[[jax.Array, Sequence[int], DTypeLike], jax.Array]:
    """The initializer of the bias of `sampling_offsets`.

    The points of a level lie on a ray, at 1, 2, 3, … steps. Each head has another direction, whose larger coordinate
    is 1: of eight heads, the eight neighbours of a pixel. It is computed in float32, as by the original.
    """
    angle = np.arange(layer.num_heads, dtype=np.float32) * np.float32(2 * math.pi / layer.num_heads)
    direction = np.stack([np.cos(angle), np.sin(angle)], -1)
    direction /= abs(direction).max(-1, keepdims=True)
    steps = np.concatenate([np.arange(1, count + 1, dtype=np.float32) for count in points(layer)])
    offsets = direction[:, None] * steps[:, None]

    def init(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jnp.asarray(offsets, dtype).reshape(shape)

    return init


def apply(
    layer: Settings,
    query: jax.Array,
    reference_points: jax.Array,
    value: jax.Array,
    *,
    spatial_shapes: Sequence[Sequence[int]] | None,
    padding_mask: jax.Array | None,
    sampling_offsets: common.Branch,
    attention_weights: common.Branch,
    value_proj: common.Branch | None,
    output_proj: common.Branch | None,
    return_sampling: bool | None,
) -> Any:
    """The output of the layer, with the sampling locations and the weights if they are requested."""
    query, value = _validation.array("query", query), _validation.array("value", value)
    reference_points = _validation.coordinates("reference_points", reference_points)
    if padding_mask is not None:
        padding_mask = _validation.as_array("padding_mask", padding_mask)
    sizes = level_sizes(layer.spatial_shapes if spatial_shapes is None else spatial_shapes)
    _check_shapes(layer, query, reference_points, value, padding_mask, sizes)

    by_head = (*query.shape[:-1], layer.num_heads, sum(points(layer)))
    inputs = common.widen(layer, query)
    offsets = sampling_offsets(inputs).reshape(*by_head, 2)
    weights = jax.nn.softmax(attention_weights(inputs).reshape(by_head), -1)
    locations = _locations(layer, reference_points, offsets, sizes)

    if value_proj is not None:
        value = value_proj(value)
    elif layer.dtype is not None:
        value = value.astype(layer.dtype)
    # The aggregation computes in the widest of its dtypes: float64 reference points must not widen value.
    locations, weights = (array.astype(jnp.promote_types(value.dtype, jnp.float32)) for array in (locations, weights))
    if padding_mask is not None:
        value = jnp.where(padding_mask[..., None], value, 0)
    y = multi_scale_deformable_attention(
        value.reshape(*value.shape[:-1], layer.num_heads, layer.features // layer.num_heads),
        locations,
        weights,
        spatial_shapes=sizes,
        points=points(layer),
        method=layer.method,
        backend=layer.backend,
    )
    if output_proj is not None:
        y = output_proj(y)
    if return_sampling is None:
        return_sampling = layer.return_sampling
    return (y, locations, weights) if return_sampling else y


def _locations(
    layer: Settings, reference_points: jax.Array, offsets: jax.Array, sizes: Sequence[tuple[int, int]]
) -> jax.Array:
    """The locations [..., Q, M, T, 2], as fractions of the levels, of offsets of that shape."""
    counts = points(layer)
    dtype = jnp.promote_types(offsets.dtype, reference_points.dtype)
    references = _of_taps(reference_points.astype(dtype), counts)[..., None, :, :]
    if references.shape[-1] == 2:
        width_and_height = np.repeat(np.array(sizes, dtype)[:, ::-1], counts, axis=0)
        return references + offsets / width_and_height
    center, size = references[..., :2], references[..., 2:]
    count = np.repeat(np.array(counts, dtype), counts)[:, None]
    if layer.offset_scale is None:
        return center + offsets / count * size * 0.5
    quotient = np.float32(1) / count.astype(np.float32)  # in float32, as RT-DETRv2 and D-FINE have it
    return center + offsets * quotient * size * layer.offset_scale


def _of_taps(references: jax.Array, counts: Sequence[int]) -> jax.Array:
    """Reference points [..., L or 1, n] for each tap: [..., T or 1, n].

    The transpose of a concatenation is deterministic on GPUs; that of an indexing would sum with atomics.
    """
    if references.shape[-2] == 1:
        return references
    *leading, _, coordinates = references.shape
    levels = (references[..., k : k + 1, :] for k in range(len(counts)))
    shapes = ((*leading, count, coordinates) for count in counts)
    return jnp.concatenate([jnp.broadcast_to(*pair) for pair in zip(levels, shapes, strict=True)], -2)


def _check_shapes(
    layer: Settings,
    query: jax.Array,
    reference_points: jax.Array,
    value: jax.Array,
    padding_mask: jax.Array | None,
    sizes: Sequence[tuple[int, int]],
) -> None:
    _validation.rank("query", query, 2, "[..., Q, features]", least=True)
    _validation.rank("value", value, query.ndim, f"[..., S, features] for query of shape {query.shape}")
    for name, array in (("query", query), ("value", value)):
        if array.shape[-1] != layer.features:
            raise ValueError(f"{name} must have features={layer.features} channels, got shape {array.shape}")
    if len(sizes) != layer.num_levels:
        raise ValueError(f"spatial_shapes must have num_levels={layer.num_levels} levels, got {list(sizes)}")
    pixels = sum(height * width for height, width in sizes)
    if value.shape[:-1] != (*query.shape[:-2], pixels):
        raise ValueError(
            f"value must have the leading dimensions of query, of shape {query.shape}, and the {pixels} pixels of "
            f"spatial_shapes={sizes}, got shape {value.shape}"
        )
    if reference_points.shape not in [(*query.shape[:-1], n, k) for n in (layer.num_levels, 1) for k in (2, 4)]:
        raise ValueError(
            f"reference_points must have shape [..., Q, num_levels={layer.num_levels} or 1, 2 or 4] for query of shape "
            f"{query.shape}, got {reference_points.shape}"
        )
    if padding_mask is not None:
        if padding_mask.dtype != jnp.bool_:
            raise TypeError(f"padding_mask must be boolean, True where value is valid, got {padding_mask.dtype}")
        if padding_mask.shape != value.shape[:-1]:
            raise ValueError(
                f"padding_mask must have shape {value.shape[:-1]}, one for each pixel of value, got "
                f"{padding_mask.shape}"
            )
