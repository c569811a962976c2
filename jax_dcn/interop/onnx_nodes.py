"""The attributes of the ONNX nodes that operators of this package are written as, and the options that ONNX lacks."""

from collections.abc import Sequence
from typing import Any

from jax_dcn._operators.deform_conv.geometry import Window
from jax_dcn._operators.roi_pool.arguments import Spec as PoolingSpec
from jax_dcn._operators.sampling.geometry import Spec as SamplingSpec

BILINEAR = {"mode": "linear", "padding_mode": "zeros", "align_corners": 0}  # GridSample of the taps of an aggregation


def conv(window: Window, kernel_size: Sequence[int], padding: Any) -> dict[str, Any]:
    """The attributes that Conv and DeformConv share. padding: as messages show it."""
    if len(kernel_size) != 2:
        raise ValueError(f"the kernel must have two axes, as ONNX's DeformConv, got {tuple(kernel_size)}")
    (top, bottom), (left, right) = window.padding
    pads = (top, left, bottom, right)
    if window.circular or min(pads) < 0:
        raise ValueError(f"padding must be one that ONNX has, neither circular nor negative, got {padding!r}")
    sizes = {"kernel_shape": kernel_size, "strides": window.strides, "dilations": window.kernel_dilation, "pads": pads}
    return {name: list(values) for name, values in sizes.items()}


def deform_conv(
    window: Window, kernel_size: Sequence[int], feature_group_count: int, offset_groups: int, padding: Any
) -> dict[str, Any]:
    """The attributes of DeformConv."""
    groups = {"group": feature_group_count, "offset_group": offset_groups}
    return {**groups, **conv(window, kernel_size, padding)}


def roi_align(spec: PoolingSpec, *, has_offset: bool, is_max: bool) -> dict[str, Any]:
    """The attributes of RoiAlign, the only pooling of regions that this package and ONNX both have.

    ONNX's "max" is the largest of weighted pixels, not of samples, and its MaxRoiPool rounds regions to whole pixels.
    """
    name = "roi_align with mode='max'" if is_max else _pooling_name(spec, has_offset)
    if name != "roi_align":
        raise ValueError(f"only roi_align with mode='avg' can be exported to ONNX, got {name}")
    if spec.points[0] != spec.points[1]:
        raise ValueError(f"sampling_ratio must be the same along both axes to be exported to ONNX, got {spec.points}")
    return {
        "coordinate_transformation_mode": "half_pixel" if spec.convention == "aligned" else "output_half_pixel",
        "mode": "avg",
        "output_height": spec.output_size[0],
        "output_width": spec.output_size[1],
        "sampling_ratio": spec.points[0],
        "spatial_scale": spec.spatial_scale,
    }


def _pooling_name(spec: PoolingSpec, has_offset: bool) -> str:
    if spec.convention == "rounded":
        return "deform_psroi_pool" if has_offset else "psroi_pool"
    if spec.group_size != (1, 1):
        return "ps_roi_align"
    return "deform_roi_pool" if has_offset else "roi_align"


def grid_sample(spec: SamplingSpec) -> dict[str, Any]:
    """The attributes of GridSample."""
    if spec.dims == 1:
        raise ValueError("x must have two or three axes, as images of ONNX's GridSample, got one")
    if spec.method == "rounded":
        raise ValueError("order must be 1 to be exported to ONNX, whose GridSample rounds halves to even, got 0")
    outside = spec.outside if spec.fold == "none" else spec.fold
    modes = {"zero": "zeros", "clip": "border", "reflect": "reflection", "mirror": "reflection"}
    if outside not in modes:
        raise ValueError(f"mode must be one that ONNX's GridSample has, got {outside!r}")
    corners = outside == "mirror" if spec.units == "pixels" else spec.units == "corners"
    return {"mode": spec.method, "padding_mode": modes[outside], "align_corners": int(corners)}
