"""What the Linen and the NNX `DCNv3` and `DCNv4` share."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer, PrecisionLike
from jax.nn.initializers import variance_scaling

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._operators.aggregation.arguments import dcnv3_window
from jax_dcn._operators.aggregation.functions import dcnv3
from jax_dcn._primitive.promotion import by_standard_rules
from jax_dcn._types import Pair

Activation = Callable[[jax.Array], jax.Array]
_EXACT_GELU: Activation = partial(jax.nn.gelu, approximate=False)


@dataclass(eq=False, repr=False)
class DCNBase(common.OffsetLayer):
    """The options and helpers that `DCNv3` and `DCNv4` share.

    Args:
      groups: Into how many groups with their own offsets and masks the channels are divided.
      kernel_size: Height and width of the window; an int means a square one.
      kernel_dilation: Spacing of the taps in pixels: one int or a pair.
      offset_scale: Factor of the offsets and of the window itself, about its centre.
      remove_center: Whether the window lacks its tap in the centre.
      kernel_init: Initializer of the kernels of both projections.
      bias_init: Initializer of their biases.
    """

    groups: int = 4
    kernel_size: Pair = 3
    _: KW_ONLY
    kernel_dilation: Pair = 1
    offset_scale: float = 1.0
    remove_center: bool = False
    dw_kernel_size: Pair | None = None
    center_feature_scale: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = common.XAVIER_UNIFORM
    bias_init: Initializer = common.ZEROS
    return_offsets: bool = False
    backend: Literal["reference"] | None = None

    def _check(self, channels: int, name: str = "the channel count of x") -> None:
        common.check_channels(name, channels, groups=self.groups)
        self._samples()
        if self.dw_kernel_size is not None:
            _validation.pair("dw_kernel_size", self.dw_kernel_size)
        _validation.choice("backend", self.backend, _validation.BACKENDS)
        _validation.choice("center_feature_scale", self.center_feature_scale, (True, False))
        self._check_dtypes_and_functions()

    def _window(self) -> dict[str, Any]:
        """The window, padded such that the result has the size of x."""
        kernel_size = _validation.pair("kernel_size", self.kernel_size)
        dilation = _validation.pair("kernel_dilation", self.kernel_dilation)
        reach = [d * (k - 1) for k, d in zip(kernel_size, dilation, strict=True)]
        return {
            "kernel_size": kernel_size,
            "kernel_dilation": dilation,
            "padding": tuple((n // 2, n - n // 2) for n in reach),
            "offset_scale": self.offset_scale,
            "remove_center": self.remove_center,
        }

    def _samples(self) -> int:
        """The number of samples of an output pixel: the taps of all groups."""
        return self.groups * dcnv3_window((1, 1), strides=1, **self._window()).taps

    def _projection(self, channels: int, **options: Any) -> common.Sublayer:
        initializers = {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
        return self._dense(channels, channels, dtype=self.dtype, **initializers, **options)

    def _depthwise(self, channels: int, kernel_size: Pair) -> common.Sublayer:
        """A depthwise convolution with PyTorch's initial values: uniform, within one over the root of its taps."""
        size = _validation.pair("dw_kernel_size", kernel_size)
        bound = 1 / math.sqrt(math.prod(size))

        def bias_init(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        kernel_init = variance_scaling(1 / 3, "fan_in", "uniform")
        options = {"feature_group_count": channels, "kernel_init": kernel_init, "bias_init": bias_init}
        return self._conv(channels, channels, size, **options)

    def _scale_projection(self, channels: int) -> common.Sublayer | None:
        return self._dense(channels, self.groups) if self.center_feature_scale else None

    def _aggregate(self, value: jax.Array, offset: jax.Array, mask: jax.Array) -> jax.Array:
        return dcnv3(value, offset, mask, groups=self.groups, backend=self.backend, **self._window())


@dataclass(eq=False, repr=False)
class DCNv3Base(DCNBase):
    """The options and the computation of `DCNv3`.

    A depthwise convolution, a norm and an activation compute features from the input. Two dense layers, ``offset`` and
    ``mask``, predict from them where each group of channels samples the projected input, and with which weights; a
    softmax normalizes the weights over the taps. The result has the size and the channels of the input.

    ``offset`` and ``mask`` are initialized with zeros, so a new layer averages the window around each pixel.

    Parameters: ``kernel`` and ``bias`` of ``input_proj``, ``dw_conv``, ``offset``, ``mask``, ``output_proj`` and, if
    chosen, ``center_feature_scale_proj``; ``scale`` and ``bias`` of ``dw_norm``. A batch norm also has ``mean`` and
    ``var``, in Linen in the collection ``batch_stats``. :func:`jax_dcn.offset_labels` labels those of ``offset``.

    Args:
      dw_kernel_size: Size of the depthwise convolution; None means ``kernel_size``.
      center_feature_scale: Whether to blend the result with the projected input, by blending weights that
        ``center_feature_scale_proj`` predicts for each pixel and group from the features.
      norm: "layer_norm" or "batch_norm".
      activation: Function after the norm. The default is the exact GELU.

    References:
      Wang et al., InternImage, arXiv:2211.05778.
    """

    _: KW_ONLY
    norm: Literal["layer_norm", "batch_norm"] = "layer_norm"
    activation: Activation = _EXACT_GELU

    def _check(self, channels: int, name: str = "the channel count of x") -> None:
        super()._check(channels, name)
        _validation.choice("norm", self.norm, ("layer_norm", "batch_norm"))
        _validation.function("activation", self.activation)

    def _sublayers(self, channels: int) -> common.Sublayers:
        samples = self._samples()
        # The numbers are InternImage's. Flax's default variance, E[x²] - E[x]², cancels where the mean is large.
        norm: dict[str, Any] = {"param_dtype": self.param_dtype, "use_fast_variance": False}
        norm |= {"epsilon": 1e-6} if self.norm == "layer_norm" else {"epsilon": 1e-5, "momentum": 0.9}
        return {
            "input_proj": self._projection(channels),
            "dw_conv": self._depthwise(channels, self.dw_kernel_size or self.kernel_size),
            "dw_norm": common.Sublayer(self.norm, channels, channels, norm),
            "offset": self._dense(channels, 2 * samples),
            "mask": self._dense(channels, samples),
            "center_feature_scale_proj": self._scale_projection(channels),
            "output_proj": self._projection(channels),
        }

    def __call__(
        self, x: jax.Array, *, use_running_average: bool | None = None, return_offsets: bool | None = None
    ) -> Any:
        """Aggregates ``x``.

        Args:
          x: [..., H, W, C], with any number of batch dimensions, including none.
          use_running_average: Whether a batch norm uses its stored statistics instead of those of ``x``. None means, in
            Linen, the attribute of that name, which then must be given; in NNX what ``layer.train()`` and
            ``layer.eval()`` set.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., H, W, C], or ``(y, offset, mask)`` with the offset [..., H, W, G·K·2] and the mask
          [..., H, W, G·K] as :func:`jax_dcn.dcnv3` takes them.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value.
        """
        layers = self._components(common.channels_of(x))
        options = {"use_running_average": use_running_average} if self.norm == "batch_norm" else {}
        value = layers["input_proj"](x)
        features = self.activation(layers["dw_norm"](layers["dw_conv"](self._widen(x)), **options))
        offset, logits = layers["offset"](features), layers["mask"](features)
        by_group = logits.reshape(*logits.shape[:-1], self.groups, self._samples() // self.groups)
        mask = jax.nn.softmax(by_group, -1).reshape(logits.shape)
        y = self._aggregate(value, offset, mask)
        if layers["center_feature_scale_proj"] is not None:
            y = _blend(y, value, layers["center_feature_scale_proj"](features))
        return self._result(layers["output_proj"](y), offset, mask, return_offsets)


@dataclass(eq=False, repr=False)
class DCNv4Base(DCNBase):
    """The options and the computation of `DCNv4`.

    Unlike in :class:`DCNv3`, one dense layer, ``offset_mask``, predicts offsets and masks, from the input itself, and
    the masks are not normalized. The result has the size and the channels of the input. The original takes images as
    [N, H·W, C] and ``shape=(H, W)``; this layer takes [..., H, W, C], that is ``x.reshape(n, h, w, c)``.

    ``offset_mask`` is initialized with zeros. **A new layer therefore returns** the bias of ``output_proj``, that is
    **zero**, and passes no gradient to its input in the first step, unless ``center_feature_scale`` is chosen. Use it
    in a residual block, as FlashInternImage does.

    Parameters: ``kernel`` and ``bias`` of ``offset_mask`` and, if chosen, of ``value_proj``, ``output_proj``,
    ``offset_mask_dw`` and ``center_feature_scale_proj``. The output channels of ``offset_mask`` are, for each group,
    the offsets (x, y) of all taps and then their masks, padded with unused channels to a multiple of 8, as in
    published weights. :func:`jax_dcn.offset_labels` labels the parameters of ``offset_mask``.

    Args:
      dw_kernel_size: Size of a depthwise convolution, ``offset_mask_dw``, whose output offsets and masks are predicted
        from. None means that there is none.
      center_feature_scale: Whether to blend the result with the projected input, by blending weights that
        ``center_feature_scale_proj`` predicts for each pixel and group from the result.
      use_projections: Whether to have ``value_proj`` and ``output_proj``; the original's ``without_pointwise`` is the
        opposite.
      output_bias: Whether ``output_proj`` has a bias.

    References:
      Xiong et al., Efficient Deformable ConvNets, arXiv:2401.06197.
    """

    _: KW_ONLY
    use_projections: bool = True
    output_bias: bool = True

    def _sublayers(self, channels: int) -> common.Sublayers:
        outputs = -(-3 * self._samples() // 8) * 8
        size = self.dw_kernel_size
        return {
            "value_proj": self._projection(channels) if self.use_projections else None,
            "offset_mask_dw": None if size is None else self._depthwise(channels, size),
            "offset_mask": self._dense(channels, outputs),
            "center_feature_scale_proj": self._scale_projection(channels),
            "output_proj": self._projection(channels, use_bias=self.output_bias) if self.use_projections else None,
        }

    def __call__(self, x: jax.Array, *, return_offsets: bool | None = None) -> Any:
        """Aggregates ``x``.

        Args:
          x: [..., H, W, C], with any number of batch dimensions, including none.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., H, W, C], or ``(y, offset, mask)`` with the offset [..., H, W, G·K·2] and the mask
          [..., H, W, G·K] as :func:`jax_dcn.dcnv3` takes them.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value.
        """
        layers = self._components(common.channels_of(x))
        features = self._widen(x)
        if layers["offset_mask_dw"] is not None:
            features = layers["offset_mask_dw"](features)
        offset, mask = self._split(layers["offset_mask"](features))
        if layers["value_proj"] is not None:
            x = layers["value_proj"](x)
        elif self.dtype is not None:
            x = x.astype(self.dtype)
        y = self._aggregate(x, offset, mask)
        if layers["center_feature_scale_proj"] is not None:
            y = _blend(y, x, layers["center_feature_scale_proj"](self._widen(y)))
        if layers["output_proj"] is not None:
            y = layers["output_proj"](y)
        return self._result(y, offset, mask, return_offsets)

    def _split(self, packed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The offset and the mask: for each group first all coordinates, then all masks; padding at the end."""
        samples = self._samples()
        taps = samples // self.groups
        *leading, _ = packed.shape
        by_group = packed[..., : 3 * samples].reshape(*leading, self.groups, 3 * taps)
        offset, mask = jnp.split(by_group, [2 * taps], axis=-1)
        return offset.reshape(*leading, 2 * samples), mask.reshape(*leading, samples)


@by_standard_rules
def _blend(y: jax.Array, value: jax.Array, logits: jax.Array) -> jax.Array:
    """The centre feature scale: blends the result with the value, with one weight for each group [..., G]."""
    weight = jax.nn.sigmoid(logits)[..., None]
    by_group = (*logits.shape, y.shape[-1] // logits.shape[-1])
    blended = y.reshape(by_group) * (1 - weight) + value.reshape(by_group) * weight
    return blended.reshape(y.shape).astype(y.dtype)
