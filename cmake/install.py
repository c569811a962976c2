"""Installs a checkout in its virtual environment `.venv`, for the Makefile: python3 cmake/install.py PART [OPTION ...]

package: the package, editable, and the packages of the examples. The options are CMake's, such as JAX_DCN_WERROR=ON.
    CUDA kernels are built only for a GPU of this machine.
cuda: the same with CUDA kernels for all architectures, if there is an nvcc.
tools: what tests, checks, documentation and benchmarks need.

The build tools are installed in the environment, too, so that another build compiles only what has changed.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import venv

VENV = ".venv"
PYTHON = os.path.join(VENV, "bin", "python")
FREE_GIGABYTES = 3
OLDEST_DRIVER = 580  # of CUDA 13
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
        if part == "package":
            install_package(*options)
        elif part == "cuda":
            build(*options, "JAX_DCN_CUDA=AUTO", "JAX_DCN_CUDA_CODE=ALL")
        else:
            say("Installing pytest, mypy, ruff, clang-format, Sphinx and others: 200 MB")
            pip(*requirements("test", "benchmarks", "docs"))


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
    if shutil.disk_usage(VENV).free < FREE_GIGABYTES * 1e9:
        stop(f"{os.path.abspath(VENV)} needs {FREE_GIGABYTES} GB of free space.")
    compilers = [os.environ["CXX"].split()[0]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if not any(map(shutil.which, compilers)):
        stop(
            f"A C++17 compiler is needed, and none of {', '.join(compilers)} is found. Install one (apt-get install "
            "g++, dnf install gcc-c++), or name one: CXX=/path/to/g++"
        )


def make_environment():
    """Makes the virtual environment, unless there is one with a pip that runs."""
    if (
        os.path.exists(PYTHON)
        and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0
    ):
        return
    try:
        venv.create(VENV, with_pip=True)
    except subprocess.CalledProcessError:
        stop("Python cannot make a virtual environment with pip. On Debian and Ubuntu: apt-get install python3-venv")


def install_package(*options):
    """Installs the package and what the examples need, with the build tools."""
    configuration = project()
    tools = [tool for tool in configuration["build-system"]["requires"] if not tool.startswith("jaxlib")]
    tools += ["cmake", "ninja"]
    extras = ["examples"]
    cuda = has_gpu()
    if cuda:
        tools += configuration["tool"]["scikit-build"]["overrides"][0]["build"]["requires"]
        extras.append("cuda13")
    size = "3 GB" if cuda else "350 MB"
    say(f"Installing jax, flax and the packages of the examples, {size}: half a minute on a fast network")
    pip(*tools, *requirements(*extras))
    build(*options, f"JAX_DCN_CUDA={'ON' if cuda else 'OFF'}")


def build(*options):
    """Compiles the package, which is then imported from the folder of its sources."""
    say("Compiling the kernels: one minute on two cores")
    defines = [f"--config-settings=cmake.define.{option}" for option in options]
    pip("--no-build-isolation", "--no-deps", *defines, "--editable", ".")


def has_gpu():
    """Whether this machine has an NVIDIA GPU and a driver for CUDA 13."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return False
    if not driver or int(driver.partition(".")[0]) >= OLDEST_DRIVER:
        return bool(driver)
    say("The GPU is not used: its driver is for CUDA 12. docs/building.md explains builds for older drivers.")
    return False


def project():
    import tomllib

    with open("pyproject.toml", "rb") as file:
        return tomllib.load(file)


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
