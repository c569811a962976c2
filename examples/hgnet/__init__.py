"""HGNetv2, the backbone of D-FINE, with the names and the results of transformers."""

from .model import HGNet, Layout

__all__ = ["HGNet", "Layout"]
