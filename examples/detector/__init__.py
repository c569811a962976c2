"""An anchor-free detector and R-FCN with deformable layers, trained on digits: ``python -m examples.detector.demo``."""
