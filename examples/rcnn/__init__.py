"""Faster R-CNN and Mask R-CNN with the weights of mmdet: ``python -m examples.rcnn``."""

from .config import Config
from .detector import RCNN, Detections, detect
from .weights import fill, load

__all__ = ["RCNN", "Config", "Detections", "detect", "fill", "load"]
