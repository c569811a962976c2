"""R-FCN, plain or deformable, trained on scenes of digits: ``python -m examples.rfcn``."""
