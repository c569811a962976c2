"""Pooling of regions of interest: deformable, position-sensitive, and RoIAlign."""
