"""Deformable position-sensitive RoI pooling."""

from jax_dcn._operators.psroi_pool.functions import deform_psroi_pool, psroi_pool

__all__ = ["deform_psroi_pool", "psroi_pool"]
