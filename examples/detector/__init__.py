"""An anchor-free detector with deformable layers, trained on digits: ``python -m examples.detector.demo``."""
