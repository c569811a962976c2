"""Reads from a trace of `jax.profiler` how long each kernel ran on the GPU.

This needs `jax.profiler.ProfileData` (all supported releases of jax have it), and a driver that lets CUPTI trace
kernels, as drivers do by default.
"""

import re
from pathlib import Path

import jax

from benchmarks.readers.cuda_tools import short_name


def of_folder(folder):
    """Kernels by name, {"milliseconds", "launches", "own"}, of a folder that `jax.profiler.trace` wrote."""
    kernels = {}
    for path in Path(folder).rglob("*.xplane.pb"):
        add(kernels, jax.profiler.ProfileData.from_file(str(path)))
    return kernels


def add(kernels, data):
    """Adds the kernels of one trace. `own` are those of this package; the others are XLA's."""
    for plane in data.planes:
        if not re.match(r"/device:GPU:\d+", plane.name):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):  # the other lines summarize the streams
                continue
            for event in line.events:
                is_own = "dcn::" in event.name
                name = short_name(event.name) if is_own else event.name
                kernel = kernels.setdefault(name, {"milliseconds": 0.0, "launches": 0, "own": is_own})
                kernel["milliseconds"] += event.duration_ns * 1e-6
                kernel["launches"] += 1
