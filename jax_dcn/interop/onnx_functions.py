"""The operators of this package as functions of `jax.numpy` and of ONNX nodes.

A node is a call of `NODE`, a primitive that can only be exported. What surrounds it, such as transposes to ONNX's
layout, is `jax.numpy`, which jax2onnx lowers.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_dcn._operators.aggregation import geometry as aggregation_geometry
from jax_dcn._operators.aggregation.arguments import Operands as AggregationOperands
from jax_dcn._operators.bilinear import output_size
from jax_dcn._operators.deform_conv import on_grid
from jax_dcn._operators.deform_conv.arguments import GridOperands, channels_first, channels_last
from jax_dcn._operators.deform_conv.arguments import Operands as ConvOperands
from jax_dcn._operators.deform_conv.arguments import Spec as ConvSpec
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._operators.roi_pool.arguments import Operands as PoolingOperands
from jax_dcn._operators.roi_pool.arguments import Spec as PoolingSpec
from jax_dcn._operators.sampling.arguments import Operands as SamplingOperands
from jax_dcn._operators.sampling.arguments import axis_coordinates, num_points
from jax_dcn._operators.sampling.geometry import Spec as SamplingSpec
from jax_dcn._primitive.jax_internals import Primitive, jaxpr_as_fun, move_to_front, primitive_batchers
from jax_dcn.interop import onnx_nodes

INT64 = 7  # of onnx.TensorProto

# `write(build, *values)` adds nodes and returns their float32 result of this shape. The plugin has `build`.
NODE = Primitive("jax_dcn_onnx_node")
NODE.def_abstract_eval(lambda *avals, write, shape: jax.core.ShapedArray(shape, jnp.float32))


def node(op_type: str, *operands: jax.Array | None, shape: Sequence[Any], **attributes: Any) -> jax.Array:
    """A node with one result, of type float32. Operands may be absent, or indices, which ONNX takes as int64."""
    present = [operand for operand in operands if operand is not None]
    is_index = [bool(jnp.issubdtype(operand.dtype, jnp.integer)) for operand in present]

    def write(build: Any, *values: Any) -> Any:
        typed = (build.Cast(value, to=INT64) if index else value for value, index in zip(values, is_index, strict=True))
        return getattr(build, op_type)(
            *(None if operand is None else next(typed) for operand in operands), **attributes
        )

    wide = [array if index else array.astype(jnp.float32) for array, index in zip(present, is_index, strict=True)]
    result: jax.Array = NODE.bind(*wide, write=write, shape=tuple(shape))
    return result


def deform_conv(operands: ConvOperands[jax.Array], spec: ConvSpec) -> jax.Array:
    x, offset, weight, bias, mask = operands
    kernel_size = weight.shape[-spec.dims - 2 : -2]
    _check_shared(weight, spec)
    offset_groups, _ = groups_and_taps(offset, kernel_size)
    padding = "CIRCULAR" if spec.circular else spec.padding
    attributes = onnx_nodes.deform_conv(spec, kernel_size, spec.feature_group_count, offset_groups, padding)
    images, offsets, masks = (
        None if array is None else channels_first(array.reshape(-1, *array.shape[-3:]), 2)
        for array in (x, offset, mask)
    )
    kernel, features, size = jnp.moveaxis(weight, (-1, -2), (0, 1)), weight.shape[-1], offset.shape[-3:-1]
    count = math.prod(x.shape[:-3])
    y = node("DeformConv", images, kernel, offsets, bias, masks, shape=(count, features, *size), **attributes)
    return channels_last(y, 2).reshape(*offset.shape[:-1], features).astype(spec.dtype)


def conv_on_grid(operands: GridOperands[jax.Array], spec: ConvSpec) -> jax.Array:
    """The convolution of XLA, which jax2onnx lowers."""
    _check_shared(operands.weight, spec)
    return on_grid.reference(operands, spec=spec)


def _check_shared(weight: jax.Array, spec: ConvSpec) -> None:
    if weight.ndim != spec.dims + 2:
        raise ValueError(f"weight must be the same for all images to be exported to ONNX, got shape {weight.shape}")


def aggregation(operands: AggregationOperands[jax.Array], spec: aggregation_geometry.Spec) -> jax.Array:
    value, locations, weights = operands
    *_, heads, channels = value.shape
    batch = value.shape[: -spec.image_dims - 2]
    queries = weights.shape[len(batch) : -2]
    if isinstance(spec, aggregation_geometry.DCNv3Window):
        y, x = aggregation_geometry.window_positions(locations, spec)
        height, width = value.shape[-4:-2]
        locations = jnp.stack([(x + 0.5) / width, (y + 0.5) / height], -1)
    elif spec.discrete:
        raise ValueError("method must be one that ONNX's GridSample has, got 'discrete', which rounds halves up")

    def of_heads(array: jax.Array, *last: int) -> jax.Array:
        """[batch · heads, pixels or queries, *last] of [*batch, *pixels or *queries, heads, *last]."""
        pixels = math.prod(array.shape[len(batch) : -len(last) - 1])
        array = jnp.swapaxes(array.reshape(-1, pixels, heads, *last), 1, 2)
        return array.reshape(-1, pixels, *last)

    pixels = jnp.swapaxes(of_heads(value, channels), 1, 2)
    grid, weights = 2 * of_heads(locations, spec.taps, 2) - 1, of_heads(weights, spec.taps)
    sampled, pixel, tap = [], 0, 0
    for height, width, points in aggregation_geometry.levels_of(spec, value):
        image = pixels[..., pixel : pixel + height * width].reshape(-1, channels, height, width)
        shape = (*image.shape[:2], grid.shape[1], points)
        sampled.append(node("GridSample", image, grid[:, :, tap : tap + points], shape=shape, **onnx_nodes.BILINEAR))
        pixel, tap = pixel + height * width, tap + points
    total = (jnp.concatenate(sampled, -1) * weights[:, None]).sum(-1)
    total = jnp.moveaxis(total.reshape(-1, heads, *total.shape[1:]), 3, 1)
    return total.reshape(*batch, *queries, heads, channels).astype(value.dtype)


def sampling(operands: SamplingOperands[jax.Array], spec: SamplingSpec) -> jax.Array:
    x = operands.x
    attributes = onnx_nodes.grid_sample(spec)
    sizes, channels, points = x.shape[-spec.dims - 1 : -1], x.shape[-1], num_points(operands)
    axes = [coordinate.reshape(-1, points) for coordinate in axis_coordinates(operands)]
    if spec.units == "pixels":
        corners = attributes["align_corners"]
        axes = [(2 * axis + 1 - corners) / (size - corners) - 1 for axis, size in zip(axes, sizes, strict=True)]
    ones = [1] * (spec.dims - 1)
    grid = jnp.stack(axes[::-1], -1).reshape(-1, *ones, points, spec.dims)
    images = channels_first(x.reshape(-1, *sizes, channels), spec.dims)
    sampled = node("GridSample", images, grid, shape=(images.shape[0], channels, *ones, points), **attributes)
    sampled = jnp.swapaxes(sampled.reshape(-1, channels, points), 1, 2)
    return sampled.reshape(*x.shape[: -spec.dims - 1], points, channels).astype(x.dtype)


def pooling(operands: PoolingOperands[jax.Array], spec: PoolingSpec, *, is_max: bool = False) -> jax.Array:
    x, rois, offset = operands
    attributes = onnx_nodes.roi_align(spec, has_offset=offset is not None, is_max=is_max)
    images, channels = x.shape[-4], x.shape[-1]
    regions = rois.reshape(-1, rois.shape[-2], 5)
    index = regions[..., 0]
    # ONNX has no index for a region without image. Such a region gets no area, so that it costs little.
    is_valid = (index >= 0) & (index < images)
    example = images * jnp.arange(regions.shape[0], dtype=jnp.int32)[:, None]
    index = jnp.where(is_valid, index, 0).astype(jnp.int32) + example
    corners = jnp.where(is_valid[..., None], regions[..., 1:], 0).reshape(-1, 4)
    maps = channels_first(x.reshape(-1, *x.shape[-3:]), 2)
    shape = (corners.shape[0], channels, *spec.output_size)
    pooled = node("RoiAlign", maps, corners, index.reshape(-1), shape=shape, **attributes)
    pooled = jnp.where(is_valid.reshape(-1, 1, 1, 1), channels_last(pooled, 2), 0)
    return pooled.reshape(*rois.shape[:-1], *spec.output_size, channels).astype(x.dtype)


def nms(
    boxes: jax.Array, scores: jax.Array, classes: jax.Array | None, threshold: Any, *, max_outputs: int
) -> tuple[jax.Array, jax.Array]:
    """The suppression of an example's boxes that `jax_dcn.nms` uses while a function is exported."""
    present = [array for array in (boxes, scores, classes) if array is not None]
    indices, valid = NMS.bind(*present, threshold=float(threshold), max_outputs=max_outputs)
    return indices, valid


def _nms_avals(*avals: jax.core.ShapedArray, max_outputs: int, threshold: float) -> list[jax.core.ShapedArray]:
    shape = (*avals[1].shape[:-1], max_outputs)
    return [jax.core.ShapedArray(shape, jnp.int32), jax.core.ShapedArray(shape, jnp.bool_)]


def _nms_batching_rule(arrays: Sequence[jax.Array], dims: Sequence[int | None], **params: Any) -> tuple[Any, list[int]]:
    return NMS.bind(*move_to_front(arrays, dims), **params), [0, 0]


NMS = Primitive("jax_dcn_nms")
NMS.multiple_results = True
NMS.def_abstract_eval(_nms_avals)
primitive_batchers[NMS] = _nms_batching_rule


def nms_of_examples(
    boxes: jax.Array, scores: jax.Array, *classes: jax.Array, threshold: float, max_outputs: int
) -> tuple[jax.Array, jax.Array]:
    """The results of `NMS`, [..., max_outputs], of examples [..., N]."""
    *batch, count = scores.shape
    boxes, scores = boxes.reshape(-1, count, 4).astype(jnp.float32), scores.reshape(-1, count).astype(jnp.float32)
    scores = jnp.where(jnp.isnan(boxes).any(-1) | jnp.isnan(scores), -jnp.inf, scores)
    # A box whose corners are in the wrong order overlaps nothing, as one without area. ONNX would swap its corners.
    low, high = boxes[..., :2], boxes[..., 2:]
    boxes = jnp.concatenate([low, jnp.where((high < low).any(-1, keepdims=True), low, high)], -1)
    labels = [array.reshape(-1, count).astype(jnp.int32) for array in classes]
    write = partial(_write_nms, threshold=threshold, max_outputs=max_outputs)
    kept = NODE.bind(boxes, scores, *labels, write=write, shape=scores.shape)
    if max_outputs > count:
        kept = jnp.concatenate([kept, jnp.full((kept.shape[0], max_outputs - count), -jnp.inf)], 1)
    best, indices = jax.lax.top_k(kept, max_outputs)
    valid = best > -jnp.inf
    indices = jnp.where(valid, indices, 0).astype(jnp.int32)
    return indices.reshape(*batch, max_outputs), valid.reshape(*batch, max_outputs)


def _write_nms(build: Any, boxes: Any, scores: Any, *labels: Any, threshold: float, max_outputs: int) -> Any:
    """The scores [batch, N] of the boxes that are kept, and -inf of the others.

    NonMaxSuppression takes scores [batch, classes, N]. The number of classes is known only at run time.
    """
    first_axis, minus_infinity = build.constant([1]), build.constant(-np.inf, np.float32)
    scores = build.Unsqueeze(scores, first_axis)
    for array in labels:
        low, high, step = (
            build.ReduceMin(array, keepdims=0),
            build.ReduceMax(array, keepdims=0),
            build.constant(1, np.int32),
        )
        classes = build.Unsqueeze(build.Range(low, build.Add(high, step), step), build.constant([0, 2]))
        scores = build.Where(build.Equal(build.Unsqueeze(array, first_axis), classes), scores, minus_infinity)
    lowest = float(np.finfo(np.float32).min)
    limits = [build.constant([max_outputs]), *(build.constant([limit], np.float32) for limit in (threshold, lowest))]
    selected = build.NonMaxSuppression(boxes, scores, *limits)
    nothing = build.Expand(minus_infinity, build.Shape(scores))
    return build.ReduceMax(build.ScatterND(nothing, selected, build.GatherND(scores, selected)), first_axis, keepdims=0)


def reduce_window_max(x: jax.Array, **params: Any) -> jax.Array:
    """A window of images [N, H, W, C] along H and W, without dilation."""
    return _pool_images("MaxPool", x, **params)


def reduce_window_sum(x: jax.Array, **params: Any) -> jax.Array:
    """A window of images [N, H, W, C] along H and W, without dilation."""
    return _pool_images("AveragePool", x, count_include_pad=1, **params) * math.prod(params["window_dimensions"])


def _pool_images(
    op_type: str,
    x: jax.Array,
    *,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    base_dilation: Any,
    window_dilation: Any,
    **attributes: Any,
) -> jax.Array:
    window, strides, pads = window_dimensions[1:3], window_strides[1:3], padding[1:3]
    shape = (x.shape[0], x.shape[3], *output_size(x.shape[1:3], window, strides, pads, (1, 1)))
    attributes |= {"kernel_shape": window, "strides": strides, "pads": [pair[end] for end in (0, 1) for pair in pads]}
    return channels_last(node(op_type, channels_first(x, 2), shape=shape, **attributes), 2)


def pad(x: jax.Array, value: jax.Array, *, padding_config: Any) -> jax.Array:
    """Padding of float32 around an array."""
    lows, highs, _ = zip(*padding_config, strict=True)
    shape = tuple(low + size + high for low, size, high in zip(lows, x.shape, highs, strict=True))

    def write(build: Any, x: Any, value: Any) -> Any:
        return build.Pad(x, build.constant([*lows, *highs]), value)

    result: jax.Array = NODE.bind(x, value, write=write, shape=shape)
    return result


def platform_index(*, platforms: Any) -> jax.Array:
    """A number that `cond` does not use, but jax2onnx needs."""
    return jnp.zeros((), jnp.int32)


def cond(index: jax.Array, *operands: jax.Array, branches: Any, branches_platforms: Any, **params: Any) -> Any:
    """The branch of `jax.lax.platform_dependent` for all platforms that it does not name, or else the last one."""
    chosen = branches_platforms.index(None) if None in branches_platforms else -1
    return jaxpr_as_fun(branches[chosen])(*operands)
