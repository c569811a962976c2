"""A system of Linux on aarch64 in a folder, whose Python qemu runs, with jax's wheels and this package.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static debootstrap. It needs a network, and debootstrap root.
"""

import contextlib
import fcntl
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping

from tests.wheels import cross

ROOT = pathlib.Path(__file__).parents[2]
BUILD = ROOT / "build" / "aarch64"
QEMU = "qemu-aarch64-static"
# Module files of Python 3.11 are for 3.11 only; those of later ones have the stable ABI.
SUITE, VERSION = ("bookworm", (3, 11)) if sys.version_info < (3, 12) else ("trixie", (3, 13))
PYTHON = "python{}.{}".format(*VERSION)
SYSTEM, SITE = BUILD / SUITE, BUILD / f"{PYTHON}-site"
PACKAGES = "jax", "jaxlib", "flax", "pytest", "hypothesis"


def program_missing() -> str:
    """Why programs for aarch64 cannot be built and run here, or an empty string."""
    return cross.missing() or ("" if shutil.which(QEMU) else f"{QEMU} is not installed (Debian: qemu-user-static)")


def missing() -> str:
    """Why there is no Python for aarch64 here, or an empty string."""
    if reason := program_missing():
        return reason
    if SYSTEM.exists():
        return ""
    if shutil.which("debootstrap") is None:
        return "debootstrap is not installed"
    return "" if os.getuid() == 0 else "debootstrap needs root"


def make() -> None:
    """Makes the system, and installs the packages, if they are missing.

    Debian's packages are unpacked, but not configured: that would take many minutes in qemu.
    """
    with _locked():
        if not SYSTEM.exists():
            _make_system()
        if not SITE.exists():
            _install_packages()


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One process at a time makes what several may use."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def checkout() -> pathlib.Path:
    """A folder with the tests and the package, which is cross-compiled; the processes of a run of pytest share it."""
    folder = BUILD / f"checkout_{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    with _locked():
        if not folder.exists():
            for old in BUILD.glob("checkout_*"):
                shutil.rmtree(old)
            part = BUILD / "part_checkout"
            shutil.rmtree(part, ignore_errors=True)
            _make_checkout(part)
            part.rename(folder)
    return folder


def _make_checkout(folder: pathlib.Path) -> None:
    wheels = BUILD / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    variables = os.environ | cross.variables(VERSION == (3, 11)) | {"JAX_DCN_CUDA": "OFF"}
    _run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", wheels, ROOT, variables=variables)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def run(folder: pathlib.Path, *arguments: object, cpu: str = "max") -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder that contains the package. `cpu` is a processor that qemu knows."""
    make()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(BUILD),
        "PYTHONHOME": str(SYSTEM / "usr"),
        "PYTHONPATH": f"{SITE}:{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # of XLA, which qemu would run for minutes
    }
    command = [QEMU, "-cpu", cpu, "-L", SYSTEM, SYSTEM / "usr/bin" / PYTHON, *arguments]
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _make_system() -> None:
    part = BUILD / f"part_{SUITE}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    include = f"--include={PYTHON},lib{PYTHON}-stdlib"
    _run("debootstrap", "--arch=arm64", "--variant=minbase", "--download-only", include, SUITE, part)
    for package in sorted(part.glob("var/cache/apt/archives/*.deb")):
        _run("dpkg-deb", "-x", package, part)
        package.unlink()
    part.rename(SYSTEM)


def _install_packages() -> None:
    part = BUILD / f"part_{SITE.name}"
    shutil.rmtree(part, ignore_errors=True)
    version = [f"--python-version={VERSION[0]}.{VERSION[1]}", "--implementation=cp"]
    abis = [f"--abi={abi}" for abi in ("cp{}{}".format(*VERSION), "abi3", "none")]
    options = [*cross.pip_options(), *version, *abis]
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", part, *options, *PACKAGES)
    part.rename(SITE)


def _run(*command: object, variables: Mapping[str, str] = os.environ) -> None:
    words = [str(word) for word in command]
    result = subprocess.run(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, f"{words}\n{result.stdout[-4000:]}"
