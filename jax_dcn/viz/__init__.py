"""Sampling locations of deformable layers, as numbers and as pictures.

Numbers are numpy arrays. Sampling locations are (y, x) in pixels of the layer's input, where pixel (i, j) is at (i, j).
Pictures need matplotlib: ``pip install "jax_dcn[viz]"``. docs/pictures.md in the repository shows them.
"""

from jax_dcn.viz.attention import AttentionSamples, attention_samples, plot_attention
from jax_dcn.viz.locations import (
    COCO_SIZES,
    Layer,
    LayerSamples,
    bin_locations,
    dilation_table,
    effective_dilation,
    sampling_locations,
)
from jax_dcn.viz.plots import plot_bins, plot_dilation, plot_offset_lengths, plot_offsets, plot_sampling

__all__ = [
    "COCO_SIZES",
    "AttentionSamples",
    "Layer",
    "LayerSamples",
    "attention_samples",
    "bin_locations",
    "dilation_table",
    "effective_dilation",
    "plot_attention",
    "plot_bins",
    "plot_dilation",
    "plot_offset_lengths",
    "plot_offsets",
    "plot_sampling",
    "sampling_locations",
]
