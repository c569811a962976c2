"""Deformable position-sensitive RoI pooling as Flax Linen modules."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import initializers
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn._layers import pool
from jax_dcn._types import Pair


class DeformPSRoIPool(nn.Module):
    """Position-sensitive RoI pooling that learns to shift its bins: a layer around :func:`jax_dcn.deform_psroi_pool`.

    The branch predicts an offset and, if ``modulated``, a mask for each part of a region. There are two kinds of
    branches, both from the papers, and ``offset_branch`` chooses one. "conv" is the branch of R-FCN: a 1x1 convolution,
    ``conv_offset``, computes position-sensitive maps of offsets, which are pooled like the score maps. "fc" is the
    branch of Faster R-CNN: ``x`` is pooled without offsets, and ``fc_offset``, which has two hidden layers and a linear
    layer, reads the whole pooled region. The last layer of a branch is initialized with zeros, so a new layer computes
    the same as :func:`jax_dcn.psroi_pool`, with masks of ``mask_scale / 2``.

    Parameters: ``conv_offset/kernel`` and ``conv_offset/bias``, or ``kernel`` and ``bias`` of ``fc_offset/layers_0``,
    ``layers_2`` and ``layers_4``. :func:`jax_dcn.offset_labels` labels them for an optimizer.

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
      >>> features = jnp.ones([2, 16, 16, 64])  # the feature maps that the score maps are computed from
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
    offset_branch: pool.OffsetBranch = "conv"
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
          x: [..., N, H, W, D·group_size²]. All arrays may have additional leading batch dimensions.
          rois: [..., R, 5]: image index, x1, y1, x2, y2 in pixels of the input image. An index outside [0, N),
            such as -1 for padding, gives zeros.
          features: [..., N, H, W, in], the maps that "conv" predicts offsets from; None means ``x``. Must be None
            for "fc".
          offset: [..., R, part_size, part_size, 2·classes], dx before dy for each class, in units of ``trans_std``
            times the region's size. None predicts it; if an offset is given, the layer has no branch.
          mask: [..., R, part_size, part_size, classes], used as it is. May only be given with an offset; an offset
            without a mask means no modulation.
          return_offsets: Overrides the attribute of that name.

        Returns:
          ``pooled`` [..., R, output_size, output_size, D], or ``(pooled, offset, mask)`` with the offset and mask
          that were used. The mask is None without modulation.

        Raises:
          TypeError: For an argument of the wrong kind or dtype.
          ValueError: For a wrong shape or value, a mask without an offset, or features for "fc".
        """
        pool.check(self)
        shared: dict[str, Any] = {"param_dtype": self.param_dtype, "precision": self.precision}
        outputs = pool.offset_features(self)

        def conv_offset(inputs: jax.Array) -> jax.Array:
            kernel_init = initializers.zeros_init()
            return nn.Conv(outputs, (1, 1), kernel_init=kernel_init, name="conv_offset", **shared)(inputs)

        def fc_offset(inputs: jax.Array) -> jax.Array:
            def dense(features: int, kernel_init: Initializer) -> nn.Dense:
                # parent=None lets nn.Sequential adopt the layer, so that its parameters are under fc_offset.
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

        return pool.apply(
            self,
            x,
            rois,
            features,
            offset,
            mask,
            branch=conv_offset if self.offset_branch == "conv" else fc_offset,
            return_offsets=return_offsets,
        )
