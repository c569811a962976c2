"""Deformable convolution and deformable position-sensitive RoI pooling for JAX and Flax.

`deform_conv2d` with its explicit gradients and `deform_psroi_pool` are the operators; `jax_dcn.linen` and `jax_dcn.nnx`
each have the layers `DeformConv` and `DeformPSRoIPool`; `offset_labels`, `offset_statistics`, `warn_of_offsets` and
`jax_dcn.quantize` help to train them, `jax_dcn.export` to export them; `jax_dcn.interop` takes weights from other
libraries, and `jax_dcn.viz` draws where layers sample.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from jax_dcn import export
from jax_dcn._operators.deform_conv import (
    deform_conv2d,
    deform_conv2d_input_grad,
    deform_conv2d_mask_grad,
    deform_conv2d_offset_grad,
    deform_conv2d_weight_grad,
)
from jax_dcn._operators.psroi_pool import deform_psroi_pool, psroi_pool
from jax_dcn.optim import offset_labels
from jax_dcn.statistics import offset_statistics, warn_of_offsets

__all__ = [
    "deform_conv2d",
    "deform_conv2d_input_grad",
    "deform_conv2d_mask_grad",
    "deform_conv2d_offset_grad",
    "deform_conv2d_weight_grad",
    "deform_psroi_pool",
    "export",
    "interop",
    "linen",
    "nnx",
    "offset_labels",
    "offset_statistics",
    "psroi_pool",
    "quantize",
    "viz",
    "warn_of_offsets",
]


__version__ = version(__name__)

if TYPE_CHECKING:
    from jax_dcn import interop, linen, nnx, quantize, viz
else:

    def __getattr__(name):
        # Flax takes longer to import than jax: only who uses the layers pays for it.
        if name in ("interop", "linen", "nnx", "quantize", "viz"):
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
