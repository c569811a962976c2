"""Deformable convolution and RoI pooling as Flax NNX modules."""

from jax_dcn.nnx.deform_conv import DeformConv
from jax_dcn.nnx.psroi_pool import DeformPSRoIPool

__all__ = ["DeformConv", "DeformPSRoIPool"]
