"""ALIKED, which finds keypoints in photographs and describes them, and LightGlue, which matches them.

``python -m examples.aliked`` matches photographs, and ``python -m examples.aliked.train`` trains.
"""

from .lightglue import LightGlue
from .matching import extract, match, nearest_neighbours
from .model import Aliked, Layout
from .weights import load, load_lightglue, published, save

__all__ = ["Aliked", "Layout", "LightGlue", "extract", "load", "load_lightglue", "match", "nearest_neighbours"]
__all__ += ["published", "save"]
