"""A system of Linux on aarch64 in a folder, whose Python qemu runs, with jax's wheels and this package.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static debootstrap. It needs a network, and debootstrap root.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from tests.wheels import cross
from tests.wheels.commands import ROOT, made
from tests.wheels.commands import run as command

BUILD = ROOT / "build" / "aarch64"
QEMU = "qemu-aarch64-static"
# Module files of Python 3.11 are for 3.11 only; those of later ones have the stable ABI.
SUITE, VERSION = ("bookworm", (3, 11)) if sys.version_info < (3, 12) else ("trixie", (3, 13))
PYTHON = "python{}.{}".format(*VERSION)
SYSTEM, SITE = BUILD / SUITE, BUILD / f"{PYTHON}-site"
PACKAGES = "jax", "jaxlib", "flax"


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


def run(folder: pathlib.Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder that contains the package."""
    made(SYSTEM, _make_system)
    made(SITE, _install_packages)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(BUILD),
        "PYTHONHOME": str(SYSTEM / "usr"),
        "PYTHONPATH": f"{SITE}:{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # of XLA, which qemu would run for minutes
    }
    words = [QEMU, "-L", SYSTEM, SYSTEM / "usr/bin" / PYTHON, *arguments]
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _make_system(folder: pathlib.Path) -> None:
    """Debian's packages are unpacked, but not configured: that would take many minutes in qemu."""
    include = f"--include={PYTHON},lib{PYTHON}-stdlib"
    command("debootstrap", "--arch=arm64", "--variant=minbase", "--download-only", include, SUITE, folder)
    for package in sorted(folder.glob("var/cache/apt/archives/*.deb")):
        command("dpkg-deb", "-x", package, folder)
        package.unlink()


def _install_packages(folder: pathlib.Path) -> None:
    version = [f"--python-version={VERSION[0]}.{VERSION[1]}", "--implementation=cp"]
    abis = [f"--abi={abi}" for abi in ("cp{}{}".format(*VERSION), "abi3", "none")]
    options = [*cross.pip_options(), *version, *abis]
    command(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *options, *PACKAGES)
