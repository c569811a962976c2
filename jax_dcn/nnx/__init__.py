"""Deformable convolution, RoI pooling and aggregation as Flax NNX modules."""

from jax_dcn.nnx.attention import MultiScaleDeformableAttention
from jax_dcn.nnx.dcnv3 import DCNv3
from jax_dcn.nnx.dcnv4 import DCNv4
from jax_dcn.nnx.deform_conv import DeformConv
from jax_dcn.nnx.psroi_pool import DeformPSRoIPool

__all__ = ["DCNv3", "DCNv4", "DeformConv", "DeformPSRoIPool", "MultiScaleDeformableAttention"]
