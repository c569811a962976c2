"""DCNv4 as Flax NNX modules."""

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


class DCNv4(nnx.Module):
    """The layer of FlashInternImage: a sum of weighted samples around each pixel, around :func:`jax_dcn.dcnv3`.

    Unlike in :class:`DCNv3`, one dense layer, ``offset_mask``, predicts offsets and masks, from the input itself, and
    the masks are not normalized. The result has the size and the channels of the input. The original takes images as
    [N, H·W, C] and ``shape=(H, W)``; this layer takes [..., H, W, features], that is ``x.reshape(n, h, w, c)``.

    ``offset_mask`` is initialized with zeros. **A new layer therefore returns** the bias of ``output_proj``, that is
    **zero**, and passes no gradient to its input in the first step, unless ``center_feature_scale`` is chosen. Use it
    in a residual block, as FlashInternImage does.

    Parameters: ``kernel`` and ``bias`` of ``offset_mask`` and, if chosen, of ``value_proj``, ``output_proj``,
    ``offset_mask_dw`` and ``center_feature_scale_proj``. The output channels of ``offset_mask`` are, for each group,
    the offsets (x, y) of all taps and then their masks, padded with unused channels to a multiple of 8, as in
    published weights. :func:`jax_dcn.offset_labels` labels the parameters of ``offset_mask``.

    Args:
      features: Number of channels of the input and of the result.
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
      rngs: Random number generators for the initializers.

    Raises:
      TypeError: For an argument of the wrong kind.
      ValueError: For an argument of a wrong value.

    References:
      Xiong et al., Efficient Deformable ConvNets, arXiv:2401.06197.

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
        use_projections: bool = True,
        output_bias: bool = True,
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
        self.use_projections = use_projections
        self.output_bias = output_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.return_offsets = return_offsets
        self.backend = backend
        dcn.check(self, "features", features)

        shared: dict[str, Any] = {"param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        dense = partial(nnx.Linear, features, **shared)
        predicted = partial(dense, kernel_init=nnx.initializers.zeros_init())
        projection = partial(dense, features, dtype=dtype, kernel_init=kernel_init, bias_init=bias_init)
        self.value_proj: nnx.Linear | None = projection() if use_projections else nnx.data(None)
        self.offset_mask_dw: nnx.Conv | None = nnx.data(None)
        if dw_kernel_size is not None:
            dw_size = dcn.dw_kernel_size(self)
            self.offset_mask_dw = nnx.Conv(
                features,
                features,
                dw_size,
                feature_group_count=features,
                **dcn.depthwise_initializers(dw_size),
                **shared,
            )
        self.offset_mask: nnx.Linear = predicted(dcn.offset_mask_features(self))
        self.center_feature_scale_proj: nnx.Linear | None = (
            predicted(groups) if center_feature_scale else nnx.data(None)
        )
        self.output_proj: nnx.Linear | None = projection(use_bias=output_bias) if use_projections else nnx.data(None)

    def __call__(self, x: jax.Array, *, return_offsets: bool | None = None) -> Any:
        """Aggregates ``x``.

        Args:
          x: [..., H, W, features], with any number of batch dimensions, including none.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``y`` [..., H, W, features], or ``(y, offset, mask)`` with the offset [..., H, W, G·K·2] and the mask
          [..., H, W, G·K] as :func:`jax_dcn.dcnv3` takes them.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value.
        """
        dcn.check_features(x, self.features)
        return dcn.apply_dcnv4(
            self,
            x,
            value_proj=self.value_proj,
            offset_mask_dw=self.offset_mask_dw,
            offset_mask=self.offset_mask,
            center_feature_scale_proj=self.center_feature_scale_proj,
            output_proj=self.output_proj,
            return_offsets=return_offsets,
        )
