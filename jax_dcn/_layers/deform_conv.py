"""What the Linen and the NNX `DeformConv` share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._operators.deform_conv import geometry
from jax_dcn._operators.deform_conv.functions import deform_conv1d, deform_conv2d, deform_conv3d
from jax_dcn._types import Backend, Padding, Sizes

_OPERATORS: dict[int, Callable[..., jax.Array]] = {1: deform_conv1d, 2: deform_conv2d, 3: deform_conv3d}
OffsetLimit = float | Callable[[tuple[int, ...]], float]


@dataclass(eq=False, repr=False)
class DeformConvBase(common.BranchLayer):
    """The options and the computation of `DeformConv`.

    It contains an ordinary convolution, ``conv_offset``, which predicts an offset in pixels and, if ``modulated``, a
    mask for each output pixel and kernel tap. That convolution is initialized with zeros, so a new layer samples the
    regular grid, with masks of ``mask_scale / 2``.

    A ``kernel_size`` of one number in a tuple is for signals [..., W, in], one of three for volumes [..., D, H, W, in].
    What is said below of two axes holds for one and three: an offset has one or three coordinates, in the order of the
    axes.

    Parameters: ``kernel`` [kh, kw, in // feature_group_count, out], ``bias`` [out], and ``kernel`` and ``bias`` of
    ``conv_offset``, whose output channels are 2·G·K offsets (dy, then dx, for each of the G offset groups and
    K = kh·kw taps) followed by G·K mask logits. :func:`jax_dcn.offset_labels` labels the two kinds of parameters for an
    optimizer.

    Args:
      kernel_size: Height and width of the kernel; an int means a square one. ``(k,)`` for signals, three ints for
        volumes.
      strides: One int for all axes, or one for each.
      padding: "SAME", "SAME_LOWER", "VALID", "CIRCULAR" (the image is a torus), an int, an int for each axis, or a pair
        for each, such as ``((top, bottom), (left, right))``.
      kernel_dilation: Spacing of the taps in pixels: one int for all axes, or one for each.
      feature_group_count: Into how many groups the convolution divides the channels.
      use_bias: Whether to add a bias.
      kernel_init: Initializer of ``kernel``.
      bias_init: Initializer of ``bias``.
      preferred_element_type: Dtype of the output; None means that of the computation.
      offset_groups: Into how many groups with their own offsets and masks the input channels are divided.
      modulated: Whether to predict masks (DCNv2) beside offsets.
      mask_scale: ``mask = mask_scale * sigmoid(logits)``. With 2 a new layer computes just what an ordinary convolution
        would.
      offset_bound: Keeps every coordinate of a predicted offset within this many pixels:
        ``offset = offset_bound * tanh(raw / offset_bound)``. None sets no bound.
      offset_limit: Clips every coordinate of a predicted offset to ±``offset_limit`` pixels, with the gradients of
        :func:`jax.numpy.clip`. A number, or a function of the spatial size of ``x``, such as (height, width), that
        returns it: ALIKED's is ``lambda size: max(size) / 4``. None clips nothing. ``offset_bound`` must then be None.
      kernel_transform: Function applied to the kernel before use, such as :func:`jax_dcn.quantize.power_of_two`.
      backend: None for the kernels of the platform, "fused" or "im2col" for those of this path, "reference" for
        ``jax.numpy``; see :func:`jax_dcn.deform_conv2d`.
    """

    kernel_size: Sizes
    strides: Sizes = 1
    padding: Padding = "SAME"
    _: KW_ONLY
    kernel_dilation: Sizes = 1
    feature_group_count: int = 1
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = common.LECUN_NORMAL
    bias_init: Initializer = common.ZEROS
    preferred_element_type: Dtype | None = None
    offset_groups: int = 1
    modulated: bool = True
    mask_scale: float = 1.0
    offset_bound: float | None = None
    offset_limit: OffsetLimit | None = None
    kernel_transform: Callable[[jax.Array], jax.Array] | None = None
    return_offsets: bool = False
    backend: Backend = None

    def _check(self, channels: int, name: str = "the channel count of x") -> None:
        common.check_channels(
            name, channels, feature_group_count=self.feature_group_count, offset_groups=self.offset_groups
        )
        bound = self.offset_bound
        if bound is not None and not (isinstance(bound, Real) and 0 < bound < math.inf):
            raise ValueError(f"offset_bound must be None or a positive finite number of pixels, got {bound!r}")
        if self.offset_limit is not None:
            if bound is not None:
                raise ValueError(f"offset_limit must be None with offset_bound={bound}, got {self.offset_limit!r}")
            if not callable(self.offset_limit):
                _validation.scale("offset_limit", self.offset_limit)
        _validation.number("mask_scale", self.mask_scale)
        if self.kernel_transform is not None:
            _validation.function("kernel_transform", self.kernel_transform)
        self._check_dtypes_and_functions()
        # Here, because errors of the offset convolution would not name the arguments of this layer.
        kernel_size, strides, dilation = self._window()
        _validation.padding(self.padding, (1,) * len(kernel_size), kernel_size, strides, dilation)

    def _window(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The size, the strides and the dilation of the kernel, for each axis of the image."""
        count = _validation.num_axes("kernel_size", self.kernel_size)
        kernel_size, strides, dilation = (
            _validation.sizes(name, getattr(self, name), count)
            for name in ("kernel_size", "strides", "kernel_dilation")
        )
        return kernel_size, strides, dilation

    def _kernel_shape(self, channels: int, features: int) -> tuple[int, ...]:
        kernel_size, _, _ = self._window()
        return (*kernel_size, channels // self.feature_group_count, features)

    def _sublayers(self, channels: int) -> common.Sublayers:
        kernel_size, strides, dilation = self._window()
        outputs = self._branch_features(self.offset_groups * math.prod(kernel_size), len(kernel_size))
        window = {"strides": strides, "padding": self.padding, "kernel_dilation": dilation}
        return {"conv_offset": self._conv(channels, outputs, kernel_size, **window)}

    def _promote(self, *arrays: jax.Array | None) -> Sequence[Any]:
        """Casts input, kernel and bias to the dtype of the computation. `linen` and `nnx` define it."""
        raise NotImplementedError

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
          x: [..., H, W, in], with any number of batch dimensions, including none; [..., W, in] for signals,
            [..., D, H, W, in] for volumes.
          offset: [..., Ho, Wo, 2·G·K], in pixels, channel ``(g·K + k)·2 + {0: dy, 1: dx}``. None predicts it. An
            offset that is given is used unchanged, without ``offset_bound`` and ``offset_limit``, and ``conv_offset``
            is not used; in Linen, a layer that is initialized so has none.
          mask: [..., Ho, Wo, G·K], used as it is. May only be given with an offset; an offset without a mask means no
            modulation.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., Ho, Wo, out], or ``(y, offset, mask)`` with the offset and mask that were used. The mask is None
          without modulation.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value, or a mask without an offset.
        """
        kernel_size, strides, dilation = self._window()
        dims = len(kernel_size)
        components = self._components(common.channels_of(x, dims))
        kernel, bias = components["kernel"], components["bias"]
        image_size = x.shape[-dims - 1 : -1]
        _validation.padding(self.padding, image_size, kernel_size, strides, dilation)
        if offset is None:
            branch = self._check_branch("conv_offset", components["conv_offset"], mask)
            offset, mask = self._offset_and_mask(branch(self._widen(x)), dims)
            if self.offset_bound is not None:
                offset = self.offset_bound * jnp.tanh(offset / self.offset_bound)
            if self.offset_limit is not None:
                limit = pixel_limit(self.offset_limit, image_size)
                offset = jnp.clip(offset, -limit, limit)
        else:
            channels = geometry.offset_channels(kernel_size, self.offset_groups)
            common.check_offset_channels(offset, channels, f"tap of offset_groups={self.offset_groups}", dims)
        if self.kernel_transform is not None:
            shape = kernel.shape
            kernel = self.kernel_transform(kernel)
            if kernel.shape != shape:
                raise ValueError(f"kernel_transform must keep the kernel's shape {shape}, got {kernel.shape}")
        x, kernel, bias = self._promote(x, kernel, bias)
        y = _OPERATORS[dims](
            x,
            offset,
            kernel,
            bias,
            mask,
            strides=strides,
            padding=self.padding,
            kernel_dilation=dilation,
            feature_group_count=self.feature_group_count,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            backend=self.backend,
        )
        return self._result(y, offset, mask, return_offsets)


def pixel_limit(offset_limit: OffsetLimit, image_size: tuple[int, ...]) -> float:
    """The `offset_limit` of a layer in pixels, for an image of this size."""
    if callable(offset_limit):
        return _validation.scale(f"offset_limit({image_size})", offset_limit(image_size))
    return _validation.scale("offset_limit", offset_limit)
