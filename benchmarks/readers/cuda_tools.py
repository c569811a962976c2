"""Finds NVIDIA's tools, and shortens the names of kernels that they print. It needs neither jax nor jax_dcn."""

import os
import shutil
import sysconfig
from pathlib import Path


def find(tool):
    return shutil.which(tool, path=search_path())


def search_path():
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    return os.pathsep.join([str(wheels), os.environ.get("PATH", ""), "/usr/local/cuda/bin"])


def short_name(demangled):
    """`Kernel<half, 8>` for `void dcn::(anonymous namespace)::Kernel<__half, 8>(...)`."""
    name = demangled.replace("(anonymous namespace)::", "").removeprefix("void ").replace("dcn::", "")
    depth = 0
    for k, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            name = name[:k]
            break
    return name.replace("__nv_bfloat16", "bfloat16").replace("__half", "half")
