"""Builds the package for Linux on aarch64 on another machine, with Debian's cross compiler.

apt-get install g++-aarch64-linux-gnu
"""

import os
import pathlib
import shutil
import subprocess

PREFIX = "aarch64-linux-gnu-"
COMPILER = f"{PREFIX}g++"
TOOLCHAIN = pathlib.Path(__file__).parents[2] / "cmake" / "aarch64-linux-gnu.cmake"
CUDA = "cuda-toolkit[nvcc,cccl]==13.0.*"  # as in pyproject.toml
PLATFORMS = "manylinux_2_17_aarch64", "manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64"


def missing() -> str:
    """Why it cannot be built here, or an empty string."""
    return "" if shutil.which(COMPILER) else f"{COMPILER} is not installed (Debian: g++-aarch64-linux-gnu)"


def variables(is_oldest: bool) -> dict[str, str]:
    """The environment variables of a build.

    The name of Python 3.11's module has the platform, and those of later ones the stable ABI.
    """
    suffix = ".cpython-311-aarch64-linux-gnu.so" if is_oldest else ".abi3.so"
    return {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "CMAKE_TOOLCHAIN_FILE": str(TOOLCHAIN),
    }


def pip_options() -> list[str]:
    """Options with which pip installs wheels for aarch64."""
    return ["--only-binary=:all:", *(f"--platform={name}" for name in PLATFORMS)]


def cuda_toolkit(folder: pathlib.Path, python: pathlib.Path) -> dict[str, str]:
    """Makes a toolkit of NVIDIA's wheels: programs for this machine, headers and libraries for aarch64.

    Returns the environment variables of a build with it. nvcc finds the target by the name of the host compiler.
    """
    install = python, "-m", "pip", "install", "--quiet", "--no-compile"
    for name, options in {"host": [], "target": pip_options()}.items():
        subprocess.run([*map(str, install), "--target", str(folder / name), *options, CUDA], check=True)
    host, target = (folder / name / "nvidia" / "cu13" for name in ("host", "target"))
    toolkit = folder / "toolkit"
    (toolkit / "targets").mkdir(parents=True)
    shutil.copytree(host / "bin", toolkit / "bin")  # nvcc resolves links to itself
    os.symlink(host / "nvvm", toolkit / "nvvm")
    os.symlink(target, toolkit / "targets" / "sbsa-linux")
    return {"JAX_DCN_CUDA": "ON", "CUDACXX": str(toolkit / "bin" / "nvcc"), "CUDAHOSTCXX": COMPILER}
