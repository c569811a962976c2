"""Sampling of images in one to three dimensions: `grid_sample` and `map_coordinates`."""

from jax_dcn._operators.sampling.functions import grid_sample, map_coordinates

__all__ = ["grid_sample", "map_coordinates"]
