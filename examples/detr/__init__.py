"""Deformable DETR and RT-DETRv2 with the weights of transformers: ``python -m examples.detr``."""

from .config import DeformableDetrConfig, RTDetrConfig
from .deformable_detr import DeformableDetr
from .rt_detr import RTDetr
from .weights import load

__all__ = ["DeformableDetr", "DeformableDetrConfig", "RTDetr", "RTDetrConfig", "load"]
