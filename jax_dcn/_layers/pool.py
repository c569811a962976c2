"""The code that the Linen and the NNX `DeformPSRoIPool` share: checks of their arguments, and the computation."""

import math
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._operators.roi_pool import deform_psroi_pool, psroi_pool
from jax_dcn._operators.roi_pool.arguments import of_deform_psroi_pool
from jax_dcn._types import Pair

OffsetBranch = Literal["conv", "fc"]


class Settings(common.Settings, Protocol):
    """The attributes of both layers that control the computation."""

    output_size: Pair
    offset_branch: OffsetBranch
    spatial_scale: float
    group_size: Pair
    part_size: Pair | None
    sample_per_part: Pair
    trans_std: float
    classes: int
    hidden_features: int
    backend: Literal["reference"] | None


def check(layer: Settings) -> None:
    """Checks the attributes that the pooling operator does not have."""
    _validation.choice("offset_branch", layer.offset_branch, ("conv", "fc"))
    _validation.positive("classes", layer.classes)
    _validation.positive("hidden_features", layer.hidden_features)
    _validation.number("mask_scale", layer.mask_scale)
    if layer.dtype is not None:
        _validation.dtype("dtype", layer.dtype)


def check_channels(layer: Settings, name: str, channels: int) -> None:
    group_size = _validation.pair("group_size", layer.group_size)
    divisor = int(layer.classes) * math.prod(group_size)
    if channels % divisor:
        raise ValueError(
            f"{name} must be a multiple of {divisor}, for classes={layer.classes} and group_size={group_size}, "
            f"got {channels}"
        )


def region_features(layer: Settings, channels: int) -> int:
    """The number of values that are pooled per region from this many channels."""
    features = channels // math.prod(_validation.pair("group_size", layer.group_size))
    return features * math.prod(_validation.pair("output_size", layer.output_size))


def part_size(layer: Settings) -> tuple[int, int]:
    if layer.part_size is None:
        return _validation.pair("output_size", layer.output_size)
    return _validation.pair("part_size", layer.part_size)


def offset_features(layer: Settings) -> int:
    """The output channels of the branch: dx, dy and, if modulated, a mask logit for each part and class."""
    return common.numbers_per_sample(layer.modulated) * int(layer.classes) * math.prod(part_size(layer))


def apply(
    layer: Settings,
    x: jax.Array,
    rois: jax.Array,
    features: jax.Array | None,
    offset: jax.Array | None,
    mask: jax.Array | None,
    *,
    branch: common.Branch | None,
    in_features: int | None = None,
    return_offsets: bool | None,
) -> Any:
    """The pooled regions, with the offset and the mask if they are requested.

    in_features: the number of input channels of the branch, or None if it accepts any number.
    """
    options: dict[str, Any] = {**_binning(layer), "part_size": layer.part_size, "trans_std": layer.trans_std}
    # Checked before the branch, whose errors would not name the arguments of this layer.
    of_deform_psroi_pool(x, rois, offset, data_format="NHWC", deterministic=None, **options)
    x = jnp.asarray(x)
    check_channels(layer, "the channel count of x", x.shape[-1])
    if features is not None:
        features = _validation.array("features", features)
        if layer.offset_branch == "fc":
            raise ValueError(
                f"features must be None with offset_branch='fc', which reads x, got shape {features.shape}"
            )
        if features.shape[:-1] != x.shape[:-1]:
            raise ValueError(f"features must be as many and as large as x, of shape {x.shape}, got {features.shape}")

    if offset is None:
        branch = common.check_branch(f"{layer.offset_branch}_offset", branch, mask)
        name, inputs = ("x", x) if features is None else ("features", features)
        if in_features not in (None, inputs.shape[-1]):
            raise ValueError(f"{name} must have in_features={in_features} channels, got {inputs.shape[-1]}")
        raw = _predict(layer, branch, common.widen(layer, inputs), rois)
        offset, mask = common.offset_and_mask(layer, raw)
    else:
        common.check_offset(offset, 2 * layer.classes, f"of classes={layer.classes}")
        if mask is not None:
            mask = _validation.array("mask", mask)
            expected = (*offset.shape[:-1], layer.classes)
            if mask.shape != expected:
                raise ValueError(f"mask must have the shape {expected}, one for each part and class, got {mask.shape}")

    x = x if layer.dtype is None else x.astype(layer.dtype)
    pooled = deform_psroi_pool(x, rois, offset, **options)
    if mask is not None:
        pooled = (pooled * _of_bins(mask, pooled)).astype(pooled.dtype)
    return common.result(layer, pooled, offset, mask, return_offsets)


def _sampling(layer: Settings) -> dict[str, Any]:
    return {
        "spatial_scale": layer.spatial_scale,
        "sample_per_part": layer.sample_per_part,
        "backend": layer.backend,
    }


def _binning(layer: Settings) -> dict[str, Any]:
    return {"output_size": layer.output_size, "group_size": layer.group_size, **_sampling(layer)}


def _predict(layer: Settings, branch: common.Branch, inputs: jax.Array, rois: jax.Array) -> jax.Array:
    """Offsets and mask logits of the parts of all regions: [..., R, part, part, 2·classes or 3·classes]."""
    parts = part_size(layer)
    if layer.offset_branch == "conv":
        return psroi_pool(branch(inputs), rois, output_size=parts, group_size=parts, **_sampling(layer))
    pooled = psroi_pool(inputs, rois, **_binning(layer))
    # A region that is not finite is pooled to NaN, which must not reach the gradients of the branch.
    pooled = jnp.where(jnp.isfinite(rois).all(-1)[..., None, None, None], pooled, 0)
    regions = pooled.shape[:-3]
    raw = branch(pooled.reshape(*regions, region_features(layer, inputs.shape[-1])))
    return raw.reshape(*regions, *parts, offset_features(layer) // math.prod(parts))


def _of_bins(mask: jax.Array, pooled: jax.Array) -> jax.Array:
    """The mask for each bin and feature: that of its part and class."""
    rows, columns = (
        np.arange(bins) * parts // bins for bins, parts in zip(pooled.shape[-3:-1], mask.shape[-3:-1], strict=True)
    )
    return jnp.repeat(mask[..., rows[:, None], columns, :], pooled.shape[-1] // mask.shape[-1], axis=-1)
