"""Deformable convolution and RoI pooling as Flax Linen modules."""

from jax_dcn.linen.deform_conv import DeformConv
from jax_dcn.linen.psroi_pool import DeformPSRoIPool

__all__ = ["DeformConv", "DeformPSRoIPool"]
