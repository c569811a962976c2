"""A small anchor-free detector with plain or deformable convolutions: ``python -m examples.detector``."""
