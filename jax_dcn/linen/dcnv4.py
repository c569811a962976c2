"""DCNv4 as Flax Linen modules."""

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


class DCNv4(nn.Module):
    """The layer of FlashInternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

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

    Attributes:
      groups: Into how many groups with their own offsets and masks the channels are divided.
      kernel_size: Height and width of the window; an int means a square one.
      kernel_dilation: Spacing of the taps in pixels: one int or a pair.
      offset_scale: Factor of the offsets and of the window itself, about its centre.
      remove_center: Whether the window lacks its tap in the centre.
      dw_kernel_size: Size of a depthwise convolution, ``offset_mask_dw``, whose output offsets and masks are predicted
        from. None means that there is none.
      center_feature_scale: Whether to blend the result with the projected input, by blending weights that
        ``center_feature_scale_proj`` predicts for each pixel and group from the result.
      use_projections: Whether to have ``value_proj`` and ``output_proj``; the original's ``without_pointwise`` is the
        opposite.
      output_bias: Whether ``output_proj`` has a bias.
      dtype: Dtype of the computation; None infers it from input and parameters. Offsets and masks are predicted in
        float32 (or wider) all the same.
      param_dtype: Dtype of the parameters.
      precision: Of the products, see :class:`jax.lax.Precision`.
      kernel_init: Initializer of the kernels of ``value_proj`` and ``output_proj``.
      bias_init: Initializer of their biases.
      return_offsets: Whether a call returns ``(y, offset, mask)``.
      backend: None for the kernels of the platform, "reference" for ``jax.numpy``.

    References:
      Xiong et al., Efficient Deformable ConvNets, arXiv:2401.06197.

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

    groups: int = 4
    kernel_size: Pair = 3
    kernel_dilation: Pair = 1
    offset_scale: float = 1.0
    remove_center: bool = False
    dw_kernel_size: Pair | None = None
    center_feature_scale: bool = False
    use_projections: bool = True
    output_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = initializers.xavier_uniform()
    bias_init: Initializer = initializers.zeros_init()
    return_offsets: bool = False
    backend: Literal["reference"] | None = None

    @nn.compact
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
        channels = channels_of(x)
        dcn.check(self, "the channel count of x", channels)
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
        depthwise = None
        if self.dw_kernel_size is not None:
            kernel_size = dcn.dw_kernel_size(self)
            depthwise = nn.Conv(
                channels,
                kernel_size,
                feature_group_count=channels,
                name="offset_mask_dw",
                **dcn.depthwise_initializers(kernel_size),
                **shared,
            )
        scale_proj = (
            predicted(features=self.groups, name="center_feature_scale_proj") if self.center_feature_scale else None
        )
        return dcn.apply_dcnv4(
            self,
            x,
            value_proj=projection(name="value_proj") if self.use_projections else None,
            offset_mask_dw=depthwise,
            offset_mask=predicted(features=dcn.offset_mask_features(self), name="offset_mask"),
            center_feature_scale_proj=scale_proj,
            output_proj=projection(use_bias=self.output_bias, name="output_proj") if self.use_projections else None,
            return_offsets=return_offsets,
        )
