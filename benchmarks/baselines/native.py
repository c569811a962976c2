"""C++ programs, compiled for the processor that runs them."""

import ctypes
import hashlib
from functools import cache
from pathlib import Path

from benchmarks.baselines import Unavailable
from benchmarks.support import cached_build
from benchmarks.support.machine import processor


@cache
def library(name):
    """The library compiled from <name>.cc of this folder."""
    source = Path(__file__).with_name(f"{name}.cc")
    flags = ["-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-trapping-math"]
    words = ["g++", *flags, "-shared", "-fPIC", "-pthread"]
    try:
        # -march=native depends on the processor.
        built = f"{name}_{hashlib.sha256(processor().encode()).hexdigest()[:8]}.so"
        return ctypes.CDLL(str(cached_build.build(built, [*words, str(source)], [source])))
    except (OSError, RuntimeError) as error:
        raise Unavailable("needs g++") from error
