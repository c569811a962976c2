"""Deformable DETR, RT-DETR, RT-DETRv2, D-FINE, DEIMv2, LW-DETR and RF-DETR with the checkpoints of transformers.

``python -m examples.detr`` detects objects, and ``python -m examples.detr.train`` trains.
"""

from .config import DeformableDetrConfig, DeimConfig, DFineConfig, LwDetrConfig, RfDetrConfig, RTDetrConfig
from .criterion import DeformableDetrLosses, DeimLosses, DFineLosses, LwDetrLosses, RTDetrLosses
from .d_fine import DFine
from .deformable_detr import DeformableDetr
from .deim import Deim
from .lw_detr import LwDetr
from .matching import Targets
from .rt_detr import RTDetr
from .weights import adapt, load, save

__all__ = ["DFine", "DFineConfig", "DFineLosses", "DeformableDetr", "DeformableDetrConfig", "DeformableDetrLosses"]
__all__ += ["Deim", "DeimConfig", "DeimLosses", "LwDetr", "LwDetrConfig", "LwDetrLosses", "RfDetrConfig"]
__all__ += ["RTDetr", "RTDetrConfig", "RTDetrLosses", "Targets", "adapt", "load", "save"]
