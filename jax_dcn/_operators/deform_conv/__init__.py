"""Deformable convolution."""

from jax_dcn._operators.deform_conv.functions import deform_conv1d, deform_conv2d, deform_conv3d
from jax_dcn._operators.deform_conv.gradients import (
    deform_conv2d_input_grad,
    deform_conv2d_mask_grad,
    deform_conv2d_offset_grad,
    deform_conv2d_weight_grad,
)

__all__ = [
    "deform_conv1d",
    "deform_conv2d",
    "deform_conv2d_input_grad",
    "deform_conv2d_mask_grad",
    "deform_conv2d_offset_grad",
    "deform_conv2d_weight_grad",
    "deform_conv3d",
]
