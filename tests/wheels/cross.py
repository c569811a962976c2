"""Builds the package for Linux on aarch64 on another machine, with Debian's cross compiler.

apt-get install g++-aarch64-linux-gnu
"""

import pathlib
import shutil

PREFIX = "aarch64-linux-gnu-"
COMPILER = f"{PREFIX}g++"
TOOLCHAIN = pathlib.Path(__file__).parents[2] / "cmake" / "aarch64-linux-gnu.cmake"
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
        "CUDAHOSTCXX": COMPILER,  # its name tells nvcc the target
    }


def pip_options() -> list[str]:
    """Options with which pip installs wheels for aarch64."""
    return ["--only-binary=:all:", *(f"--platform={name}" for name in PLATFORMS)]
