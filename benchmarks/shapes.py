"""The layers that are timed: deformable convolutions of published detectors and video models."""

from typing import NamedTuple


class Shape(NamedTuple):
    """x [batch, height, width, channels] to `features` channels, 3x3."""

    batch: int
    height: int
    width: int
    channels: int
    features: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    offset_groups: int = 1


SHAPES = {
    "A": Shape(2, 100, 168, 128, 128),  # ResNet-50 stage c3, an image of 800 x 1333
    "B": Shape(2, 50, 84, 256, 256),  # c4
    "C": Shape(2, 25, 42, 512, 512),  # c5
    "D": Shape(1, 38, 63, 512, 512, dilation=2, offset_groups=4),  # R-FCN res5
    "E": Shape(32, 32, 32, 256, 128),  # CenterNet
    "F": Shape(32, 64, 64, 64, 64, offset_groups=8),  # EDVR
    "G": Shape(8, 64, 64, 128, 64, offset_groups=16),  # BasicVSR++
    "H": Shape(2, 100, 168, 256, 256, groups=32),  # ResNeXt-101 c3
}
