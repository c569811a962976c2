"""Deformable convolution and RoI pooling as Flax Linen modules."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import initializers
from flax.linen.dtypes import promote_dtype
from flax.linen.linear import PromoteDtypeFn
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn import _check, _conv_layer, _pool_layer
from jax_dcn.deform_conv.functions import Padding, Pair


class DeformConv(nn.Module):
    """A 2-D convolution that learns where to sample: :func:`jax_dcn.deform_conv2d` with its parameters.

    It takes the place of a :class:`flax.linen.Conv`: an ordinary convolution inside it, ``conv_offset``, predicts for
    every output pixel and kernel tap an offset in pixels and, if ``modulated``, a mask. That convolution starts at
    zero, so a new layer samples the regular grid, with masks of ``mask_scale / 2``.

    Parameters: ``kernel`` [kh, kw, in // feature_group_count, features], ``bias`` [features], and
    ``conv_offset/kernel`` and ``conv_offset/bias``, whose outputs are 2·G·K offsets (for each of the G offset groups
    and K = kh·kw taps dy, then dx) followed by G·K mask logits. :func:`jax_dcn.offset_labels` tells the two kinds of
    parameters apart for an optimizer.

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
      backend: None for the kernel of the platform, "reference" for plain ``jax.numpy``.

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
    kernel_transform: _conv_layer.KernelTransform | None = None
    return_offsets: bool = False
    backend: Literal["reference"] | None = None

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
          x: [..., H, W, in], with any number of batch dimensions, none included.
          offset: [..., Ho, Wo, 2·G·K], in pixels, channel ``(g·K + k)·2 + {0: dy, 1: dx}``. None predicts it; an offset
            given is used as it is, without ``offset_bound``, and the layer then has no ``conv_offset``.
          mask: [..., Ho, Wo, G·K], used as it is. May only be given with an offset; an offset without a mask means no
            modulation.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., Ho, Wo, features], or ``(y, offset, mask)`` with what was used; the mask is None where there is
          no modulation.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value, or a mask without an offset.
        """
        kernel_size = _check.pair("kernel_size", self.kernel_size)
        in_features = _conv_layer.channels_of(x)
        _conv_layer.check_channels("features", self.features, feature_group_count=self.feature_group_count)
        _conv_layer.check_channels(
            "the channel count of x",
            in_features,
            feature_group_count=self.feature_group_count,
            offset_groups=self.offset_groups,
        )
        _conv_layer.check_offset_bound(self.offset_bound)
        _check.number("mask_scale", self.mask_scale)

        kernel_shape = (*kernel_size, in_features // self.feature_group_count, self.features)
        kernel = self.param("kernel", self.kernel_init, kernel_shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None

        def conv_offset(inputs: jax.Array) -> jax.Array:
            return nn.Conv(
                _conv_layer.conv_offset_features(kernel_size, self.offset_groups, self.modulated),
                kernel_size,
                strides=_check.pair("strides", self.strides),
                padding=self.padding,
                kernel_dilation=_check.pair("kernel_dilation", self.kernel_dilation),
                param_dtype=self.param_dtype,
                precision=self.precision,
                kernel_init=initializers.zeros_init(),
                name="conv_offset",
            )(inputs)

        return _conv_layer.apply(
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


class DeformPSRoIPool(nn.Module):
    """Position-sensitive RoI pooling that learns how to move its bins: :func:`jax_dcn.deform_psroi_pool` with a branch.

    The branch predicts an offset for every part of a region and, if ``modulated``, a mask. ``offset_branch`` is one of
    the papers' two. "conv" is that of R-FCN: ``conv_offset``, a 1x1 convolution, makes position-sensitive maps of
    offsets, which are pooled as the score maps are. "fc" is that of Faster R-CNN: ``x`` is pooled without offsets, and
    ``fc_offset``, two hidden layers and a linear one, sees the region as a whole. Either ends in a layer that starts at
    zero, so a new layer pools as :func:`jax_dcn.psroi_pool` does, with masks of ``mask_scale / 2``.

    Parameters: ``conv_offset/kernel`` and ``conv_offset/bias``, or ``kernel`` and ``bias`` of ``fc_offset/layers_0``,
    ``layers_2`` and ``layers_4``. :func:`jax_dcn.offset_labels` tells them apart from others for an optimizer.

    Attributes:
      output_size: Into how many bins a region is cut; an int, or one each for rows and columns.
      offset_branch: "conv" or "fc".
      spatial_scale: Of ``x`` to the input image: 1/16 for features of stride 16.
      group_size: Rows and columns of the grid of score maps; 1 pools all bins from the same channels.
      part_size: Into how many parts, each with its own offset, a region is cut; None means ``output_size``.
      sample_per_part: Samples of a bin along each axis.
      trans_std: What fraction of the region's size an offset of 1 is.
      classes: How many groups of features move independently: one for each class of position-sensitive score maps.
      modulated: Whether to predict masks (DCNv2), by which bins are multiplied, beside offsets.
      mask_scale: ``mask = mask_scale * sigmoid(logits)``. With 2 a new layer pools just as without masks.
      hidden_features: Size of the two hidden layers of "fc".
      dtype: Dtype of the pooling; None means that of ``x``. Offsets and masks are predicted in float32 (or wider) all
        the same.
      param_dtype: Dtype of the parameters.
      precision: Of the branch's products, see :class:`jax.lax.Precision`.
      kernel_init: Initializer of the kernels of the hidden layers.
      return_offsets: Whether a call returns ``(pooled, offset, mask)``.
      backend: None for the kernel of the platform, "reference" for plain ``jax.numpy``.

    References:
      Dai et al., Deformable Convolutional Networks, arXiv:1703.06211, section 2.2; Zhu et al., Deformable ConvNets v2,
      arXiv:1811.11168, section 3.2, for masks and the hidden layers of "fc".

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn.linen import DeformPSRoIPool
      >>> layer = DeformPSRoIPool(output_size=3, group_size=3, spatial_scale=1 / 16, classes=5)
      >>> scores = jnp.ones([2, 16, 16, 5 * 3**2])
      >>> features = jnp.ones([2, 16, 16, 64])  # that the score maps were made from
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

    output_size: Pair
    offset_branch: _pool_layer.OffsetBranch = "conv"
    spatial_scale: float = 1.0
    group_size: Pair = 1
    part_size: Pair | None = None
    sample_per_part: Pair = 4
    trans_std: float = 0.1
    classes: int = 1
    modulated: bool = False
    mask_scale: float = 1.0
    hidden_features: int = 1024
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = initializers.lecun_normal()
    return_offsets: bool = False
    backend: Literal["reference"] | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        rois: jax.Array,
        features: jax.Array | None = None,
        offset: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        return_offsets: bool | None = None,
    ) -> Any:
        """Pools the regions ``rois`` of ``x``.

        Args:
          x: [..., N, H, W, D·group_size²]. Batch dimensions may stand in front of all arrays.
          rois: [..., R, 5]: image index, x1, y1, x2, y2 in pixels of the input image. An index outside [0, N), as
            padding has -1, gives zeros.
          features: [..., N, H, W, in], the maps that "conv" predicts offsets from; None means ``x``. Must be None
            for "fc".
          offset: [..., R, part_size, part_size, 2·classes], dx before dy for each class, in units of ``trans_std``
            times the region's size. None predicts it; with an offset given the layer has no branch.
          mask: [..., R, part_size, part_size, classes], used as it is. May only be given with an offset; an offset
            without a mask means no modulation.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``pooled`` [..., R, output_size, output_size, D], or ``(pooled, offset, mask)`` with what was used; the mask
          is None where there is no modulation.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value, a mask without an offset, or features for "fc".
        """
        _pool_layer.check(self)
        shared: dict[str, Any] = {"param_dtype": self.param_dtype, "precision": self.precision}
        outputs = _pool_layer.offset_features(self)

        def conv_offset(inputs: jax.Array) -> jax.Array:
            kernel_init = initializers.zeros_init()
            return nn.Conv(outputs, (1, 1), kernel_init=kernel_init, name="conv_offset", **shared)(inputs)

        def fc_offset(inputs: jax.Array) -> jax.Array:
            def dense(features: int, kernel_init: Initializer) -> nn.Dense:
                # Without a parent of its own, so that it becomes a part of fc_offset.
                return nn.Dense(features, kernel_init=kernel_init, parent=None, **shared)

            return nn.Sequential(
                [
                    dense(self.hidden_features, self.kernel_init),
                    nn.relu,
                    dense(self.hidden_features, self.kernel_init),
                    nn.relu,
                    dense(outputs, initializers.zeros_init()),
                ],
                name="fc_offset",
            )(inputs)

        return _pool_layer.apply(
            self,
            x,
            rois,
            features,
            offset,
            mask,
            branch=conv_offset if self.offset_branch == "conv" else fc_offset,
            return_offsets=return_offsets,
        )
