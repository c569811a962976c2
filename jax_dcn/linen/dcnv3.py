"""DCNv3 as Flax Linen modules."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import initializers
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn._layers import dcn
from jax_dcn._layers.conv import channels_of
from jax_dcn._types import Pair


class DCNv3(nn.Module):
    """The layer of InternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

    A depthwise convolution, a norm and an activation compute features from the input. Two dense layers, ``offset`` and
    ``mask``, predict from them where each group of channels samples the projected input, and with which weights; a
    softmax normalizes the weights over the taps. The result has the size and the channels of the input.

    ``offset`` and ``mask`` are initialized with zeros, so a new layer averages the window around each pixel.

    Parameters: ``kernel`` and ``bias`` of ``input_proj``, ``dw_conv``, ``offset``, ``mask``, ``output_proj`` and, if
    chosen, ``center_feature_scale_proj``; ``scale`` and ``bias`` of ``dw_norm``. A batch norm also has ``mean`` and
    ``var`` in the collection ``batch_stats``. :func:`jax_dcn.offset_labels` labels those of ``offset``.

    Attributes:
      groups: Into how many groups with their own offsets and masks the channels are divided.
      kernel_size: Height and width of the window; an int means a square one.
      kernel_dilation: Spacing of the taps in pixels: one int or a pair.
      offset_scale: Factor of the offsets and of the window itself, about its centre.
      remove_center: Whether the window lacks its tap in the centre.
      dw_kernel_size: Size of the depthwise convolution; None means ``kernel_size``.
      center_feature_scale: Whether to blend the result with the projected input, by blending weights that
        ``center_feature_scale_proj`` predicts for each pixel and group from the features.
      norm: "layer_norm" or "batch_norm".
      activation: Function after the norm. The default is the exact GELU.
      dtype: Dtype of the computation; None infers it from input and parameters. Offsets and masks are predicted in
        float32 (or wider) all the same.
      param_dtype: Dtype of the parameters.
      precision: Of the products, see :class:`jax.lax.Precision`.
      kernel_init: Initializer of the kernels of ``input_proj`` and ``output_proj``.
      bias_init: Initializer of their biases.
      use_running_average: Whether a batch norm uses its stored statistics, unless the call says so.
      return_offsets: Whether a call returns ``(y, offset, mask)``.
      backend: None for the kernels of the platform, "reference" for ``jax.numpy``.

    References:
      Wang et al., InternImage, arXiv:2211.05778.

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

    groups: int = 4
    kernel_size: Pair = 3
    kernel_dilation: Pair = 1
    offset_scale: float = 1.0
    remove_center: bool = False
    dw_kernel_size: Pair | None = None
    center_feature_scale: bool = False
    norm: dcn.Norm = "layer_norm"
    activation: dcn.Activation = partial(jax.nn.gelu, approximate=False)
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = initializers.xavier_uniform()
    bias_init: Initializer = initializers.zeros_init()
    use_running_average: bool | None = None
    return_offsets: bool = False
    backend: Literal["reference"] | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, *, use_running_average: bool | None = None, return_offsets: bool | None = None
    ) -> Any:
        """Aggregates ``x``.

        Args:
          x: [..., H, W, C], with any number of batch dimensions, including none.
          use_running_average: Whether a batch norm uses its stored statistics instead of those of ``x``. It must be
            given here or as an attribute of a layer with ``norm="batch_norm"``.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., H, W, C], or ``(y, offset, mask)`` with the offset [..., H, W, G·K·2] and the mask
          [..., H, W, G·K] as :func:`jax_dcn.dcnv3` takes them.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value.
        """
        channels = channels_of(x)
        dcn.check_dcnv3(self, "the channel count of x", channels)
        shared: dict[str, Any] = {"param_dtype": self.param_dtype, "precision": self.precision}
        predicted = partial(nn.Dense, kernel_init=initializers.zeros_init(), **shared)
        projection = partial(
            nn.Dense,
            features=channels,
            dtype=self.dtype,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            **shared,
        )
        kernel_size = dcn.dw_kernel_size(self)
        dw_conv = nn.Conv(
            channels,
            kernel_size,
            feature_group_count=channels,
            name="dw_conv",
            **dcn.depthwise_initializers(kernel_size),
            **shared,
        )

        norm_options: dict[str, Any] = {"param_dtype": self.param_dtype, "name": "dw_norm", **dcn.NORM_OPTIONS}

        def dw_norm(features: jax.Array) -> jax.Array:
            if self.norm == "layer_norm":
                return nn.LayerNorm(dcn.LAYER_NORM_EPSILON, **norm_options)(features)
            norm = nn.BatchNorm(
                self.use_running_average if use_running_average is None else use_running_average,
                momentum=dcn.BATCH_NORM_MOMENTUM,
                epsilon=dcn.BATCH_NORM_EPSILON,
                **norm_options,
            )
            return norm(features)

        count = self.groups * dcn.taps(self)
        scale_proj = (
            predicted(features=self.groups, name="center_feature_scale_proj") if self.center_feature_scale else None
        )
        return dcn.apply_dcnv3(
            self,
            x,
            input_proj=projection(name="input_proj"),
            dw_conv=dw_conv,
            dw_norm=dw_norm,
            offset=predicted(features=2 * count, name="offset"),
            mask=predicted(features=count, name="mask"),
            center_feature_scale_proj=scale_proj,
            output_proj=projection(name="output_proj"),
            return_offsets=return_offsets,
        )
