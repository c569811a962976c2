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

    gpu: str
    is_of_this_gpu: bool  # otherwise of another GPU of its major version
    milliseconds: float
    bound_by: str  # what bounds the launch that takes longest
    kernels: dict[str, float]  # milliseconds


def newest(folder):
    """The newest file of estimates in a folder, or None."""
    return max(folder.glob("*-machine-code.json"), default=None)


def read(path, architecture, name):
    """Estimates by (custom call, shape, batch), for the GPU of the architecture; empty if the file has none.

    Without estimates for the architecture itself, those for an older one of the same major version are taken. `name` is
    that of the GPU as nvidia-smi prints it.
    """
    launches = json.loads(path.read_text())["launches"]
    major, minor = _version(architecture)
    known = {launch["architecture"] for launch in launches}
    usable = [one for one in known if _version(one)[0] == major and _version(one)[1] <= minor]
    chosen = max(usable, key=_version, default=None)
    calls = {}
    for launch in launches:
        if launch["architecture"] == chosen:
            calls.setdefault((launch["call"], launch["shape"], launch["batch"]), []).append(launch)
    return {key: _sum(launches, name) for key, launches in calls.items()}


def _is_named(gpu, name):
    """Whether the name that nvidia-smi prints is that of a GPU, and not that of a variant with other clocks or SMs."""
    return re.search(rf"\b{gpu}\b(?! (Ti|D|NVL|Laptop)\b)", name, re.IGNORECASE) is not None


def _sum(launches, name):
    gpu = launches[0]["gpu"]
    longest = max(launches, key=lambda launch: launch["milliseconds"])
    kernels = Counter()
    for launch in launches:
        kernels[launch["kernel"]] += launch["milliseconds"]
    return Estimate(gpu, _is_named(gpu, name), sum(kernels.values()), longest["bound_by"], dict(kernels))


def _version(architecture):
    """(9, 0) for "sm_90", (12, 1) for "sm_121"."""
    major, minor = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", architecture).groups()
    return int(major), int(minor)
