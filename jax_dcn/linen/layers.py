"""The layers as Flax Linen modules: how they create their parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from flax.linen.linear import PromoteDtypeFn

from jax_dcn._layers import common
from jax_dcn._layers.attention import MultiScaleDeformableAttentionBase
from jax_dcn._layers.dcn import DCNv3Base, DCNv4Base
from jax_dcn._layers.deform_conv import DeformConvBase
from jax_dcn._layers.documentation import documented
from jax_dcn._layers.psroi_pool import DeformPSRoIPoolBase

_CLASSES = {"dense": nn.Dense, "conv": nn.Conv, "layer_norm": nn.LayerNorm, "batch_norm": nn.BatchNorm}


class Layer(common.Layer, nn.Module):
    """The base class of all layers of Linen. Their `__call__` is compact, so that they can create parameters."""

    @nn.nowrap
    def _components(self, channels: int, name: str = "x") -> Mapping[str, Any]:
        self._check(channels)
        sublayers = self._sublayers(channels)
        return {
            name: None if sublayer is None else _create(sublayer, name=name) for name, sublayer in sublayers.items()
        }


def _create(sublayer: common.Sublayer | tuple[common.Sublayer, ...], **scope: Any) -> nn.Module:
    if isinstance(sublayer, tuple):
        # parent=None lets nn.Sequential adopt the layers, so that their parameters are under its name.
        first, *others = (_create(one, parent=None) for one in sublayer)
        return nn.Sequential([first, *(layer for other in others for layer in (nn.relu, other))], **scope)
    sizes = {"features": sublayer.out_features} if sublayer.kind in ("dense", "conv") else {}
    return _CLASSES[sublayer.kind](**sizes, **sublayer.options, **scope)


@dataclass(eq=False, repr=False)
class _Features:
    """The first argument of `DeformConv`.

    Args:
      features: Number of output channels.
    """

    features: int


@documented
class DeformConv(Layer, DeformConvBase, _Features):
    """A convolution that learns where to sample: a layer around :func:`jax_dcn.deform_conv2d`.

    With a ``kernel_size`` of one or three numbers it is around :func:`jax_dcn.deform_conv1d` or
    :func:`jax_dcn.deform_conv3d`.

    It replaces a :class:`flax.linen.Conv`.

    Args:
      promote_dtype: Function that casts input, kernel and bias to the dtype of the computation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn.linen import DeformConv
      >>> layer = DeformConv(features=8, kernel_size=(3, 3), strides=2)
      >>> x = jnp.ones([2, 16, 16, 4])
      >>> y, variables = layer.init_with_output(jax.random.key(0), x)
      >>> y.shape
      (2, 8, 8, 8)
      >>> shapes = jax.tree.map(jnp.shape, variables["params"])
      >>> shapes["kernel"], shapes["bias"], shapes["conv_offset"]["kernel"]
      ((3, 3, 4, 8), (8,), (3, 3, 4, 27))
      >>> y, offset, mask = layer.apply(variables, x, return_offsets=True)
      >>> offset.shape, mask.shape
      ((2, 8, 8, 18), (2, 8, 8, 9))
    """

    promote_dtype: PromoteDtypeFn = field(default=promote_dtype, kw_only=True)

    __call__ = nn.compact(DeformConvBase.__call__)

    @nn.nowrap
    def _components(self, channels: int, name: str = "x") -> Mapping[str, Any]:
        common.check_channels("features", self.features, feature_group_count=self.feature_group_count)
        components = super()._components(channels)
        kernel_shape = self._kernel_shape(channels, self.features)
        kernel = self.param("kernel", self.kernel_init, kernel_shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        return {**components, "kernel": kernel, "bias": bias}

    @nn.nowrap
    def _promote(self, *arrays: jax.Array | None) -> Any:
        return self.promote_dtype(*arrays, dtype=self.dtype)


@documented
class DeformPSRoIPool(Layer, DeformPSRoIPoolBase):
    """Position-sensitive RoI pooling that learns to shift its bins: a layer around :func:`jax_dcn.deform_psroi_pool`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn.linen import DeformPSRoIPool
      >>> layer = DeformPSRoIPool(output_size=3, group_size=3, spatial_scale=1 / 16, classes=5)
      >>> scores = jnp.ones([2, 16, 16, 5 * 3**2])
      >>> features = jnp.ones([2, 16, 16, 64])  # the feature maps that the score maps are computed from
      >>> rois = jnp.array([[0.0, 16.0, 16.0, 127.0, 95.0], [1.0, 0.0, 32.0, 63.0, 255.0]])
      >>> pooled, variables = layer.init_with_output(jax.random.key(0), scores, rois, features)
      >>> pooled.shape
      (2, 3, 3, 5)
      >>> jax.tree.map(jnp.shape, variables["params"])
      {'conv_offset': {'bias': (90,), 'kernel': (1, 1, 64, 90)}}
      >>> pooled, offset, mask = layer.apply(variables, scores, rois, features, return_offsets=True)
      >>> offset.shape, mask
      ((2, 3, 3, 10), None)
    """

    __call__ = nn.compact(DeformPSRoIPoolBase.__call__)


@documented
class MultiScaleDeformableAttention(Layer, MultiScaleDeformableAttentionBase):
    """Multi-scale deformable attention: a layer around :func:`jax_dcn.multi_scale_deformable_attention`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn.linen import MultiScaleDeformableAttention
      >>> levels = ((8, 12), (4, 6))  # (H, W) of each
      >>> value = jnp.ones([2, 8 * 12 + 4 * 6, 32])  # the pixels of all levels, one after the other
      >>> query = jnp.ones([2, 5, 32])
      >>> reference_points = jnp.full([2, 5, 1, 2], 0.5)  # the same point (x, y) on all levels: the middle
      >>> layer = MultiScaleDeformableAttention(features=32, num_heads=4, num_levels=2)
      >>> y, variables = layer.init_with_output(
      ...     jax.random.key(0), query, reference_points, value, spatial_shapes=levels
      ... )
      >>> y.shape
      (2, 5, 32)
      >>> {name: dense["kernel"].shape for name, dense in sorted(variables["params"].items())}
      {'attention_weights': (32, 32), 'output_proj': (32, 32), 'sampling_offsets': (32, 64), 'value_proj': (32, 32)}
    """

    def __post_init__(self) -> None:
        self._make_hashable()
        super().__post_init__()

    __call__ = nn.compact(MultiScaleDeformableAttentionBase.__call__)


@documented
class DCNv3(Layer, DCNv3Base):
    """The layer of InternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

    Args:
      use_running_average: Whether a batch norm uses its stored statistics, unless the call says so.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn.linen import DCNv3
      >>> layer = DCNv3(groups=2)
      >>> x = jnp.ones([2, 16, 16, 8])
      >>> y, variables = layer.init_with_output(jax.random.key(0), x)
      >>> y.shape
      (2, 16, 16, 8)
      >>> sorted(variables["params"])
      ['dw_conv', 'dw_norm', 'input_proj', 'mask', 'offset', 'output_proj']
      >>> y, offset, mask = layer.apply(variables, x, return_offsets=True)
      >>> offset.shape, mask.shape
      ((2, 16, 16, 36), (2, 16, 16, 18))
    """

    use_running_average: bool | None = field(default=None, kw_only=True)

    @nn.compact
    def __call__(
        self, x: jax.Array, *, use_running_average: bool | None = None, return_offsets: bool | None = None
    ) -> Any:
        if use_running_average is None:
            use_running_average = self.use_running_average
        return super().__call__(x, use_running_average=use_running_average, return_offsets=return_offsets)


@documented
class DCNv4(Layer, DCNv4Base):
    """The layer of FlashInternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn.linen import DCNv4
      >>> layer = DCNv4(groups=2)
      >>> x = jnp.ones([2, 16, 16, 8])
      >>> y, variables = layer.init_with_output(jax.random.key(0), x)
      >>> y.shape, bool((y == 0).all())
      ((2, 16, 16, 8), True)
      >>> {name: dense["kernel"].shape for name, dense in sorted(variables["params"].items())}
      {'offset_mask': (8, 56), 'output_proj': (8, 8), 'value_proj': (8, 8)}
      >>> y, offset, mask = layer.apply(variables, x, return_offsets=True)
      >>> offset.shape, mask.shape
      ((2, 16, 16, 36), (2, 16, 16, 18))
    """

    __call__ = nn.compact(DCNv4Base.__call__)
