"""Deformable aggregation: multi-scale deformable attention, DCNv3 and DCNv4."""

from jax_dcn._operators.aggregation.functions import dcnv3, multi_scale_deformable_attention

__all__ = [
    "dcnv3",
    "multi_scale_deformable_attention",
]
