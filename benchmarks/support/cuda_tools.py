"""Finds and runs the programs of a CUDA toolkit, from an installation or from NVIDIA's wheels.

It needs neither jax nor jax_dcn.
"""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path


def find(tool):
    return shutil.which(tool, path=search_path())


def absent(*tools):
    """Which of the tools are missing, as a message, or None."""
    names = [tool for tool in tools if find(tool) is None]
    return f"{', '.join(names)} not found" if names else None


def read(tool, *arguments):
    """What the tool prints."""
    environment = os.environ | {"PATH": search_path()}
    command = [find(tool), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


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


def search_path():
    wheels = find_spec("nvidia")
    folders = [str(Path(path) / "cu13" / "bin") for path in (wheels.submodule_search_locations or () if wheels else ())]
    profilers = sorted(map(str, Path("/opt/nvidia").glob("nsight-compute/*")), reverse=True)  # the newest first
    return os.pathsep.join([*folders, os.environ.get("PATH", ""), "/usr/local/cuda/bin", *profilers])
