"""Pooling of regions of interest: deformable, position-sensitive, and RoIAlign."""

from jax_dcn._operators.roi_pool.functions import (
    deform_psroi_pool,
    deform_roi_pool,
    ps_roi_align,
    psroi_pool,
    roi_align,
)
from jax_dcn._operators.roi_pool.plan import (
    deform_psroi_pool_kernel_plan,
    deform_roi_pool_kernel_plan,
    ps_roi_align_kernel_plan,
    roi_align_kernel_plan,
)

__all__ = [
    "deform_psroi_pool",
    "deform_psroi_pool_kernel_plan",
    "deform_roi_pool",
    "deform_roi_pool_kernel_plan",
    "ps_roi_align",
    "ps_roi_align_kernel_plan",
    "psroi_pool",
    "roi_align",
    "roi_align_kernel_plan",
]
