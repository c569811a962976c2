"""Where deformable layers look, as numbers and as pictures.

The numbers are numpy's; positions are (y, x) in pixels of the layer's input, pixel (i, j) at (i, j). The pictures need
matplotlib: ``pip install "jax_dcn[viz]"``. docs/pictures.md, beside the sources, shows them.
"""

from jax_dcn.viz.plots import plot_bins, plot_dilation, plot_offset_lengths, plot_offsets, plot_sampling
from jax_dcn.viz.positions import (
    COCO_SIZES,
    Layer,
    Samples,
    bin_positions,
    dilation_table,
    effective_dilation,
    sampling_positions,
)

__all__ = [
    "COCO_SIZES",
    "Layer",
    "Samples",
    "bin_positions",
    "dilation_table",
    "effective_dilation",
    "plot_bins",
    "plot_dilation",
    "plot_offset_lengths",
    "plot_offsets",
    "plot_sampling",
    "sampling_positions",
]
