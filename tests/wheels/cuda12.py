"""Builds the package with CUDA 12: the module runs on the drivers of CUDA 12 (R525 and newer) and of CUDA 13.

    python -m tests.wheels.cuda12 pip install ".[cuda12]"

runs a command with this compiler. PyPI does not have nvcc 12. Debian's package has it, which apt-get downloads and
which is unpacked, but not installed. Its headers, a static runtime, and a ptxas that knows newer architectures are in
NVIDIA's wheels.
"""

import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

from tests.wheels import cross, newer_architectures
from tests.wheels.commands import ROOT, made, run

BUILD = ROOT / "build" / "cuda12"
# The toolkit is made anew when one of these files changes.
SOURCES = pathlib.Path(__file__), pathlib.Path(newer_architectures.__file__)
TOOLKIT = BUILD / hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
NVCC = TOOLKIT / "bin" / "nvcc"
SUITE, PACKAGE = "trixie", "nvidia-cuda-toolkit=12.4.131~*"
KEYRING = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")
HEADERS = (
    "nvidia-cuda-runtime-cu12==12.4.127",
    "nvidia-cuda-nvcc-cu12==12.4.131",
    "nvidia-cuda-cccl-cu12==12.4.127.post1",
)
# The first release of CUDA 12 that has libcudart_static.a on PyPI, and the last ptxas of CUDA 12.
RUNTIME, PTXAS = "nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-nvcc-cu12==12.9.86"
MIRROR = "DEBIAN_MIRROR"
# nvcc finds the target by the name of the host compiler. The headers are the same.
TARGETS: dict[str, list[str]] = {"x86_64-linux": [], "sbsa-linux": cross.pip_options()}
PROFILE = """\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(TOP)/bin:
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/$(_TARGET_DIR_)/lib"
"""


def missing() -> str:
    """Why the toolkit cannot be had here, or an empty string."""
    if TOOLKIT.exists():
        return ""
    if platform.machine() != "x86_64" or not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        return "nvcc 12 comes from Debian's packages, for which this needs apt-get and dpkg-deb, on x86-64"
    if not KEYRING.exists():
        return f"{KEYRING} is missing (Debian: debian-archive-keyring)"
    return "" if _mirror() else f"apt-get knows no mirror of Debian: let {MIRROR} be the address of one"


def variables() -> dict[str, str]:
    """The environment variables of a build. The toolkit is made, if it is missing."""
    made(TOOLKIT, _make)
    return {"JAX_DCN_CUDA": "ON", "CUDACXX": str(NVCC)}


def _make(toolkit: pathlib.Path) -> None:
    downloads = toolkit / "downloads"
    debian = _debian(downloads / "debian")
    for folder in ("bin", "own", "nvvm/bin"):
        (toolkit / folder).mkdir(parents=True)
    for name in ("bin2c", "cudafe++", "nvlink"):
        shutil.copy(debian / "bin" / name, toolkit / "bin")
    shutil.copy(debian / "bin" / "fatbinary", toolkit / "own")
    library = debian / "lib" / "nvidia-cuda-toolkit"
    shutil.copy(library / "bin" / "nvcc", toolkit / "own")
    shutil.copytree(library / "bin" / "crt", toolkit / "own" / "crt")
    shutil.copy(library / "bin" / "cicc", toolkit / "nvvm" / "bin")
    shutil.copytree(library / "libdevice", toolkit / "nvvm" / "libdevice")
    (toolkit / "own" / "nvcc.profile").write_text(PROFILE)
    for name in ("nvcc", "fatbinary"):
        shutil.copy(newer_architectures.__file__, toolkit / "bin" / name)
        (toolkit / "bin" / name).chmod(0o755)
    for include in _install(downloads / "headers", [], *HEADERS).glob("*/include"):
        shutil.copytree(include, toolkit / "include", dirs_exist_ok=True)
    shutil.copy(_install(downloads / "ptxas", [], PTXAS) / "cuda_nvcc" / "bin" / "ptxas", toolkit / "bin")
    (toolkit / "bin" / "ptxas").chmod(0o755)
    for target, options in TARGETS.items():
        libraries = toolkit / "targets" / target / "lib"
        libraries.mkdir(parents=True)
        runtime = _install(downloads / target, options, RUNTIME)
        shutil.copy(runtime / "cuda_runtime" / "lib" / "libcudart_static.a", libraries)
        # nvcc links it, but nothing here uses it, and nvlink refuses one that is newer than itself.
        (libraries / "libcudadevrt.a").write_text("!<arch>\n")
    shutil.rmtree(downloads)


def _mirror() -> str:
    """The mirror of Debian that apt-get uses on this machine, or the one that the user names."""
    known = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True)
    found = [uri for uri in known.stdout.split() if re.search("/debian/?$", uri)]
    return os.environ.get(MIRROR) or next(iter(found), "")


def _debian(folder: pathlib.Path) -> pathlib.Path:
    """Downloads and unpacks Debian's package. apt-get has a state of its own, so this needs no root."""
    (folder / "lists" / "partial").mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [arch=amd64 signed-by={KEYRING}] {_mirror()} {SUITE} non-free\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State": folder,
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # its own user may not read this folder
    }
    apt = "apt-get", "--quiet", *(f"--option={name}={value}" for name, value in settings.items())
    run(*apt, "update", folder=folder)
    run(*apt, "download", PACKAGE, folder=folder)
    (package,) = folder.glob("*.deb")
    run("dpkg-deb", "--extract", package, folder)
    return folder / "usr"


def _install(folder: pathlib.Path, options: list[str], *packages: str) -> pathlib.Path:
    command = sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--target", folder
    run(*command, *options, *packages)
    return folder / "nvidia"


def main() -> None:
    if reason := missing():
        sys.exit(f"{reason}. With an nvcc 12 from elsewhere, set JAX_DCN_CUDA=ON CUDACXX=/path/to/nvcc instead.")
    environment = os.environ | variables()
    if command := sys.argv[1:]:
        sys.exit(subprocess.run(command, env=environment).returncode)
    print(NVCC)


if __name__ == "__main__":
    main()
