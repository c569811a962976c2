"""Deformable convolution, RoI pooling and aggregation as Flax Linen modules."""

from jax_dcn.linen.layers import DCNv3, DCNv4, DeformConv, DeformPSRoIPool, MultiScaleDeformableAttention

__all__ = ["DCNv3", "DCNv4", "DeformConv", "DeformPSRoIPool", "MultiScaleDeformableAttention"]
