"""Deformable convolution, RoI pooling and aggregation as Flax NNX modules."""

from jax_dcn.nnx.layers import DCNv3, DCNv4, DeformConv, DeformPSRoIPool, MultiScaleDeformableAttention

__all__ = ["DCNv3", "DCNv4", "DeformConv", "DeformPSRoIPool", "MultiScaleDeformableAttention"]
