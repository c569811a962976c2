"""Deformable convolution as Flax Linen modules."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import initializers
from flax.linen.dtypes import promote_dtype
from flax.linen.linear import PromoteDtypeFn
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn import _validation
from jax_dcn._layers import conv
from jax_dcn._types import Backend, Padding, Pair


class DeformConv(nn.Module):
    """A 2-D convolution that learns where to sample: a layer around :func:`jax_dcn.deform_conv2d`.

    It replaces a :class:`flax.linen.Conv`. It contains an ordinary convolution, ``conv_offset``, which predicts an
    offset in pixels and, if ``modulated``, a mask for each output pixel and kernel tap. That convolution is initialized
    with zeros, so a new layer samples the regular grid, with masks of ``mask_scale / 2``.

    Parameters: ``kernel`` [kh, kw, in // feature_group_count, features], ``bias`` [features], and
    ``conv_offset/kernel`` and ``conv_offset/bias``, whose output channels are 2·G·K offsets (dy, then dx, for each of
    the G offset groups and K = kh·kw taps) followed by G·K mask logits. :func:`jax_dcn.offset_labels` labels the
    two kinds of parameters for an optimizer.

    Attributes:
      features: Number of output channels.
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
      promote_dtype: Function that casts input, kernel and bias to the dtype of the computation.
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

    features: int
    kernel_size: Pair
    strides: Pair = 1
    padding: Padding = "SAME"
    kernel_dilation: Pair = 1
    feature_group_count: int = 1
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = initializers.lecun_normal()
    bias_init: Initializer = initializers.zeros_init()
    promote_dtype: PromoteDtypeFn = promote_dtype
    preferred_element_type: Dtype | None = None
    offset_groups: int = 1
    modulated: bool = True
    mask_scale: float = 1.0
    offset_bound: float | None = None
    kernel_transform: conv.KernelTransform | None = None
    return_offsets: bool = False
    backend: Backend = None

    @nn.compact
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
          x: [..., H, W, in], with any number of batch dimensions, including none.
          offset: [..., Ho, Wo, 2·G·K], in pixels, channel ``(g·K + k)·2 + {0: dy, 1: dx}``. None predicts it. An
            offset that is given is used unchanged, without ``offset_bound``, and the layer has no ``conv_offset``.
          mask: [..., Ho, Wo, G·K], used as it is. May only be given with an offset; an offset without a mask means no
            modulation.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., Ho, Wo, features], or ``(y, offset, mask)`` with the offset and mask that were used. The mask is
          None without modulation.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value, or a mask without an offset.
        """
        kernel_size = _validation.pair("kernel_size", self.kernel_size)
        in_features = conv.channels_of(x)
        conv.check_channels("features", self.features, feature_group_count=self.feature_group_count)
        conv.check_channels(
            "the channel count of x",
            in_features,
            feature_group_count=self.feature_group_count,
            offset_groups=self.offset_groups,
        )
        conv.check_offset_bound(self.offset_bound)
        _validation.number("mask_scale", self.mask_scale)

        kernel_shape = (*kernel_size, in_features // self.feature_group_count, self.features)
        kernel = self.param("kernel", self.kernel_init, kernel_shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None

        def conv_offset(inputs: jax.Array) -> jax.Array:
            return nn.Conv(
                conv.conv_offset_features(kernel_size, self.offset_groups, self.modulated),
                kernel_size,
                strides=_validation.pair("strides", self.strides),
                padding=self.padding,
                kernel_dilation=_validation.pair("kernel_dilation", self.kernel_dilation),
                param_dtype=self.param_dtype,
                precision=self.precision,
                kernel_init=initializers.zeros_init(),
                name="conv_offset",
            )(inputs)

        return conv.apply(
            self,
            x,
            kernel,
            bias,
            offset,
            mask,
            conv_offset=conv_offset,
            promote=partial(self.promote_dtype, dtype=self.dtype),
            return_offsets=return_offsets,
        )
