"""Deformable aggregation: multi-scale deformable attention, DCNv3 and DCNv4."""

from jax_dcn._operators.aggregation.functions import dcnv3, multi_scale_deformable_attention
from jax_dcn._operators.aggregation.plan import dcnv3_kernel_plan, multi_scale_deformable_attention_kernel_plan

__all__ = [
    "dcnv3",
    "dcnv3_kernel_plan",
    "multi_scale_deformable_attention",
    "multi_scale_deformable_attention_kernel_plan",
]
