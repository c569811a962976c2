"""Pooling of regions of interest: deformable, position-sensitive, and RoIAlign."""

from jax_dcn._operators.roi_pool.functions import (
    deform_psroi_pool,
    deform_roi_pool,
    ps_roi_align,
    psroi_pool,
    roi_align,
)

__all__ = [
    "deform_psroi_pool",
    "deform_roi_pool",
    "ps_roi_align",
    "psroi_pool",
    "roi_align",
]
