"""The peak memory of a call: its results and temporary arrays, without its operands."""

import ctypes
import os
import re
from pathlib import Path

import jax

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def most_bytes():
    """The memory limit of a call: half of a GPU's memory, or a quarter of the machine's, which is shared."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit // 2 if limit else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def of_compiled(executable):
    """Bytes of temporary arrays and results in XLA's plan, without what custom calls and libraries allocate."""
    memory = executable.memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes


def of_process(call):
    """The result of a first call, and how many bytes the process grew; None where the system does not report them."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # otherwise the call reuses freed pages, and nothing grows
        CLEAR.write_text("5")  # resets the peak
        before = kibibytes("VmRSS")
    except (AttributeError, OSError):
        return call(), None
    result = call()
    return result, max(kibibytes("VmHWM") - before, 0) * 1024


def kibibytes(field):
    """What the system reports of this process: "VmRSS", its memory now, or "VmHWM", its peak."""
    return int(re.search(rf"^{field}:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)[1])
