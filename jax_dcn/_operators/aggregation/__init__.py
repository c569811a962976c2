"""Deformable aggregation: multi-scale deformable attention, DCNv3 and DCNv4."""
