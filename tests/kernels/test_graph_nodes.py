"""A call of a handler enqueues work if it has a result, however empty its operands are.

The handlers raise an error here if they enqueue nothing. The calls here are those of the package, of sizes for
which it does not make all of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jax_dcn._operators.aggregation import custom_calls as aggregation
from jax_dcn._operators.aggregation.geometry import Level, Pyramid, Window
from jax_dcn._operators.deform_conv import custom_calls as conv
from jax_dcn._operators.deform_conv.geometry import Geometry
from jax_dcn._operators.roi_pool import custom_calls as pool
from jax_dcn._operators.roi_pool.arguments import Spec

pytestmark = [pytest.mark.usefixtures("executed_kernels"), pytest.mark.platforms("cpu")]


class ConvSizes(NamedTuple):
    images: int = 1
    rows: int = 2
    columns: int = 3
    height: int = 3
    width: int = 4
    channels: int = 8
    features: int = 8


class PoolSizes(NamedTuple):
    batch: int = 1
    images: int = 1
    height: int = 3
    width: int = 4
    channels: int = 2
    rois: int = 1


class AggregationSizes(NamedTuple):
    batch: int = 1
    rows: int = 2
    columns: int = 3
    height: int = 3
    width: int = 4
    heads: int = 2
    channels: int = 8


def with_one_empty(sizes):
    return [sizes, *(sizes._replace(**{name: 0}) for name in sizes._fields)]


def conv_calls(sizes):
    taps = 2
    n, rows, columns, height, width, channels, features = sizes
    x, d_y = (jnp.ones(shape, jnp.bfloat16) for shape in ((n, height, width, channels), (n, rows, columns, features)))
    weight = jnp.ones((channels, taps, features), jnp.bfloat16)
    sampling = conv.Sampling(
        offset=jnp.zeros((n, rows, columns, 2 * taps)),
        mask=None,
        origin=(0, 0, 0),
        kernel_size=(1, taps),
        geometry=Geometry((1, 1), ((0, 0), (0, 0)), (1, 1), False),
    )
    d_columns = jnp.ones((n, rows, columns, taps, channels), x.dtype)
    both = ("offset", "mask")
    yield lambda: conv.sample(x, sampling)
    yield lambda: conv.sample_tangents(x, sampling, {"x": x}, columns_requested=True)
    yield lambda: conv.offset_cotangent(x, sampling, d_columns, requested=both, columns_requested=False)
    yield lambda: conv.offset_cotangent(x, sampling, d_columns, requested=(), columns_requested=True)
    workspace_size = n * (2 * taps * rows * columns + (height + 1) * (width + 1) + 1)
    yield lambda: conv.input_cotangent(
        sampling, d_columns, jnp.zeros((n, height, width, channels)), workspace_size=workspace_size
    )
    bias, by_feature = jnp.zeros(features), weight.transpose(2, 1, 0)
    fused = {"feature_group_count": 1}
    yield lambda: conv.fused_forward(x, sampling, by_feature, bias, tile_features=64, dtype=jnp.float32, **fused)
    if channels and features:  # the fused cotangents refuse calls without them
        yield lambda: conv.fused_input_cotangent(
            sampling, weight, d_y, image_size=(height, width), images_at_once=n, **fused
        )
        yield lambda: conv.fused_offset_cotangent(x, sampling, weight, d_y, block_taps=1, requested=both, **fused)
        yield lambda: conv.fused_weight_cotangent(x, sampling, d_y, num_splits=1, **fused)


@pytest.mark.parametrize("sizes", with_one_empty(ConvSizes()), ids=str)
def test_deform_conv(sizes):
    for call in conv_calls(sizes):
        jax.block_until_ready(jax.jit(call)())


@pytest.mark.parametrize("sizes", with_one_empty(PoolSizes()), ids=str)
def test_roi_pool(sizes):
    batch, images, height, width, channels, rois = sizes
    spec = Spec((1, 2), 1.0, (1, 1), (1, 1), (2, 2), 0.1)
    x, boxes = jnp.ones((batch, images, height, width, channels)), jnp.ones((batch, rois, 5))
    d_pooled, offset = jnp.ones((batch, rois, 1, 2, channels)), jnp.zeros((batch, rois, 1, 1, 2))
    calls = [
        lambda: pool.pool(x, boxes, offset, spec),
        lambda: pool.input_cotangent(boxes, d_pooled, offset, spec, shape=x.shape),
        lambda: pool.offset_cotangent(x, boxes, d_pooled, offset, spec),
        lambda: pool.max_pool(x, boxes, spec),
        lambda: pool.max_pool_input_cotangent(
            boxes, d_pooled, pool.max_pool_argmax(x, boxes, spec), spec, shape=x.shape
        ),
    ]
    for call in calls:
        jax.block_until_ready(jax.jit(call)())


@pytest.mark.parametrize("is_window", [True, False])
@pytest.mark.parametrize("sizes", with_one_empty(AggregationSizes()), ids=str)
def test_aggregation(sizes, is_window):
    batch, rows, columns, height, width, heads, channels = sizes
    if is_window:
        spec = Window((2, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1.0, False)
        pixels, queries = (height, width), (rows, columns)
    else:
        spec = Pyramid((Level(height, width, 1), Level(1, 1, 1)), discrete=False)
        pixels, queries = (height * width + 1,), (rows * columns,)
    weights = jnp.ones((batch, *queries, heads, 2))
    taps = aggregation.Taps(jnp.zeros((*weights.shape, 2)), weights, (0, 0))
    value, d_out = (jnp.ones((batch, *size, heads, channels)) for size in (pixels, queries))
    workspace_size = 6 * rows * columns * 2 + (height + 1) * (width + 1) + 5
    calls = [
        lambda: aggregation.aggregate(value, taps, spec),
        lambda: aggregation.value_cotangent(
            taps, d_out, spec, shape=value.shape, dtype=value.dtype, workspace_size=workspace_size
        ),
        lambda: aggregation.tap_cotangents(value, taps, d_out, spec, requested=("locations", "weights")),
    ]
    for call in calls:
        jax.block_until_ready(jax.jit(call)())
