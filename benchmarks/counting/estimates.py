"""Reads the estimated times of the kernels, which `python -m benchmarks.machine_code` writes.

The file is a JSON object {"launches": [...]} with, for each launch of a kernel, "kernel", "call" (the custom call that
launches it), "shape" (as in benchmarks/measurements/deform_conv.py), "batch", "architecture", "gpu" (whose clocks and
number of SMs it is for), "milliseconds", and "bound_by".
"""

import json
import re
from collections import Counter
from typing import NamedTuple


class Estimate(NamedTuple):
    """The launches of one custom call, together."""

    milliseconds: float
    bound_by: str  # what bounds the launch that takes longest
    kernels: dict[str, float]  # milliseconds


def newest(folder):
    """The newest file of estimates in a folder, or None."""
    return max(folder.glob("*-machine-code.json"), default=None)


def read(path, name):
    """Estimates by (custom call, shape, batch), for a GPU by the name that nvidia-smi prints; empty if it has none."""
    calls = {}
    for launch in json.loads(path.read_text())["launches"]:
        if _is_named(launch["gpu"], name):
            calls.setdefault((launch["call"], launch["shape"], launch["batch"]), []).append(launch)
    return {key: _sum(launches) for key, launches in calls.items()}


def _is_named(gpu, name):
    """Whether the name that nvidia-smi prints is that of a GPU, and not that of a variant with other clocks or SMs."""
    return re.search(rf"\b{gpu}\b(?! (Ti|D|NVL|Laptop)\b)", name, re.IGNORECASE) is not None


def _sum(launches):
    longest = max(launches, key=lambda launch: launch["milliseconds"])
    kernels = Counter()
    for launch in launches:
        kernels[launch["kernel"]] += launch["milliseconds"]
    return Estimate(sum(kernels.values()), longest["bound_by"], dict(kernels))
