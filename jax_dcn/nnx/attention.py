"""Multi-scale deformable attention as Flax NNX modules."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn._layers import attention

_default_kernel_init = nnx.initializers.xavier_uniform()
_default_bias_init = nnx.initializers.zeros_init()


class MultiScaleDeformableAttention(nnx.Module):
    """Multi-scale deformable attention: a layer around :func:`jax_dcn.multi_scale_deformable_attention`.

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
      dtype: Dtype of the computation; None infers it from values and parameters. Offsets and weights are predicted in
        float32 (or wider) all the same.
      param_dtype: Dtype of the parameters.
      precision: Of the products, see :class:`jax.lax.Precision`.
      kernel_init: Initializer of the kernels of both projections.
      bias_init: Initializer of the biases of both projections.
      spatial_shapes: The (H, W) of each level, for calls that do not give them. Under ``nnx.remat`` and ``nnx.jit``,
        which trace the arguments of a call, they must be given here.
      return_sampling: Whether a call returns ``(y, sampling_locations, attention_weights)``.
      backend: None for the kernels of the platform, "reference" for ``jax.numpy``.
      rngs: Random number generators for the initializers.

    Raises:
      TypeError: For an argument of the wrong kind.
      ValueError: For an argument of a wrong value.

    References:
      Zhu et al., Deformable DETR, arXiv:2010.04159; Lv et al., RT-DETRv2, arXiv:2407.17140; Peng et al., D-FINE,
      arXiv:2410.13842.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_dcn.nnx import MultiScaleDeformableAttention
      >>> layer = MultiScaleDeformableAttention(32, num_heads=4, num_levels=2, rngs=nnx.Rngs(0))
      >>> layer.sampling_offsets.kernel.shape, layer.attention_weights.kernel.shape
      ((32, 64), (32, 32))
      >>> levels = ((8, 12), (4, 6))  # (H, W) of each
      >>> value = jnp.ones([2, 8 * 12 + 4 * 6, 32])  # the pixels of all levels, one after the other
      >>> query = jnp.ones([2, 5, 32])
      >>> reference_points = jnp.full([2, 5, 1, 2], 0.5)  # the same point (x, y) on all levels: the middle
      >>> layer(query, reference_points, value, spatial_shapes=levels).shape
      (2, 5, 32)
    """

    def __init__(
        self,
        features: int,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int | Sequence[int] = 4,
        *,
        method: attention.Method = "bilinear",
        offset_scale: float | None = None,
        use_projections: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = _default_kernel_init,
        bias_init: Initializer = _default_bias_init,
        spatial_shapes: Sequence[Sequence[int]] | None = None,
        return_sampling: bool = False,
        backend: Literal["reference"] | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.features = features
        self.num_heads = num_heads
        self.num_levels = num_levels
        self.num_points: int | Sequence[int] = attention.canonical_points(num_points)
        self.method: attention.Method = method
        self.offset_scale = offset_scale
        self.use_projections = use_projections
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.spatial_shapes: Sequence[Sequence[int]] | None = attention.canonical_shapes(spatial_shapes)
        self.return_sampling = return_sampling
        self.backend = backend
        attention.check(self)

        dense = partial(nnx.Linear, features, param_dtype=param_dtype, precision=precision, rngs=rngs)
        predicted = partial(dense, kernel_init=nnx.initializers.zeros_init())
        projection = partial(dense, features, dtype=dtype, kernel_init=kernel_init, bias_init=bias_init)
        outputs = attention.weight_features(self)
        self.sampling_offsets: nnx.Linear = predicted(2 * outputs, bias_init=attention.ring(self))
        self.attention_weights: nnx.Linear = predicted(outputs)
        self.value_proj: nnx.Linear | None = projection() if use_projections else nnx.data(None)
        self.output_proj: nnx.Linear | None = projection() if use_projections else nnx.data(None)

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
            boxes (x and y of the centre, width, height), and offsets are relative to the size of the box.
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
        return attention.apply(
            self,
            query,
            reference_points,
            value,
            spatial_shapes=spatial_shapes,
            padding_mask=padding_mask,
            sampling_offsets=self.sampling_offsets,
            attention_weights=self.attention_weights,
            value_proj=self.value_proj,
            output_proj=self.output_proj,
            return_sampling=return_sampling,
        )
