"""Deformable convolution and RoI pooling as Flax NNX modules."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from flax.typing import Dtype, Initializer, PrecisionLike, PromoteDtypeFn

from jax_dcn import _check, _conv_layer, _pool_layer
from jax_dcn.deform_conv.functions import Padding, Pair

_default_kernel_init = nnx.initializers.lecun_normal()
_default_bias_init = nnx.initializers.zeros_init()


class DeformConv(nnx.Module):
    """A 2-D convolution that learns where to sample: :func:`jax_dcn.deform_conv2d` with its parameters.

    It takes the place of a :class:`flax.nnx.Conv`: an ordinary convolution inside it, ``conv_offset``, predicts for
    every output pixel and kernel tap an offset in pixels and, if ``modulated``, a mask. That convolution starts at
    zero, so a new layer samples the regular grid, with masks of ``mask_scale / 2``. Set ``conv_offset`` to None in a
    layer that always gets its offsets from outside.

    Parameters: ``kernel`` [kh, kw, in // feature_group_count, out], ``bias`` [out], and those of ``conv_offset``, whose
    outputs are 2·G·K offsets (for each of the G offset groups and K = kh·kw taps dy, then dx) followed by G·K mask
    logits. :func:`jax_dcn.offset_labels` tells the two kinds of parameters apart for an optimizer.

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
      backend: None for the kernel of the platform, "reference" for plain ``jax.numpy``.
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
        kernel_transform: _conv_layer.KernelTransform | None = None,
        return_offsets: bool = False,
        backend: Literal["reference"] | None = None,
        rngs: nnx.Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        kernel_size = _check.pair("kernel_size", kernel_size)
        strides = _check.pair("strides", strides)
        kernel_dilation = _check.pair("kernel_dilation", kernel_dilation)
        _conv_layer.check_channels("out_features", out_features, feature_group_count=feature_group_count)
        _conv_layer.check_channels(
            "in_features", in_features, feature_group_count=feature_group_count, offset_groups=offset_groups
        )
        _conv_layer.check_offset_bound(offset_bound)
        _check.number("mask_scale", mask_scale)

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
            _conv_layer.conv_offset_features(kernel_size, offset_groups, modulated),
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
          x: [..., H, W, in_features], with any number of batch dimensions, none included.
          offset: [..., Ho, Wo, 2·G·K], in pixels, channel ``(g·K + k)·2 + {0: dy, 1: dx}``. None predicts it; an offset
            given is used as it is, without ``offset_bound``, and ``conv_offset`` is not used.
          mask: [..., Ho, Wo, G·K], used as it is. May only be given with an offset; an offset without a mask means no
            modulation.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., Ho, Wo, out_features], or ``(y, offset, mask)`` with what was used; the mask is None where there
          is no modulation.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value, or a mask without an offset.
        """
        if _conv_layer.channels_of(x) != self.in_features:
            raise ValueError(f"x must have in_features={self.in_features} channels, got {x.shape[-1]}")
        return _conv_layer.apply(
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


class DeformPSRoIPool(nnx.Module):
    """Position-sensitive RoI pooling that learns how to move its bins: :func:`jax_dcn.deform_psroi_pool` with a branch.

    The branch predicts an offset for every part of a region and, if ``modulated``, a mask. ``offset_branch`` is one of
    the papers' two. "conv" is that of R-FCN: ``conv_offset``, a 1x1 convolution, makes position-sensitive maps of
    offsets, which are pooled as the score maps are. "fc" is that of Faster R-CNN: ``x`` is pooled without offsets, and
    ``fc_offset``, two hidden layers and a linear one, sees the region as a whole. Either ends in a layer that starts at
    zero, so a new layer pools as :func:`jax_dcn.psroi_pool` does, with masks of ``mask_scale / 2``. The other
    branch is None; set both to None in a layer that always gets its offsets from outside.

    Parameters: those of ``conv_offset`` or ``fc_offset``. :func:`jax_dcn.offset_labels` tells them apart from others
    for an optimizer.

    Args:
      in_features: Number of channels of what the branch reads: of ``features`` (or of ``x``, if a call gives none) for
        "conv", of ``x`` for "fc".
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
      rngs: Random number generators for the initializers.

    Raises:
      TypeError: For an argument of the wrong kind.
      ValueError: For an argument of a wrong value.

    References:
      Dai et al., Deformable Convolutional Networks, arXiv:1703.06211, section 2.2; Zhu et al., Deformable ConvNets v2,
      arXiv:1811.11168, section 3.2, for masks and the hidden layers of "fc".

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_dcn.nnx import DeformPSRoIPool
      >>> layer = DeformPSRoIPool(64, output_size=3, group_size=3, spatial_scale=1 / 16, classes=5, rngs=nnx.Rngs(0))
      >>> layer.conv_offset.kernel.shape
      (1, 1, 64, 90)
      >>> scores = jnp.ones([2, 16, 16, 5 * 3**2])
      >>> features = jnp.ones([2, 16, 16, 64])  # that the score maps were made from
      >>> rois = jnp.array([[0.0, 16.0, 16.0, 127.0, 95.0], [1.0, 0.0, 32.0, 63.0, 255.0]])
      >>> layer(scores, rois, features).shape
      (2, 3, 3, 5)
      >>> pooled, offset, mask = layer(scores, rois, features, return_offsets=True)
      >>> offset.shape, mask
      ((2, 3, 3, 10), None)
    """

    def __init__(
        self,
        in_features: int,
        output_size: Pair,
        *,
        offset_branch: _pool_layer.OffsetBranch = "conv",
        spatial_scale: float = 1.0,
        group_size: Pair = 1,
        part_size: Pair | None = None,
        sample_per_part: Pair = 4,
        trans_std: float = 0.1,
        classes: int = 1,
        modulated: bool = False,
        mask_scale: float = 1.0,
        hidden_features: int = 1024,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = _default_kernel_init,
        return_offsets: bool = False,
        backend: Literal["reference"] | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.in_features: int = _check.positive("in_features", in_features)
        self.output_size: Pair = _check.pair("output_size", output_size)
        self.offset_branch: _pool_layer.OffsetBranch = offset_branch
        self.spatial_scale = spatial_scale
        self.group_size: Pair = _check.pair("group_size", group_size)
        self.part_size: Pair | None = None if part_size is None else _check.pair("part_size", part_size)
        self.sample_per_part: Pair = _check.pair("sample_per_part", sample_per_part)
        self.trans_std = trans_std
        self.classes = classes
        self.modulated = modulated
        self.mask_scale = mask_scale
        self.hidden_features = hidden_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.return_offsets = return_offsets
        self.backend = backend
        _pool_layer.check(self)

        shared: dict[str, Any] = {"param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        outputs = _pool_layer.offset_features(self)
        zeros = nnx.initializers.zeros_init()
        self.conv_offset: nnx.Conv | None = nnx.data(None)
        self.fc_offset: nnx.Sequential | None = nnx.data(None)
        if offset_branch == "conv":
            self.conv_offset = nnx.Conv(in_features, outputs, (1, 1), kernel_init=zeros, **shared)
        else:
            _pool_layer.check_channels(self, "in_features", in_features)
            inputs = _pool_layer.region_features(self, in_features)
            self.fc_offset = nnx.Sequential(
                nnx.Linear(inputs, hidden_features, kernel_init=kernel_init, **shared),
                nnx.relu,
                nnx.Linear(hidden_features, hidden_features, kernel_init=kernel_init, **shared),
                nnx.relu,
                nnx.Linear(hidden_features, outputs, kernel_init=zeros, **shared),
            )

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
          features: [..., N, H, W, in_features], the maps that "conv" predicts offsets from; None means ``x``. Must be
            None for "fc".
          offset: [..., R, part_size, part_size, 2·classes], dx before dy for each class, in units of ``trans_std``
            times the region's size. None predicts it; with an offset given the branch is not used.
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
        return _pool_layer.apply(
            self,
            x,
            rois,
            features,
            offset,
            mask,
            branch=self.conv_offset if self.offset_branch == "conv" else self.fc_offset,
            in_features=self.in_features,
            return_offsets=return_offsets,
        )
