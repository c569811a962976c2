"""The machine and the versions that results were measured with."""

import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from benchmarks.support.sources import commit
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS

# They limit the instructions that this package, oneDNN and XLA use.
LIMITS = ("JAX_DCN_CPU_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "XLA_FLAGS")
PACKAGES = ("jax_dcn", "jax", "jaxlib", "torch", "torchvision", "onnxruntime")


def add_xla_flags(flags):
    """XLA reads them when jax first uses a device."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"


def machine():
    return {
        "date": str(date.today()),
        "commit": commit(),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "processor": f"{processor()}, {cores()} cores",
        "instructions": INSTRUCTIONS,  # of the fused CPU kernels
        "python": platform.python_version(),
        **{name: found for name in PACKAGES if (found := installed(name))},
        **{name: os.environ[name] for name in LIMITS if name in os.environ},
    }


def processor():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def load():
    """The load average of the last minute; None where the system does not report it."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def installed(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None
