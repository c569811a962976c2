"""A library, not an example: what the two detectors (`examples.detector`, `examples.rfcn`) share.

It makes the data (scanned digits pasted into photographs) and has the backbone, training, scores and reports.
"""
