"""ResNet with deformable convolutions, which loads mmdet's checkpoints: ``python -m examples.resnet``."""

from .model import ResNet

__all__ = ["ResNet"]
