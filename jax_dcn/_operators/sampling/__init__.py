"""Sampling of images in one to three dimensions: `grid_sample`, `resize` and `map_coordinates`."""
