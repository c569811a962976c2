"""The memory of a process on a CPU, where XLA frees the temporary arrays of a program after each call.

By default glibc gives large arrays back to Linux, which clears each of their pages again in the next call.
"""

import ctypes
import sys

# Parameters of mallopt in glibc's malloc.h, and the values with which memory of any size is part of one heap that never
# shrinks.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
HEAP = {M_TRIM_THRESHOLD: -1, M_MMAP_MAX: 0, M_ARENA_MAX: 1}


def keep_freed() -> None:
    """Makes glibc keep the memory that the process frees. It does nothing with other C libraries."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, value in HEAP.items():
            mallopt(parameter, value)
