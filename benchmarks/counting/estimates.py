"""Reads the estimated times of the fused kernels, which `python -m benchmarks.machine_code` writes.

The file is a JSON object {"launches": [...]} with, for each launch of a kernel, "kernel", "call" (the custom call that
launches it), "shape" (as in benchmarks/measurements/deform_conv.py), "batch", "architecture", "gpu" (whose clocks and
number of SMs it is for), "milliseconds", and "bound_by".
"""

import json
from collections import Counter


def newest(folder):
    """The newest file of estimates in a folder, or None."""
    return max(folder.glob("*-machine-code.json"), default=None)


def read(path, gpu):
    """Milliseconds on a GPU by (custom call, shape, batch)."""
    calls = Counter()
    for launch in json.loads(path.read_text())["launches"]:
        if launch["gpu"] == gpu:
            calls[launch["call"], launch["shape"], launch["batch"]] += launch["milliseconds"]
    return dict(calls)
