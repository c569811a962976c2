"""The layers as Flax NNX modules: how they create and hold their parameters."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar

import jax
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from flax.typing import PromoteDtypeFn

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._layers.attention import MultiScaleDeformableAttentionBase
from jax_dcn._layers.dcn import DCNv3Base, DCNv4Base
from jax_dcn._layers.deform_conv import DeformConvBase
from jax_dcn._layers.documentation import documented
from jax_dcn._layers.psroi_pool import DeformPSRoIPoolBase

_CLASSES = {"dense": nnx.Linear, "conv": nnx.Conv, "layer_norm": nnx.LayerNorm, "batch_norm": nnx.BatchNorm}


@dataclass(eq=False, repr=False)
class Layer(common.Layer, nnx.Module):
    """The base class of all layers of NNX.

    Args:
      rngs: Random number generators for the initializers.

    Raises:
      TypeError: For an argument of the wrong kind.
      ValueError: For an argument of a wrong value.
    """

    _channels_argument: ClassVar[str] = "features"  # the argument that says how many channels the input has
    rngs: InitVar[nnx.Rngs] = field(kw_only=True)

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        channels = getattr(self, self._channels_argument)
        self._check(channels, self._channels_argument)
        for name, sublayer in self._sublayers(channels).items():
            setattr(self, name, nnx.data(None) if sublayer is None else _create(sublayer, rngs))
        for name in vars(self).keys() & {"kernel_init", "bias_init"}:
            delattr(self, name)  # functions in the graph would tell layers apart that are otherwise the same

    def _components(self, channels: int, name: str = "x") -> Mapping[str, Any]:
        if channels != (expected := getattr(self, self._channels_argument)):
            raise ValueError(f"{name} must have {self._channels_argument}={expected} channels, got {channels}")
        return vars(self)


def _create(sublayer: common.Sublayer | tuple[common.Sublayer, ...], rngs: nnx.Rngs) -> nnx.Module:
    if isinstance(sublayer, tuple):
        first, *others = (_create(one, rngs) for one in sublayer)
        return nnx.Sequential(first, *(layer for other in others for layer in (nnx.relu, other)))
    sizes = (sublayer.in_features, sublayer.out_features)[: 2 if sublayer.kind in ("dense", "conv") else 1]
    return _CLASSES[sublayer.kind](*sizes, **sublayer.options, rngs=rngs)


@dataclass(eq=False, repr=False)
class _InFeatures:
    in_features: int


@dataclass(eq=False, repr=False)
class _Features:
    """The first argument of `DCNv3` and `DCNv4`.

    Args:
      features: Number of channels of the input and of the result.
    """

    features: int


@dataclass(eq=False, repr=False)
class _OutFeatures(_InFeatures):
    """The first arguments of `DeformConv`.

    Args:
      in_features: Number of input channels.
      out_features: Number of output channels.
    """

    out_features: int


@documented
@dataclass(eq=False, repr=False)
class DeformConv(Layer, DeformConvBase, _OutFeatures):
    """A convolution that learns where to sample: a layer around :func:`jax_dcn.deform_conv2d`.

    With a ``kernel_size`` of one or three numbers it is around :func:`jax_dcn.deform_conv1d` or
    :func:`jax_dcn.deform_conv3d`.

    It replaces a :class:`flax.nnx.Conv`. Set ``conv_offset`` to None in a layer to which offsets are always passed.

    Args:
      promote_dtype: Function that casts a tuple of input, kernel and bias to the dtype of the computation.
      kernel_metadata: Metadata of the ``kernel`` variable, such as its sharding.
      bias_metadata: Metadata of the ``bias`` variable.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_dcn.nnx import DeformConv
      >>> layer = DeformConv(4, 8, kernel_size=(3, 3), strides=2, rngs=nnx.Rngs(0))
      >>> layer.kernel.shape, layer.bias.shape, layer.conv_offset.kernel.shape
      ((3, 3, 4, 8), (8,), (3, 3, 4, 27))
      >>> x = jnp.ones([2, 16, 16, 4])
      >>> layer(x).shape
      (2, 8, 8, 8)
      >>> y, offset, mask = layer(x, return_offsets=True)
      >>> offset.shape, mask.shape
      ((2, 8, 8, 18), (2, 8, 8, 9))
    """

    _channels_argument: ClassVar[str] = "in_features"
    promote_dtype: PromoteDtypeFn = field(default=promote_dtype, kw_only=True)
    kernel_metadata: InitVar[Mapping[str, Any] | None] = field(default=None, kw_only=True)
    bias_metadata: InitVar[Mapping[str, Any] | None] = field(default=None, kw_only=True)
    kernel: nnx.Param[jax.Array] = field(init=False)
    bias: nnx.Param[jax.Array] | None = field(init=False)
    conv_offset: nnx.Conv | None = field(init=False)

    def __post_init__(
        self,
        rngs: nnx.Rngs,
        kernel_metadata: Mapping[str, Any] | None = None,  # noqa: RUF033 - Layer.__post_init__ takes no metadata
        bias_metadata: Mapping[str, Any] | None = None,  # noqa: RUF033
    ) -> None:
        self.kernel_size, self.strides, self.kernel_dilation = self._window()
        common.check_channels("out_features", self.out_features, feature_group_count=self.feature_group_count)
        self._check(self.in_features, "in_features")
        kernel_shape = self._kernel_shape(self.in_features, self.out_features)
        kernel = self.kernel_init(rngs.params(), kernel_shape, self.param_dtype)
        self.kernel = nnx.Param(kernel, **(kernel_metadata or {}))
        self.bias = nnx.data(None)
        if self.use_bias:
            bias = self.bias_init(rngs.params(), (self.out_features,), self.param_dtype)
            self.bias = nnx.Param(bias, **(bias_metadata or {}))
        super().__post_init__(rngs)

    def _components(self, channels: int, name: str = "x") -> Mapping[str, Any]:
        bias = None if self.bias is None else self.bias[...]
        return {**super()._components(channels, name), "kernel": self.kernel[...], "bias": bias}

    def _promote(self, *arrays: jax.Array | None) -> Any:
        return self.promote_dtype(arrays, dtype=self.dtype)


@documented
@dataclass(eq=False, repr=False)
class DeformPSRoIPool(Layer, DeformPSRoIPoolBase, _InFeatures):
    """Position-sensitive RoI pooling that learns to shift its bins: a layer around :func:`jax_dcn.deform_psroi_pool`.

    The attribute of the branch that is not chosen is None. Set both to None in a layer to which offsets are always
    passed.

    Args:
      in_features: Number of channels of what the branch reads: of ``features`` (or of ``x``, if a call gives none) for
        "conv", of ``x`` for "fc".

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_dcn.nnx import DeformPSRoIPool
      >>> layer = DeformPSRoIPool(64, output_size=3, group_size=3, spatial_scale=1 / 16, classes=5, rngs=nnx.Rngs(0))
      >>> layer.conv_offset.kernel.shape
      (1, 1, 64, 90)
      >>> scores = jnp.ones([2, 16, 16, 5 * 3**2])
      >>> features = jnp.ones([2, 16, 16, 64])  # the feature maps that the score maps are computed from
      >>> rois = jnp.array([[0.0, 16.0, 16.0, 127.0, 95.0], [1.0, 0.0, 32.0, 63.0, 255.0]])
      >>> layer(scores, rois, features).shape
      (2, 3, 3, 5)
      >>> pooled, offset, mask = layer(scores, rois, features, return_offsets=True)
      >>> offset.shape, mask
      ((2, 3, 3, 10), None)
    """

    _channels_argument: ClassVar[str] = "in_features"
    conv_offset: nnx.Conv | None = field(init=False)
    fc_offset: nnx.Sequential | None = field(init=False)

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        self.in_features = _validation.positive("in_features", self.in_features)
        for name in ("output_size", "group_size", "part_size", "sample_per_part"):
            if getattr(self, name) is not None:
                setattr(self, name, _validation.pair(name, getattr(self, name)))
        super().__post_init__(rngs)


@documented
@dataclass(eq=False, repr=False)
class MultiScaleDeformableAttention(Layer, MultiScaleDeformableAttentionBase):
    """Multi-scale deformable attention: a layer around :func:`jax_dcn.multi_scale_deformable_attention`.

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

    sampling_offsets: nnx.Linear = field(init=False)
    attention_weights: nnx.Linear = field(init=False)
    value_proj: nnx.Linear | None = field(init=False)
    output_proj: nnx.Linear | None = field(init=False)

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        self._make_hashable()
        super().__post_init__(rngs)


@documented
@dataclass(eq=False, repr=False)
class DCNv3(Layer, DCNv3Base, _Features):
    """The layer of InternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_dcn.nnx import DCNv3
      >>> layer = DCNv3(8, groups=2, rngs=nnx.Rngs(0))
      >>> layer.offset.kernel.shape, layer.mask.kernel.shape, layer.dw_conv.kernel.shape
      ((8, 36), (8, 18), (3, 3, 1, 8))
      >>> x = jnp.ones([2, 16, 16, 8])
      >>> layer(x).shape
      (2, 16, 16, 8)
      >>> y, offset, mask = layer(x, return_offsets=True)
      >>> offset.shape, mask.shape
      ((2, 16, 16, 36), (2, 16, 16, 18))
    """

    input_proj: nnx.Linear = field(init=False)
    dw_conv: nnx.Conv = field(init=False)
    dw_norm: nnx.LayerNorm | nnx.BatchNorm = field(init=False)
    offset: nnx.Linear = field(init=False)
    mask: nnx.Linear = field(init=False)
    center_feature_scale_proj: nnx.Linear | None = field(init=False)
    output_proj: nnx.Linear = field(init=False)


@documented
@dataclass(eq=False, repr=False)
class DCNv4(Layer, DCNv4Base, _Features):
    """The layer of FlashInternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_dcn.nnx import DCNv4
      >>> layer = DCNv4(8, groups=2, rngs=nnx.Rngs(0))
      >>> layer.offset_mask.kernel.shape
      (8, 56)
      >>> x = jnp.ones([2, 16, 16, 8])
      >>> y = layer(x)
      >>> y.shape, bool((y == 0).all())
      ((2, 16, 16, 8), True)
      >>> y, offset, mask = layer(x, return_offsets=True)
      >>> offset.shape, mask.shape
      ((2, 16, 16, 36), (2, 16, 16, 18))
    """

    value_proj: nnx.Linear | None = field(init=False)
    offset_mask_dw: nnx.Conv | None = field(init=False)
    offset_mask: nnx.Linear = field(init=False)
    center_feature_scale_proj: nnx.Linear | None = field(init=False)
    output_proj: nnx.Linear | None = field(init=False)
