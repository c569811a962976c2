"""A library, not an example: the code that the two detectors (`examples.detector`, `examples.rfcn`) share.

It generates the data, scanned digits pasted into photographs, and contains the backbone, training, scores and reports.
"""
