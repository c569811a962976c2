"""R-FCN with plain or deformable convolutions and plain or deformable pooling: ``python -m examples.rfcn``."""
