"""Installs a checkout in its virtual environment `.venv`, for the Makefile: python3 cmake/install.py PART [OPTION ...]

package: the package, editable, and the packages of the examples. The options are CMake's, such as JAX_DCN_WERROR=ON.
    The CUDA kernels are built only for a GPU of this machine, unless the environment variable JAX_DCN_CUDA says so.
cuda: the same with the CUDA kernels for all architectures, by NVIDIA's nvcc from PyPI.
tools: what tests, checks, documentation and benchmarks need.

The build tools are installed in the environment, too, so that another build compiles only what has changed.
"""

import fcntl
import glob
import os
import re
import shutil
import subprocess
import sys
import venv

VENV = ".venv"
PYTHON = os.path.join(VENV, "bin", "python")
OLDEST_DRIVER, OLDEST_GPU = 580, 8.0  # of CUDA 13, and of the kernels
# What the output of a failed command contains, and what it means.
EXPLANATIONS = {
    "No space left on device": "The disk is full.",
    "No matching distribution found": "pip does not find the packages. Is there a network? docs/building.md explains "
    "the installation without one.",
}


def main(part, *options):
    check_machine()
    with open(os.path.join(VENV, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another installation in this folder.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        make_environment()
        {"package": install_package, "cuda": install_cuda, "tools": install_tools}[part](*options)


def check_machine():
    """Exits with an explanation if the package cannot be installed, before anything is downloaded."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python can run this file up to here
        version = ".".join(map(str, sys.version_info[:3]))
        stop(f"Python 3.11 or newer is needed, and {sys.executable} is {version}. Or: make PYTHON=python3.12")
    try:
        os.makedirs(VENV, exist_ok=True)
    except OSError as error:
        stop(f"The folder {VENV} cannot be made in {os.getcwd()}: {error.strerror}.")
    if not os.access(VENV, os.W_OK):
        stop(f"The folder {os.path.abspath(VENV)} cannot be written to.")
    compilers = [os.environ["CXX"].split()[0]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if not any(map(shutil.which, compilers)):
        stop(
            f"A C++17 compiler is needed, and none of {', '.join(compilers)} is found. Install one (apt-get install "
            "g++, dnf install gcc-c++), or name one: CXX=/path/to/g++"
        )


def check_space(gigabytes):
    if shutil.disk_usage(VENV).free < gigabytes * 1e9:
        stop(f"{os.path.abspath(VENV)} needs {gigabytes} GB of free space.")


def make_environment():
    """Makes the virtual environment, unless there is one whose pip runs."""
    program = "import pip, sys; print(*sys.version_info[:2], sep='.'); sys.exit(sys.version_info < (3, 11))"
    try:
        found = subprocess.run([PYTHON, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        found = None
    if found and found.returncode and found.stdout:
        stop(f"{VENV} is an environment of Python {found.stdout.strip()}, and 3.11 or newer is needed: make clean")
    if found and found.returncode == 0:
        return
    try:
        venv.create(VENV, symlinks=True, with_pip=True)
    except subprocess.CalledProcessError:
        stop("Python cannot make a virtual environment with pip. On Debian and Ubuntu: apt-get install python3-venv")


def install_package(*options):
    has_gpu = find_gpu()
    kind = os.environ.get("JAX_DCN_CUDA") or ("WHEELS" if has_gpu else "OFF")
    with_cuda = has_gpu and kind.upper() != "OFF"
    check_space(10 if with_cuda else 3)
    size = "3 GB" if with_cuda else "350 MB"
    say(f"Installing jax, flax and the packages of the examples, {size}: half a minute on a fast network")
    pip(*build_tools(kind), *requirements("examples", *(["cuda13"] if with_cuda else [])))
    build(kind, *options)


def install_cuda(*options):
    pip(*build_tools("WHEELS"))
    build("WHEELS", "JAX_DCN_CUDA_CODE=ALL", *options)


def install_tools():
    check_space(1)
    say("Installing pytest, mypy, ruff, clang-format, Sphinx and others: 200 MB")
    pip(*requirements("test", "benchmarks", "docs"))


def find_gpu():
    """Whether this machine has an NVIDIA GPU that can run the kernels, and a driver for CUDA 13."""
    command = ["nvidia-smi", "--query-gpu=compute_cap,driver_version", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    gpus = [(float(gpu), int(driver)) for gpu, driver in re.findall(r"^(\d+\.\d), (\d+)\.", printed, re.MULTILINE)]
    usable = [gpu for gpu, driver in gpus if gpu >= OLDEST_GPU and driver >= OLDEST_DRIVER]
    if gpus and not usable:
        say(
            f"The GPU is not used: the kernels need compute capability {OLDEST_GPU} and a driver of CUDA 13, "
            f"{OLDEST_DRIVER} or newer. docs/building.md explains builds for older drivers."
        )
    return bool(usable)


def build(kind, *options):
    """Compiles the package, with CUDA kernels as the variable JAX_DCN_CUDA says: `kind`.

    It is then imported from the folder of its sources.
    """
    say("Compiling the kernels: one minute on two cores, or several with those for CUDA")
    # CMake would keep what it has found and was told before, such as a compiler. The object files remain.
    for path in glob.glob("build/*/CMakeCache.txt"):
        os.remove(path)
    for path in glob.glob("build/*/CMakeFiles/[0-9]*"):
        shutil.rmtree(path)
    defines = [f"--config-settings=cmake.define.{option}" for option in (f"JAX_DCN_CUDA={kind}", *options)]
    pip("--no-build-isolation", "--no-deps", *defines, "--editable", ".")


def project():
    import tomllib

    with open("pyproject.toml", "rb") as file:
        return tomllib.load(file)


def build_tools(kind):
    """What a build needs besides jaxlib, which is that of the environment."""
    found = project()
    tools = [tool for tool in found["build-system"]["requires"] if not tool.startswith("jaxlib")]
    if kind.upper() == "WHEELS":
        tools += found["tool"]["scikit-build"]["overrides"][0]["build"]["requires"]
    return [*tools, "cmake", "ninja"]


def requirements(*extras):
    """The packages that jax_dcn needs, and those of some of its extras."""
    found = project()["project"]
    return sum((found["optional-dependencies"][extra] for extra in extras), found["dependencies"])


def pip(*arguments):
    """Runs `pip install`. If it fails, exits with what it printed and, if known, with what that means."""
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        print(result.stdout)
        known = [meaning for text, meaning in EXPLANATIONS.items() if text in result.stdout]
        stop(*known or ["The installation failed, for the reason above."])


def say(text):
    print(f"jax_dcn: {text}", flush=True)


def stop(text):
    sys.exit(f"jax_dcn: {text}")


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        stop("Interrupted. The same command goes on from here.")
