"""ResNet with deformable convolutions, which loads mmdet's checkpoints."""

from .model import DEVIATION, MEAN, Layout, ResNet

__all__ = ["DEVIATION", "MEAN", "Layout", "ResNet"]
