"""Deformable position-sensitive RoI pooling as Flax NNX modules."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn import _validation
from jax_dcn._layers import pool
from jax_dcn._types import Pair

_default_kernel_init = nnx.initializers.lecun_normal()
_default_bias_init = nnx.initializers.zeros_init()


class DeformPSRoIPool(nnx.Module):
    """Position-sensitive RoI pooling that learns to shift its bins: a layer around :func:`jax_dcn.deform_psroi_pool`.

    The branch predicts an offset and, if ``modulated``, a mask for each part of a region. There are two kinds of
    branches, both from the papers, and ``offset_branch`` chooses one. "conv" is the branch of R-FCN: a 1x1 convolution,
    ``conv_offset``, computes position-sensitive maps of offsets, which are pooled like the score maps. "fc" is the
    branch of Faster R-CNN: ``x`` is pooled without offsets, and ``fc_offset``, which has two hidden layers and a linear
    layer, reads the whole pooled region. The last layer of a branch is initialized with zeros, so a new layer computes
    the same as :func:`jax_dcn.psroi_pool`, with masks of ``mask_scale / 2``. The attribute of the other
    branch is None. Set both to None in a layer to which offsets are always passed.

    Parameters: those of ``conv_offset`` or ``fc_offset``. :func:`jax_dcn.offset_labels` labels them for an
    optimizer.

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
      >>> features = jnp.ones([2, 16, 16, 64])  # the feature maps that the score maps are computed from
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
        offset_branch: pool.OffsetBranch = "conv",
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
        self.in_features: int = _validation.positive("in_features", in_features)
        self.output_size: Pair = _validation.pair("output_size", output_size)
        self.offset_branch: pool.OffsetBranch = offset_branch
        self.spatial_scale = spatial_scale
        self.group_size: Pair = _validation.pair("group_size", group_size)
        self.part_size: Pair | None = None if part_size is None else _validation.pair("part_size", part_size)
        self.sample_per_part: Pair = _validation.pair("sample_per_part", sample_per_part)
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
        pool.check(self)

        shared: dict[str, Any] = {"param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        outputs = pool.offset_features(self)
        zeros = nnx.initializers.zeros_init()
        self.conv_offset: nnx.Conv | None = nnx.data(None)
        self.fc_offset: nnx.Sequential | None = nnx.data(None)
        if offset_branch == "conv":
            self.conv_offset = nnx.Conv(in_features, outputs, (1, 1), kernel_init=zeros, **shared)
        else:
            pool.check_channels(self, "in_features", in_features)
            inputs = pool.region_features(self, in_features)
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
          x: [..., N, H, W, D·group_size²]. All arrays may have additional leading batch dimensions.
          rois: [..., R, 5]: image index, x1, y1, x2, y2 in pixels of the input image. An index outside [0, N),
            such as -1 for padding, gives zeros.
          features: [..., N, H, W, in_features], the maps that "conv" predicts offsets from; None means ``x``. Must be
            None for "fc".
          offset: [..., R, part_size, part_size, 2·classes], dx before dy for each class, in units of ``trans_std``
            times the region's size. None predicts it; if an offset is given, the branch is not used.
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
        return pool.apply(
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
