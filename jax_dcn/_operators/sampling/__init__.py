"""Sampling of images in one to three dimensions: `grid_sample` and `map_coordinates`."""
