"""What the Linen and the NNX `MultiScaleDeformableAttention` share."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._operators.aggregation.arguments import level_sizes
from jax_dcn._operators.aggregation.functions import multi_scale_deformable_attention
from jax_dcn._primitive.promotion import by_standard_rules, sum_dtype


@dataclass(eq=False, repr=False)
class MultiScaleDeformableAttentionBase(common.Layer):
    """The options and the computation of `MultiScaleDeformableAttention`.

    Each query has a reference point and reads a feature pyramid at a few points around it. Two dense layers,
    ``sampling_offsets`` and ``attention_weights``, predict from the query where they lie and how much they count. It is
    the layer of Deformable DETR, DINO, Mask2Former and Grounding DINO; with other options, that of RT-DETR, RT-DETRv2
    and D-FINE.

    In a new layer all weights are equal, and the points of each head lie on a ray: of eight heads, in the directions of
    the eight neighbours of a pixel.

    Parameters: ``kernel`` [in, out] and ``bias`` of ``sampling_offsets``, whose output channels are (x, y) for each
    head, level and point; of ``attention_weights``, a logit for each head, level and point; and, with projections, of
    ``value_proj`` and ``output_proj``. :func:`jax_dcn.offset_labels` labels those of ``sampling_offsets``, whose
    learning rate is usually a tenth of that of the others.

    Args:
      features: Number of channels of queries, values and results.
      num_heads: Into how many heads the channels are divided.
      num_levels: Number of levels of the feature pyramid.
      num_points: How many points a head reads on each level: an int, or one for each level.
      method: "bilinear", or "discrete", which reads the pixel next to a location, as RT-DETRv2 offers it. With
        "discrete" no gradient reaches the offsets and the reference points.
      offset_scale: How offsets are scaled where reference points are boxes. With a number, as in RT-DETRv2 and D-FINE:
        by it, by the size of the box, and by one over the number of points on the level, in float32. None is the rule
        of Deformable DETR, the same with 0.5 but without this rounding to float32.
      use_projections: Whether to have ``value_proj`` and ``output_proj``. D-FINE does without.
      use_offsets: Whether to have ``sampling_offsets``. Without it, reference points are sampling locations, which the
        caller has computed.
      dtype: Dtype of the computation; None infers it from values and parameters. Offsets and weights are predicted in
        float32 (or wider) all the same.
      kernel_init: Initializer of the kernels of both projections.
      bias_init: Initializer of the biases of both projections.
      spatial_shapes: The (H, W) of each level, for calls that do not give them. They must be given here under ``remat``
        and ``jit`` of Linen and NNX, which trace the arguments of a call.
      return_sampling: Whether a call returns ``(y, sampling_locations, attention_weights)``.

    References:
      Zhu et al., Deformable DETR, arXiv:2010.04159; Lv et al., RT-DETRv2, arXiv:2407.17140; Peng et al., D-FINE,
      arXiv:2410.13842.
    """

    features: int
    num_heads: int = 8
    num_levels: int = 4
    num_points: int | Sequence[int] = 4
    _: KW_ONLY
    method: Literal["bilinear", "discrete"] = "bilinear"
    offset_scale: float | None = None
    use_projections: bool = True
    use_offsets: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = common.XAVIER_UNIFORM
    bias_init: Initializer = common.ZEROS
    spatial_shapes: Sequence[Sequence[int]] | None = None
    return_sampling: bool = False
    backend: Literal["reference"] | None = None

    def _check(self, channels: int, name: str = "features") -> None:
        common.check_channels(name, channels, num_heads=self.num_heads)
        self._points()
        _validation.choice("backend", self.backend, _validation.BACKENDS)
        _validation.choice("method", self.method, ("bilinear", "discrete"))
        if self.offset_scale is not None:
            _validation.number("offset_scale", self.offset_scale)
        self._check_dtypes_and_functions()

    def _make_hashable(self) -> None:
        """Converts the options to Python's ints: Flax's transformations hash the attributes of a module."""
        points: Any = self.num_points
        if isinstance(points, np.ndarray):
            points = points.tolist()
        if isinstance(points, Sequence) and not isinstance(points, str):
            self.num_points = tuple(_validation.positive(f"num_points[{k}]", count) for k, count in enumerate(points))
        else:
            self.num_points = _validation.positive("num_points", points)
        self.spatial_shapes = None if self.spatial_shapes is None else level_sizes(self.spatial_shapes)

    def _sublayers(self, channels: int) -> common.Sublayers:
        samples = self.num_heads * sum(self._points())
        initializers = {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
        projection = self._dense(channels, channels, dtype=self.dtype, **initializers) if self.use_projections else None
        offsets = self._dense(channels, 2 * samples, bias_init=on_rays(self.num_heads, self._points()))
        return {
            "sampling_offsets": offsets if self.use_offsets else None,
            "attention_weights": self._dense(channels, samples),
            "value_proj": projection,
            "output_proj": projection,
        }

    def __call__(
        self,
        query: jax.Array,
        reference_points: jax.Array,
        value: jax.Array,
        *,
        spatial_shapes: Sequence[Sequence[int]] | None = None,
        padding_mask: jax.Array | None = None,
        return_sampling: bool | None = None,
    ) -> Any:
        """Reads ``value`` around the reference points.

        Args:
          query: [..., Q, features], with the position embedding already added. All arrays have the same leading
            dimensions.
          reference_points: [..., Q, num_levels or 1, 2 or 4], as fractions of the levels; a single level stands for all
            of them. With 2 coordinates they are points (x, y), and offsets are in pixels of each level. With 4 they are
            boxes (x and y of the centre, width, height), and offsets are relative to the size of the box. They may
            differ between the T points of all levels, one level after the other: [..., Q, T, 2 or 4]; and between
            heads: [..., Q, num_heads, T, 2 or 4].
          value: [..., S, features], the pixels of all levels one after the other, each row by row.
          spatial_shapes: The (H, W) of each level, as Python or numpy numbers; S is the sum of their products. It
            overrides the attribute of that name.
          padding_mask: [..., S], True where ``value`` is valid. Elsewhere the projected value is replaced by zeros.
          return_sampling: Overrides the attribute of that name.

        Returns:
          ``y`` [..., Q, features], or ``(y, sampling_locations, attention_weights)``, with the locations
          [..., Q, num_heads, T, 2] as fractions (x, y) of the level, and the weights [..., Q, num_heads, T], of the T
          points of all levels, one level after the other.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value.
        """
        layers = self._components(self.features)
        query, value = _validation.array("query", query), _validation.array("value", value)
        reference_points = _validation.coordinates("reference_points", reference_points)
        if padding_mask is not None:
            padding_mask = _validation.as_array("padding_mask", padding_mask)
        sizes = level_sizes(self.spatial_shapes if spatial_shapes is None else spatial_shapes)
        self._check_shapes(query, reference_points, value, padding_mask, sizes)

        by_head = (*query.shape[:-1], self.num_heads, sum(self._points()))
        inputs = self._widen(query)
        weights = jax.nn.softmax(layers["attention_weights"](inputs).reshape(by_head), -1)
        references = self._of_heads(reference_points, query.ndim)
        if layers["sampling_offsets"] is None:
            locations = jnp.broadcast_to(references, (*by_head, 2))
        else:
            locations = self._locations(references, layers["sampling_offsets"](inputs).reshape(*by_head, 2), sizes)

        if layers["value_proj"] is not None:
            value = layers["value_proj"](value)
        elif self.dtype is not None:
            value = value.astype(self.dtype)
        # The aggregation computes in the widest of its dtypes: float64 reference points must not widen value.
        wide = sum_dtype(value.dtype)
        locations, weights = locations.astype(wide), weights.astype(wide)
        if padding_mask is not None:
            value = jnp.where(padding_mask[..., None], value, 0)
        y = multi_scale_deformable_attention(
            value.reshape(*value.shape[:-1], self.num_heads, self.features // self.num_heads),
            locations,
            weights,
            spatial_shapes=sizes,
            points=self._points(),
            method=self.method,
            backend=self.backend,
        )
        if layers["output_proj"] is not None:
            y = layers["output_proj"](y)
        if return_sampling is None:
            return_sampling = self.return_sampling
        return (y, locations, weights) if return_sampling else y

    def _points(self) -> tuple[int, ...]:
        """The number of points on each level."""
        levels = _validation.positive("num_levels", self.num_levels)
        counts = (self.num_points,) * levels if isinstance(self.num_points, int) else tuple(self.num_points)
        if len(counts) != levels:
            raise ValueError(f"num_points must be an int, or one for each of num_levels={levels}, got {counts}")
        return counts

    def _of_heads(self, reference_points: jax.Array, rank: int) -> jax.Array:
        """The reference points [..., Q, M or 1, T or 1, 2 or 4], of queries with this number of dimensions."""
        counts = self._points()
        if reference_points.ndim > rank + 1:
            return reference_points
        if reference_points.shape[-2] == sum(counts):
            return reference_points[..., None, :, :]
        return _of_taps(reference_points, counts)[..., None, :, :]

    @by_standard_rules
    def _locations(self, references: jax.Array, offsets: jax.Array, sizes: Sequence[tuple[int, int]]) -> jax.Array:
        """The locations [..., Q, M, T, 2], as fractions of the levels, of offsets of that shape."""
        counts = self._points()
        dtype = sum_dtype(offsets.dtype, references.dtype)
        references = references.astype(dtype)
        if references.shape[-1] == 2:
            width_and_height = np.repeat(np.array(sizes, dtype)[:, ::-1], counts, axis=0)
            return references + offsets / width_and_height
        center, size = references[..., :2], references[..., 2:]
        count = np.repeat(np.array(counts, dtype), counts)[:, None]
        if self.offset_scale is None:
            return center + offsets / count * size * 0.5
        quotient = np.float32(1) / count.astype(np.float32)  # in float32, as RT-DETRv2 and D-FINE have it
        return center + offsets * quotient * size * self.offset_scale

    def _check_shapes(
        self,
        query: jax.Array,
        reference_points: jax.Array,
        value: jax.Array,
        padding_mask: jax.Array | None,
        sizes: Sequence[tuple[int, int]],
    ) -> None:
        _validation.rank("query", query, 2, "[..., Q, features]", least=True)
        _validation.rank("value", value, query.ndim, f"[..., S, features] for query of shape {query.shape}")
        for name, array in (("query", query), ("value", value)):
            if array.shape[-1] != self.features:
                raise ValueError(f"{name} must have features={self.features} channels, got shape {array.shape}")
        if len(sizes) != self.num_levels:
            raise ValueError(f"spatial_shapes must have num_levels={self.num_levels} levels, got {list(sizes)}")
        pixels = sum(height * width for height, width in sizes)
        if value.shape[:-1] != (*query.shape[:-2], pixels):
            raise ValueError(
                f"value must have the leading dimensions of query, of shape {query.shape}, and the {pixels} pixels of "
                f"spatial_shapes={sizes}, got shape {value.shape}"
            )
        points = sum(self._points())
        places = [(self.num_levels,), (1,), (points,), (self.num_heads, points)]
        coordinates = (2, 4) if self.use_offsets else (2,)
        if reference_points.shape not in [(*query.shape[:-1], *place, k) for place in places for k in coordinates]:
            raise ValueError(
                f"reference_points must have shape [..., Q, n, {' or '.join(map(str, coordinates))}] with n = "
                f"num_levels={self.num_levels}, 1 or the {points} points of a head, or [..., Q, "
                f"num_heads={self.num_heads}, {points}, ...], for query of shape {query.shape}, got "
                f"{reference_points.shape}"
            )
        if padding_mask is not None:
            if padding_mask.dtype != jnp.bool_:
                raise TypeError(f"padding_mask must be boolean, True where value is valid, got {padding_mask.dtype}")
            if padding_mask.shape != value.shape[:-1]:
                raise ValueError(
                    f"padding_mask must have shape {value.shape[:-1]}, one for each pixel of value, got "
                    f"{padding_mask.shape}"
                )


def on_rays(heads: int, points: Sequence[int]) -> Initializer:
    """The initializer of the bias of `sampling_offsets`.

    The points of a level lie on a ray, at 1, 2, 3, … steps. Each head has another direction, whose larger coordinate
    is 1: of eight heads, the eight neighbours of a pixel. It is computed in float32, as by the original.
    """
    angle = np.arange(heads, dtype=np.float32) * np.float32(2 * math.pi / heads)
    direction = np.stack([np.cos(angle), np.sin(angle)], -1)
    direction /= abs(direction).max(-1, keepdims=True)
    steps = np.concatenate([np.arange(1, count + 1, dtype=np.float32) for count in points])
    offsets = direction[:, None] * steps[:, None]

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jnp.asarray(offsets, dtype).reshape(shape)

    return init


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
