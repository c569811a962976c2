"""Deformable position-sensitive RoI pooling."""

from jax_dcn._operators.psroi_pool.functions import deform_psroi_pool, psroi_pool
from jax_dcn._operators.psroi_pool.plan import deform_psroi_pool_kernel_plan

__all__ = ["deform_psroi_pool", "deform_psroi_pool_kernel_plan", "psroi_pool"]
