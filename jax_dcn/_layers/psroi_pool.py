"""What the Linen and the NNX `DeformPSRoIPool` share."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._operators.roi_pool.arguments import canonicalize, psroi_spec
from jax_dcn._operators.roi_pool.functions import deform_psroi_pool, psroi_pool
from jax_dcn._types import Pair


@dataclass(eq=False, repr=False)
class DeformPSRoIPoolBase(common.BranchLayer):
    """The options and the computation of `DeformPSRoIPool`.

    The branch predicts an offset and, if ``modulated``, a mask for each part of a region. There are two kinds of
    branches, both from the papers, and ``offset_branch`` chooses one. "conv" is the branch of R-FCN: a 1x1 convolution,
    ``conv_offset``, computes position-sensitive maps of offsets, which are pooled like the score maps. "fc" is the
    branch of Faster R-CNN: ``x`` is pooled without offsets, and ``fc_offset``, which has two hidden layers and a linear
    layer, reads the whole pooled region. The last layer of a branch is initialized with zeros, so a new layer computes
    the same as :func:`jax_dcn.psroi_pool`, with masks of ``mask_scale / 2``.

    Parameters: ``kernel`` and ``bias`` of ``conv_offset``, or of ``layers_0``, ``layers_2`` and ``layers_4`` of
    ``fc_offset`` (in NNX, of ``layers`` 0, 2 and 4). :func:`jax_dcn.offset_labels` labels them for an optimizer.

    Args:
      output_size: Into how many bins a region is cut; an int, or one each for rows and columns.
      offset_branch: "conv" or "fc".
      spatial_scale: Scale of ``x`` relative to the input image: 1/16 for features of stride 16.
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
      kernel_init: Initializer of the kernels of the hidden layers.
      return_offsets: Whether a call returns ``(pooled, offset, mask)``.

    References:
      Dai et al., Deformable Convolutional Networks, arXiv:1703.06211, section 2.2; Zhu et al., Deformable ConvNets v2,
      arXiv:1811.11168, section 3.2, for masks and the hidden layers of "fc".
    """

    output_size: Pair
    _: KW_ONLY
    offset_branch: Literal["conv", "fc"] = "conv"
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
    kernel_init: Initializer = common.LECUN_NORMAL
    return_offsets: bool = False
    backend: Literal["reference"] | None = None

    def _check(self, channels: int, name: str = "the channel count of x") -> None:
        self._check_options()
        if self.offset_branch == "fc":
            self._check_channels(name, channels)

    def _sublayers(self, channels: int) -> common.Sublayers:
        outputs = self._branch_features(int(self.classes) * math.prod(self._parts()))
        if self.offset_branch == "conv":
            return {"conv_offset": self._conv(channels, outputs, (1, 1)), "fc_offset": None}
        hidden = self.hidden_features
        layers = (
            self._dense(self._region_features(channels), hidden, kernel_init=self.kernel_init),
            self._dense(hidden, hidden, kernel_init=self.kernel_init),
            self._dense(hidden, outputs),
        )
        return {"conv_offset": None, "fc_offset": layers}

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
            times the region's size. None predicts it; if an offset is given, the branch is not used,
            and in Linen a layer that is initialized so has none.
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
        self._check_options()
        binning: dict[str, Any] = {"output_size": self.output_size, "group_size": self.group_size, **self._sampling()}
        options: dict[str, Any] = {**binning, "part_size": self.part_size, "trans_std": self.trans_std}
        # Checked before the branch, whose errors would not name the arguments of this layer.
        spec = psroi_spec(**{name: value for name, value in options.items() if name != "backend"})
        canonicalize(x, rois, offset, spec, backend=self.backend)
        x = jnp.asarray(x)
        self._check_channels("the channel count of x", x.shape[-1])
        if features is not None:
            features = _validation.array("features", features)
            if self.offset_branch == "fc":
                raise ValueError(
                    f"features must be None with offset_branch='fc', which reads x, got shape {features.shape}"
                )
            if features.shape[:-1] != x.shape[:-1]:
                raise ValueError(
                    f"features must be as many and as large as x, of shape {x.shape}, got {features.shape}"
                )

        if offset is None:
            name, inputs = ("x", x) if features is None else ("features", features)
            offset, mask = self._offset_and_mask(self._predict(name, inputs, rois, mask, binning))
        else:
            common.check_offset_channels(offset, 2 * self.classes, f"of classes={self.classes}")
            if mask is not None:
                mask = _validation.array("mask", mask)
                expected = (*offset.shape[:-1], self.classes)
                if mask.shape != expected:
                    raise ValueError(
                        f"mask must have the shape {expected}, one for each part and class, got {mask.shape}"
                    )

        x = x if self.dtype is None else x.astype(self.dtype)
        pooled = deform_psroi_pool(x, rois, offset, **options)
        if mask is not None:
            pooled = (pooled * _of_bins(mask, pooled)).astype(pooled.dtype)
        return self._result(pooled, offset, mask, return_offsets)

    def _predict(
        self, name: str, inputs: jax.Array, rois: jax.Array, mask: jax.Array | None, binning: dict[str, Any]
    ) -> jax.Array:
        """Offsets and mask logits of the parts of all regions: [..., R, part, part, 2·classes or 3·classes]."""
        branch_name = f"{self.offset_branch}_offset"
        branch = self._check_branch(branch_name, self._components(inputs.shape[-1], name)[branch_name], mask)
        inputs, parts = self._widen(inputs), self._parts()
        if self.offset_branch == "conv":
            return psroi_pool(branch(inputs), rois, output_size=parts, group_size=parts, **self._sampling())
        pooled = psroi_pool(inputs, rois, **binning)
        # A region that is not finite is pooled to NaN, which must not reach the gradients of the branch.
        pooled = jnp.where(jnp.isfinite(rois).all(-1)[..., None, None, None], pooled, 0)
        regions = pooled.shape[:-3]
        raw = branch(pooled.reshape(*regions, self._region_features(inputs.shape[-1])))
        return raw.reshape(*regions, *parts, self._branch_features(int(self.classes)))

    def _check_options(self) -> None:
        """Checks the options that the pooling operator does not have."""
        _validation.choice("offset_branch", self.offset_branch, ("conv", "fc"))
        _validation.positive("classes", self.classes)
        _validation.positive("hidden_features", self.hidden_features)
        _validation.number("mask_scale", self.mask_scale)
        self._check_dtypes_and_functions()

    def _check_channels(self, name: str, channels: int) -> None:
        group_size = _validation.pair("group_size", self.group_size)
        divisor = int(self.classes) * math.prod(group_size)
        if channels % divisor:
            raise ValueError(
                f"{name} must be a multiple of {divisor}, for classes={self.classes} and group_size={group_size}, "
                f"got {channels}"
            )

    def _sampling(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("spatial_scale", "sample_per_part", "backend")}

    def _parts(self) -> tuple[int, int]:
        if self.part_size is None:
            return _validation.pair("output_size", self.output_size)
        return _validation.pair("part_size", self.part_size)

    def _region_features(self, channels: int) -> int:
        """The number of values that are pooled per region from this many channels."""
        features = channels // math.prod(_validation.pair("group_size", self.group_size))
        return features * math.prod(_validation.pair("output_size", self.output_size))


def _of_bins(mask: jax.Array, pooled: jax.Array) -> jax.Array:
    """The mask for each bin and feature: that of its part and class."""
    rows, columns = (
        np.arange(bins) * parts // bins for bins, parts in zip(pooled.shape[-3:-1], mask.shape[-3:-1], strict=True)
    )
    return jnp.repeat(mask[..., rows[:, None], columns, :], pooled.shape[-1] // mask.shape[-1], axis=-1)
