"""DCNv3 as Flax NNX modules."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn._layers import dcn
from jax_dcn._types import Pair

_default_kernel_init = nnx.initializers.xavier_uniform()
_default_bias_init = nnx.initializers.zeros_init()
_exact_gelu = partial(jax.nn.gelu, approximate=False)


class DCNv3(nnx.Module):
    """The layer of InternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

    A depthwise convolution, a norm and an activation compute features from the input. Two dense layers, ``offset`` and
    ``mask``, predict from them where each group of channels samples the projected input, and with which weights; a
    softmax normalizes the weights over the taps. The result has the size and the channels of the input.

    ``offset`` and ``mask`` are initialized with zeros, so a new layer averages the window around each pixel.

    Parameters: ``kernel`` and ``bias`` of ``input_proj``, ``dw_conv``, ``offset``, ``mask``, ``output_proj`` and, if
    chosen, ``center_feature_scale_proj``; ``scale`` and ``bias`` of ``dw_norm``. A batch norm also has ``mean`` and
    ``var``. :func:`jax_dcn.offset_labels` labels those of ``offset``.

    Args:
      features: Number of channels of the input and of the result.
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
      return_offsets: Whether a call returns ``(y, offset, mask)``.
      backend: None for the kernels of the platform, "reference" for ``jax.numpy``.
      rngs: Random number generators for the initializers.

    Raises:
      TypeError: For an argument of the wrong kind.
      ValueError: For an argument of a wrong value.

    References:
      Wang et al., InternImage, arXiv:2211.05778.

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

    def __init__(
        self,
        features: int,
        groups: int = 4,
        kernel_size: Pair = 3,
        *,
        kernel_dilation: Pair = 1,
        offset_scale: float = 1.0,
        remove_center: bool = False,
        dw_kernel_size: Pair | None = None,
        center_feature_scale: bool = False,
        norm: dcn.Norm = "layer_norm",
        activation: dcn.Activation = _exact_gelu,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = _default_kernel_init,
        bias_init: Initializer = _default_bias_init,
        return_offsets: bool = False,
        backend: Literal["reference"] | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.features = features
        self.groups = groups
        self.kernel_size = kernel_size
        self.kernel_dilation = kernel_dilation
        self.offset_scale = offset_scale
        self.remove_center = remove_center
        self.dw_kernel_size = dw_kernel_size
        self.center_feature_scale = center_feature_scale
        self.norm: dcn.Norm = norm
        self.activation = activation
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.return_offsets = return_offsets
        self.backend = backend
        dcn.check_dcnv3(self, "features", features)

        shared: dict[str, Any] = {"param_dtype": param_dtype, "rngs": rngs}
        dense = partial(nnx.Linear, features, precision=precision, **shared)
        predicted = partial(dense, kernel_init=nnx.initializers.zeros_init())
        projection = partial(dense, features, dtype=dtype, kernel_init=kernel_init, bias_init=bias_init)
        count = groups * dcn.taps(self)
        self.input_proj: nnx.Linear = projection()
        dw_size = dcn.dw_kernel_size(self)
        self.dw_conv = nnx.Conv(
            features,
            features,
            dw_size,
            feature_group_count=features,
            precision=precision,
            **dcn.depthwise_initializers(dw_size),
            **shared,
        )
        norm_options = {**shared, **dcn.NORM_OPTIONS}
        self.dw_norm: nnx.LayerNorm | nnx.BatchNorm
        if norm == "layer_norm":
            self.dw_norm = nnx.LayerNorm(features, epsilon=dcn.LAYER_NORM_EPSILON, **norm_options)
        else:
            self.dw_norm = nnx.BatchNorm(
                features, momentum=dcn.BATCH_NORM_MOMENTUM, epsilon=dcn.BATCH_NORM_EPSILON, **norm_options
            )
        self.offset: nnx.Linear = predicted(2 * count)
        self.mask: nnx.Linear = predicted(count)
        self.center_feature_scale_proj: nnx.Linear | None = (
            predicted(groups) if center_feature_scale else nnx.data(None)
        )
        self.output_proj: nnx.Linear = projection()

    def __call__(
        self, x: jax.Array, *, use_running_average: bool | None = None, return_offsets: bool | None = None
    ) -> Any:
        """Aggregates ``x``.

        Args:
          x: [..., H, W, features], with any number of batch dimensions, including none.
          use_running_average: Whether a batch norm uses its stored statistics instead of those of ``x``. None means
            what ``layer.train()`` and ``layer.eval()`` set.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., H, W, features], or ``(y, offset, mask)`` with the offset [..., H, W, G·K·2] and the mask
          [..., H, W, G·K] as :func:`jax_dcn.dcnv3` takes them.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value.
        """
        dcn.check_features(x, self.features)
        dw_norm: Any = self.dw_norm
        if self.norm == "batch_norm":
            dw_norm = partial(dw_norm, use_running_average=use_running_average)
        return dcn.apply_dcnv3(
            self,
            x,
            input_proj=self.input_proj,
            dw_conv=self.dw_conv,
            dw_norm=dw_norm,
            offset=self.offset,
            mask=self.mask,
            center_feature_scale_proj=self.center_feature_scale_proj,
            output_proj=self.output_proj,
            return_offsets=return_offsets,
        )
