"""Reads which GPU and driver this machine has, and which of NVIDIA's tools are installed."""

import ctypes
import platform
import re
import shutil
import subprocess
from importlib.metadata import distributions
from xml.etree import ElementTree

from benchmarks.support.cuda_tools import find

IDENTITY = {"name": "name", "compute capability": "compute_cap", "driver": "driver_version", "memory": "memory.total"}
# What `nvidia-smi -q -x` says about a GPU, and where.
DETAILS = {
    "SM clock": "clocks/sm_clock",
    "memory clock": "clocks/mem_clock",
    "largest SM clock": "max_clocks/sm_clock",
    "largest memory clock": "max_clocks/mem_clock",
    "power limit": ".//current_power_limit",
    "MIG": "mig_mode/current_mig",
    "ECC": "ecc_mode/current_ecc",
}
TOOLS = ("nvcc", "ncu", "compute-sanitizer", "g++", "cmake", "ninja")
PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "numpy", "torch", "torchvision")
SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def identity():
    """Name, compute capability, driver and memory of the first GPU, or None if there is none."""
    lines = _nvidia_smi(f"--query-gpu={','.join(IDENTITY.values())}", "--format=csv,noheader").splitlines()
    return dict(zip(IDENTITY, lines[0].split(", "), strict=True)) if lines else None


def facts():
    """Details of the first GPU and its driver; None for what cannot be read."""
    try:
        log = ElementTree.fromstring(_nvidia_smi("-q", "-x"))
    except ElementTree.ParseError:
        log = ElementTree.Element("nothing")
    gpu = log.find("gpu")
    details = {name: None if gpu is None else gpu.findtext(path) for name, path in DETAILS.items()}
    return {
        "CUDA of the driver": log.findtext("cuda_version"),
        "CUDA runtime": runtime_version(),
        "SMs": sm_count(),
        **details,
        **{tool: tool_version(tool) for tool in TOOLS},
        "Python": platform.python_version(),
        **{found.metadata["Name"]: found.version for found in distributions() if found.metadata["Name"] in PACKAGES},
    }


def tool_version(tool):
    """The first line with a number that a tool prints about its version."""
    if find(tool) is None:
        return "not installed"
    lines = subprocess.run([find(tool), "--version"], capture_output=True, text=True).stdout.splitlines()
    return next((line for line in lines if re.search(r"\d+\.\d+", line)), "unknown")


def sm_clock():
    """The clock of the SMs now, such as "1755 MHz", or None."""
    return _nvidia_smi("--query-gpu=clocks.sm", "--format=csv,noheader").partition("\n")[0] or None


def sm_count():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count, device = ctypes.c_int(), ctypes.c_int()
        failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(count), SM_COUNT, device)
    except (OSError, AttributeError):
        return None
    return None if failed else count.value


def runtime_version():
    """The version of the CUDA runtime in NVIDIA's wheels, which XLA uses."""
    prefix = "nvidia-cuda-runtime"
    found = (d for d in distributions() if (d.metadata["Name"] or "").lower().startswith(prefix))
    return next((distribution.version for distribution in found), None)


def _nvidia_smi(*arguments):
    if shutil.which("nvidia-smi") is None:
        return ""
    result = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True)
    return "" if result.returncode else result.stdout.strip()
