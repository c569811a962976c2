"""What to use for a name that `jax_dcn` lacks: a layer, which two modules have, or the name of another library."""

LAYERS = ("DCNv3", "DCNv4", "DeformConv", "DeformPSRoIPool", "MultiScaleDeformableAttention")
# The names of torchvision, mmcv, Detectron2, Paddle and the authors' repositories, by the name here.
_FOREIGN_NAMES = {
    "DeformConv": "DeformConv2d DeformConv2dPack ModulatedDeformConv ModulatedDeformConv2d ModulatedDeformConv2dPack "
    "DeformConv2D DCN DCNv2",
    "DeformPSRoIPool": "DCNPooling",
    "MultiScaleDeformableAttention": "MSDeformAttn",
    "dcnv3": "dcnv4 dcnv3_core_pytorch",
    "deform_conv2d": "deform_conv modulated_deform_conv modulated_deform_conv2d",
    "deform_roi_pool": "DeformRoIPool DeformRoIPoolPack ModulatedDeformRoIPoolPack",
    "find_peaks": "simple_nms",
    "grid_sample": "bilinear_grid_sample point_sample",
    "multi_scale_deformable_attention": "ms_deform_attn multi_scale_deformable_attn_pytorch",
    "nms": "batched_nms",
    "ps_roi_align": "PSRoIAlign",
    "resize": "interpolate upsample",
    "roi_align": "RoIAlign ROIAlign MultiScaleRoIAlign",
}
FOREIGN = {foreign: name for name, names in _FOREIGN_NAMES.items() for foreign in names.split()}


def replacement(name: str) -> str:
    """The place of what other users call `name`, such as "jax_dcn.roi_align", or an empty string."""
    if name.endswith("MultiscaleDeformableAttention"):  # transformers has one for each of its models
        name = "MultiScaleDeformableAttention"
    name = FOREIGN.get(name, name)
    if name in LAYERS:
        return f"jax_dcn.linen.{name} or jax_dcn.nnx.{name}"
    return f"jax_dcn.{name}" if name in _FOREIGN_NAMES else ""
