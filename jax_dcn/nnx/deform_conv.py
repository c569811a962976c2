"""Deformable convolution as Flax NNX modules."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from flax.typing import Dtype, Initializer, PrecisionLike, PromoteDtypeFn

from jax_dcn import _validation
from jax_dcn._layers import conv
from jax_dcn._types import Backend, Padding, Pair

_default_kernel_init = nnx.initializers.lecun_normal()
_default_bias_init = nnx.initializers.zeros_init()


class DeformConv(nnx.Module):
    """A 2-D convolution that learns where to sample: a layer around :func:`jax_dcn.deform_conv2d`.

    It replaces a :class:`flax.nnx.Conv`. It contains an ordinary convolution, ``conv_offset``, which predicts an offset
    in pixels and, if ``modulated``, a mask for each output pixel and kernel tap. That convolution is initialized with
    zeros, so a new layer samples the regular grid, with masks of ``mask_scale / 2``. Set ``conv_offset`` to None in a
    layer to which offsets are always passed.

    Parameters: ``kernel`` [kh, kw, in // feature_group_count, out], ``bias`` [out], and those of ``conv_offset``, whose
    output channels are 2·G·K offsets (dy, then dx, for each of the G offset groups and K = kh·kw taps) followed by
    G·K mask logits. :func:`jax_dcn.offset_labels` labels the two kinds of parameters for an optimizer.

    Args:
      in_features: Number of input channels.
      out_features: Number of output channels.
      kernel_size: Height and width of the kernel; an int means a square one.
      strides: One int for both dimensions, or a pair.
      padding: "SAME", "SAME_LOWER", "VALID", "CIRCULAR" (the image is a torus), an int, a pair of ints, or
        ``((top, bottom), (left, right))``.
      kernel_dilation: Spacing of the taps in pixels: one int or a pair.
      feature_group_count: Into how many groups the convolution divides the channels.
      use_bias: Whether to add a bias.
      dtype: Dtype of the computation; None infers it from input and parameters. Offsets and masks are predicted in
        float32 (or wider) all the same.
      param_dtype: Dtype of the parameters.
      precision: Of the products, see :class:`jax.lax.Precision`.
      kernel_init: Initializer of ``kernel``.
      bias_init: Initializer of ``bias``.
      promote_dtype: Function that casts a tuple of input, kernel and bias to the dtype of the computation.
      preferred_element_type: Dtype of the output; None means that of the computation.
      offset_groups: Into how many groups with their own offsets and masks the input channels are divided.
      modulated: Whether to predict masks (DCNv2) beside offsets.
      mask_scale: ``mask = mask_scale * sigmoid(logits)``. With 2 a new layer computes just what an ordinary convolution
        would.
      offset_bound: Keeps every coordinate of a predicted offset within this many pixels:
        ``offset = offset_bound * tanh(raw / offset_bound)``. None sets no bound.
      kernel_transform: Function applied to the kernel before use, such as :func:`jax_dcn.quantize.power_of_two`.
      return_offsets: Whether a call returns ``(y, offset, mask)``.
      backend: None for the kernels of the platform, "fused" or "plain" for those of this path, "reference" for
        ``jax.numpy``; see :func:`jax_dcn.deform_conv2d`.
      rngs: Random number generators for the initializers.
      kernel_metadata: Metadata of the ``kernel`` variable, such as its sharding.
      bias_metadata: Metadata of the ``bias`` variable.

    Raises:
      ValueError: For an argument of a wrong value.

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

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: Pair,
        strides: Pair = 1,
        *,
        padding: Padding = "SAME",
        kernel_dilation: Pair = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = _default_kernel_init,
        bias_init: Initializer = _default_bias_init,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        preferred_element_type: Dtype | None = None,
        offset_groups: int = 1,
        modulated: bool = True,
        mask_scale: float = 1.0,
        offset_bound: float | None = None,
        kernel_transform: conv.KernelTransform | None = None,
        return_offsets: bool = False,
        backend: Backend = None,
        rngs: nnx.Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        kernel_size = _validation.pair("kernel_size", kernel_size)
        strides = _validation.pair("strides", strides)
        kernel_dilation = _validation.pair("kernel_dilation", kernel_dilation)
        conv.check_channels("out_features", out_features, feature_group_count=feature_group_count)
        conv.check_channels(
            "in_features", in_features, feature_group_count=feature_group_count, offset_groups=offset_groups
        )
        conv.check_offset_bound(offset_bound)
        _validation.number("mask_scale", mask_scale)

        self.in_features = in_features
        self.out_features = out_features
        self.kernel_size = kernel_size
        self.strides: Pair = strides
        self.padding = padding
        self.kernel_dilation: Pair = kernel_dilation
        self.feature_group_count = feature_group_count
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type
        self.offset_groups = offset_groups
        self.modulated = modulated
        self.mask_scale = mask_scale
        self.offset_bound = offset_bound
        self.kernel_transform = kernel_transform
        self.return_offsets = return_offsets
        self.backend = backend

        kernel_shape = (*kernel_size, in_features // feature_group_count, out_features)
        self.kernel: nnx.Param[jax.Array] = nnx.Param(
            kernel_init(rngs.params(), kernel_shape, param_dtype), **kernel_metadata
        )
        self.bias: nnx.Param[jax.Array] | None = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (out_features,), param_dtype), **bias_metadata)
        self.conv_offset: nnx.Conv | None = nnx.Conv(
            in_features,
            conv.conv_offset_features(kernel_size, offset_groups, modulated),
            kernel_size,
            strides,
            padding=padding,
            kernel_dilation=kernel_dilation,
            param_dtype=param_dtype,
            precision=precision,
            kernel_init=nnx.initializers.zeros_init(),
            rngs=rngs,
        )

    def __call__(
        self,
        x: jax.Array,
        offset: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        return_offsets: bool | None = None,
    ) -> Any:
        """Convolves ``x``.

        Args:
          x: [..., H, W, in_features], with any number of batch dimensions, including none.
          offset: [..., Ho, Wo, 2·G·K], in pixels, channel ``(g·K + k)·2 + {0: dy, 1: dx}``. None predicts it. An
            offset that is given is used unchanged, without ``offset_bound``, and ``conv_offset`` is not used.
          mask: [..., Ho, Wo, G·K], used as it is. May only be given with an offset; an offset without a mask means no
            modulation.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., Ho, Wo, out_features], or ``(y, offset, mask)`` with the offset and mask that were used. The mask
          is None without modulation.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value, or a mask without an offset.
        """
        if conv.channels_of(x) != self.in_features:
            raise ValueError(f"x must have in_features={self.in_features} channels, got {x.shape[-1]}")
        return conv.apply(
            self,
            x,
            self.kernel[...],
            self.bias[...] if self.bias is not None else None,
            offset,
            mask,
            conv_offset=self.conv_offset,
            promote=lambda *arrays: self.promote_dtype(arrays, dtype=self.dtype),
            return_offsets=return_offsets,
        )
