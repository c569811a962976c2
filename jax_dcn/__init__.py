"""Deformable operators for JAX and Flax.

The operators are `deform_conv2d`, with a function for each of its gradients, `deform_conv1d` and `deform_conv3d`,
`multi_scale_deformable_attention`, `dcnv3`, which is also the operator of DCNv4, and poolings of regions:
`deform_psroi_pool`, `psroi_pool`, `roi_align`, `ps_roi_align` and `deform_roi_pool`. `grid_sample` and
`map_coordinates` sample images in one to three dimensions, for which `spline_filter` prepares them, and `resize`
resizes them. `kernel_plan` says which kernels they run. `jax_dcn.linen` and `jax_dcn.nnx` each have the layers
`DeformConv`, `DeformPSRoIPool`, `MultiScaleDeformableAttention`, `DCNv3` and `DCNv4`. `offset_labels`,
`offset_statistics`, `warn_of_offsets`, `operators_saveable` and `jax_dcn.quantize` help to train them, and
`jax_dcn.export` helps to export them.
`jax_dcn.interop` converts weights from other libraries, and `jax_dcn.viz` draws where layers sample. `as_deform_conv`
converts the sampling of DCNv3 and DCNv4 for statistics and pictures. `nms`, `fpn_levels`, `find_peaks` and
`linear_sum_assignment` do what a detector needs besides pooling. `patch` makes models of other libraries use these
kernels.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from jax_dcn import export
from jax_dcn._names import replacement
from jax_dcn._operators.aggregation.functions import dcnv3, multi_scale_deformable_attention
from jax_dcn._operators.assignment.functions import linear_sum_assignment
from jax_dcn._operators.deform_conv.functions import deform_conv1d, deform_conv2d, deform_conv3d
from jax_dcn._operators.deform_conv.gradients import (
    deform_conv2d_input_grad,
    deform_conv2d_mask_grad,
    deform_conv2d_offset_grad,
    deform_conv2d_weight_grad,
)
from jax_dcn._operators.kernel_plan import KernelPlan, kernel_plan
from jax_dcn._operators.roi_pool.functions import (
    deform_psroi_pool,
    deform_roi_pool,
    ps_roi_align,
    psroi_pool,
    roi_align,
)
from jax_dcn._operators.sampling.functions import grid_sample, map_coordinates, resize, spline_filter
from jax_dcn._patch.functions import patch
from jax_dcn._primitive.plan import ComputationPlan
from jax_dcn._primitive.primitive import operators_saveable
from jax_dcn.boxes import fpn_levels, nms
from jax_dcn.conversion import as_deform_conv
from jax_dcn.optim import offset_labels
from jax_dcn.peaks import find_peaks
from jax_dcn.statistics import offset_statistics, warn_of_offsets

__all__ = [
    "ComputationPlan",
    "KernelPlan",
    "as_deform_conv",
    "dcnv3",
    "deform_conv1d",
    "deform_conv2d",
    "deform_conv2d_input_grad",
    "deform_conv2d_mask_grad",
    "deform_conv2d_offset_grad",
    "deform_conv2d_weight_grad",
    "deform_conv3d",
    "deform_psroi_pool",
    "deform_roi_pool",
    "export",
    "find_peaks",
    "fpn_levels",
    "grid_sample",
    "interop",
    "kernel_plan",
    "linear_sum_assignment",
    "linen",
    "map_coordinates",
    "multi_scale_deformable_attention",
    "nms",
    "nnx",
    "offset_labels",
    "offset_statistics",
    "operators_saveable",
    "patch",
    "ps_roi_align",
    "psroi_pool",
    "quantize",
    "resize",
    "roi_align",
    "spline_filter",
    "viz",
    "warn_of_offsets",
]


__version__ = version(__name__)

if TYPE_CHECKING:
    from jax_dcn import interop, linen, nnx, quantize, viz
else:

    def __getattr__(name):
        # Flax takes longer to import than jax, so it is imported when a module that needs it is first used.
        if name in ("interop", "linen", "nnx", "quantize", "viz"):
            return import_module(f"{__name__}.{name}")
        absent = f"module {__name__!r} has no attribute {name!r}"
        if use := replacement(name):
            raise AttributeError(f"{absent}. Use {use}.", name=name, obj=None)  # obj: Python is to suggest no others
        raise AttributeError(absent)
