"""What `jax_dcn.patch` replaces, with the interfaces of the libraries and plain implementations, and calls of it.

The implementations share no method with the package: they multiply all pixels by hat functions, with no gather.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SHAPES, POINTS, QUERIES, HEADS, CHANNELS = [(4, 6), (2, 3)], [2, 1], 5, 2, 4
PIXELS = [height * width for height, width in SHAPES]


def at(pixels, shape, x, y):
    """Pixels [H · W, C] interpolated at columns x and rows y."""
    of_axes = zip((y, x), shape, strict=True)
    rows, columns = (
        jnp.maximum(0, 1 - abs(place[..., None] - jnp.arange(size, dtype=place.dtype))) for place, size in of_axes
    )
    return jnp.einsum("...h,...w,hwc->...c", rows, columns, pixels.reshape(*shape, -1))


def of_points(value, locations, shapes, points, method="default"):
    """value [N, S, M, C] at [N, Q, M, ΣP, 2]."""
    taken, ends = [], np.cumsum([height * width for height, width in shapes])
    pixels, places = jnp.split(value, ends[:-1], axis=1), jnp.split(locations, np.cumsum(points)[:-1], axis=3)
    for shape, of_level, place in zip(shapes, pixels, places, strict=True):
        size = jnp.array(shape[::-1], place.dtype)
        x, y = jnp.moveaxis(place * size - 0.5, -1, 0)
        if method == "discrete":
            x, y = jnp.moveaxis(jnp.clip(jnp.floor(place * size + 0.5), 0, size - 1), -1, 0)
        of_head = jax.vmap(lambda *operands, shape=shape: at(operands[0], shape, *operands[1:]), 1, 1)
        taken.append(jax.vmap(of_head)(of_level, x, y))
    return jnp.concatenate(taken, axis=3)


def attend(value, locations, weights, shapes, points, method="default"):
    samples = of_points(value, locations, shapes, points, method)
    return jnp.einsum("nqmpc,nqmp->nqmc", samples, weights).reshape(*weights.shape[:2], -1)


def ms_deform_attn_core(value, value_spatial_shapes, sampling_locations, attention_weights):
    *_, levels, points, _ = sampling_locations.shape
    locations = sampling_locations.reshape(*attention_weights.shape, 2)
    return attend(value.transpose(0, 3, 1, 2), locations, attention_weights, value_spatial_shapes, [points] * levels)


def ms_deform_attn_core_variable(value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list):
    return attend(value, sampling_locations, attention_weights, value_spatial_shapes, num_points_list)


def bilinear_sample(value, sampling_locations, spatial_shapes):
    *before, levels, points, _ = sampling_locations.shape
    locations = sampling_locations.reshape(*before, -1, 2)
    samples = of_points(value, locations, spatial_shapes, [points] * levels).reshape(*before, levels, points, -1)
    return samples.astype("float64" if samples.dtype == "float64" else "float32")


def multi_scale_deformable_attention_v2(
    value,
    dynamic_spatial_shapes,
    sampling_locations,
    attention_weights,
    num_points,
    slice_sizes,
    spatial_shapes,
    num_levels,
    num_queries,
    method="default",
):
    return attend(value, sampling_locations, attention_weights, spatial_shapes, num_points, method)


def deform_attn_sampling_fn(values, sampling_locations, attn_weights, shapes, use_remat, mode):
    maps, queries, taps = attn_weights.shape
    locations = sampling_locations.reshape(maps, taps, queries, 2).swapaxes(1, 2)[:, :, None]
    points = [taps // len(shapes)] * len(shapes)
    return attend(values[:, :, None], locations, attn_weights[:, :, None], shapes, points)


def _roi_align_einsum(feature, boxes, output_size, sampling_ratio):
    side = output_size * sampling_ratio
    bins, steps = [], jnp.arange(0.5, side, dtype=boxes.dtype) / side
    for x1, y1, x2, y2 in boxes:
        x, y = (steps * (high - low) + low - 0.5 for low, high in ((x1, x2), (y1, y2)))
        samples = at(feature, feature.shape[:2], *jnp.meshgrid(x, y))
        bins.append(samples.reshape(output_size, sampling_ratio, output_size, sampling_ratio, -1).mean((1, 3)))
    return jnp.stack(bins)


def grid_sample(img, grid):
    samples = jax.vmap(lambda image, places: at(image, image.shape[:2], places[..., 0], places[..., 1]))(img, grid)
    return samples.astype(img.dtype)


class SAM3GeometryEncoder:
    def _roi_align(self, vision_features, boxes_xyxy_denorm, data_format="channels_last"):
        features, places = jnp.asarray(vision_features), jnp.asarray(boxes_xyxy_denorm)
        if data_format == "channels_first":
            features = jnp.moveaxis(features, 1, -1)
        shape, steps = features.shape[1:3], jnp.arange(0.5, self.roi_size, dtype=places.dtype)
        pooled = []
        for image, boxes in zip(features, places, strict=True):
            for box in boxes:
                x, y = ((box[i + 2] - box[i]) / self.roi_size * steps + box[i] for i in (0, 1))
                x, y = jnp.clip(x, 0, shape[1] - 1), jnp.clip(y, 0, shape[0] - 1)
                pooled.append(jnp.moveaxis(at(image, shape, *jnp.meshgrid(x, y)), -1, 0))
        return jnp.stack(pooled).astype("float64" if features.dtype == "float64" else "float32")


def flat_nd_linear_interpolate(volume, coordinates, *, unflattened_vol_shape=None):
    height, width = unflattened_vol_shape or volume.shape
    y, x = jnp.clip(coordinates[0], 0, height - 1), jnp.clip(coordinates[1], 0, width - 1)
    return at(volume.reshape(-1, 1), (height, width), x, y)[..., 0].astype(volume.dtype)


class Case(NamedTuple):
    call: Callable[..., jax.Array]  # of a function and the arrays
    arrays: list[np.ndarray]


def after_first(*given: Any) -> Callable[..., jax.Array]:
    """A call that passes what is given between the first array and the others."""
    return lambda function, first, *others: function(first, *given, *others)


def before_last(*given: Any) -> Callable[..., jax.Array]:
    """A call that passes what is given after the arrays."""
    return lambda function, *arrays: function(*arrays, *given)


def cases() -> dict[str, Case]:
    """By the name of the function. Some locations are outside."""
    random = np.random.default_rng(0)
    value = random.normal(size=(2, sum(PIXELS), HEADS, CHANNELS))
    locations = random.uniform(-0.2, 1.2, (2, QUERIES, HEADS, 2, 3, 2))
    weights = random.uniform(size=(2, QUERIES, HEADS, 6))
    of_head = value.transpose(0, 2, 3, 1)
    few = [value, locations.reshape(2, QUERIES, HEADS, 6, 2)[..., : sum(POINTS), :], weights[..., : sum(POINTS)]]
    by_point = random.uniform(-0.2, 1.2, (4, 2, 3 * QUERIES, 2))
    boxes = np.array([[0.31, 0.2, 5.14, 3.3], [-1.43, 1.7, 2.2, 6.1], [2.1, 1.2, 2.9, 1.63]])

    def keras_hub(method: str) -> Case:
        rest = POINTS, PIXELS, SHAPES, len(SHAPES), QUERIES, method
        return Case(lambda function, value, *taps: function(value, jnp.array(SHAPES), *taps, *rest), few)

    def by_name(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
        named = dict(zip(("values", "sampling_locations", "attn_weights"), arrays, strict=True))
        return function(**named, shapes=tuple(SHAPES), use_remat=True, mode="auto")

    def of_images(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
        return jax.vmap(function, in_axes=(0, 0, None, None))(*arrays, 3, 2)

    return {
        "ms_deform_attn_core": Case(after_first(SHAPES), [of_head, locations, weights]),
        "one level": Case(
            after_first(SHAPES[:1]), [of_head[..., : PIXELS[0]], locations[:, :, :, :1], weights[..., :3]]
        ),
        "ms_deform_attn_core_variable": Case(
            lambda function, value, *taps: function(value, SHAPES, *taps, POINTS), few
        ),
        "bilinear_sample": Case(before_last(SHAPES), [value, locations]),
        "multi_scale_deformable_attention_v2": keras_hub("default"),
        "discrete": keras_hub("discrete"),
        "deform_attn_sampling_fn": Case(
            by_name, [random.normal(size=(4, sum(PIXELS), CHANNELS)), by_point, random.uniform(size=(4, QUERIES, 6))]
        ),
        "_roi_align_einsum": Case(
            of_images, [random.normal(size=(2, 4, 6, CHANNELS)), np.stack([boxes, boxes + 0.13])]
        ),
        "SAM3GeometryEncoder._roi_align": Case(
            lambda function, *arrays: function(SimpleNamespace(roi_size=3), *arrays),
            [random.normal(size=(2, 4, 6, CHANNELS)), np.stack([boxes, 2 * boxes + 0.13])],
        ),
        "flat_nd_linear_interpolate": Case(
            lambda function, volume, places: function(volume.ravel(), places, unflattened_vol_shape=(4, 6)),
            [random.normal(size=(4, 6)), random.uniform(-1.5, 7, (2, 5, 5))],
        ),
        "grid_sample": Case(before_last(), [random.normal(size=(3, 4, 6, 1)), random.uniform(-1.5, 7, (3, 5, 5, 2))]),
    }


def keras(backend: str) -> Any:
    return SimpleNamespace(config=SimpleNamespace(backend=lambda: backend))
