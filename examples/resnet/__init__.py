"""ResNet with deformable convolutions, which takes mmdet's checkpoints: ``python -m examples.resnet``."""

from .model import ResNet

__all__ = ["ResNet"]
