"""Deformable convolution, RoI pooling and aggregation as Flax Linen modules."""

from jax_dcn.linen.attention import MultiScaleDeformableAttention
from jax_dcn.linen.dcnv3 import DCNv3
from jax_dcn.linen.dcnv4 import DCNv4
from jax_dcn.linen.deform_conv import DeformConv
from jax_dcn.linen.psroi_pool import DeformPSRoIPool

__all__ = ["DCNv3", "DCNv4", "DeformConv", "DeformPSRoIPool", "MultiScaleDeformableAttention"]
