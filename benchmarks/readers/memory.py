"""What a call holds besides its operands, its results included, at its peak."""

import ctypes
import os
import re
from pathlib import Path

import jax

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def most_bytes():
    """What a call may hold: half of a GPU's memory, or a quarter of the machine's, which others use too."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit // 2 if limit else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def of_compiled(executable):
    """Temporaries and results, as XLA planned them; not what custom calls and libraries take for themselves."""
    memory = executable.memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes


def of_process(call):
    """A first call's result and how far the process grew meanwhile, None where that is not to be had."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # or the call would take pages that others left, and grow nothing
        CLEAR.write_text("5")  # the peak starts anew
        before = _kibibytes("VmRSS")
    except (AttributeError, OSError):
        return call(), None
    result = call()
    return result, max(_kibibytes("VmHWM") - before, 0) * 1024


def _kibibytes(field):
    return int(re.search(rf"^{field}:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)[1])
