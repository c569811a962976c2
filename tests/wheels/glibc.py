"""Links against older versions of glibc's symbols, so that the wheels run on older systems.

glibc 2.34 moved dlopen, threads and shared memory from separate libraries into libc.so.6. There the same functions have
a new version and the old one. A linker that first finds stubs of the separate libraries takes the old one.
"""

import pathlib
import re
import subprocess

BASELINE = 2, 17  # the version of manylinux2014
MOVED = 2, 34
# The libraries, and how the names of their symbols begin.
LIBRARIES = {"libdl.so.2": "dl", "librt.so.1": "shm_", "libpthread.so.0": "(pthread|sem)_"}
# Code compiled with glibc 2.32 or newer reads this variable, which says whether it may skip locks.
SINGLE_THREADED = '__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;'


def older_versions(prefix: str) -> dict[str, str]:
    """The old versions of the symbols that moved."""
    libc = subprocess.check_output([f"{prefix}gcc", "-print-file-name=libc.so.6"], text=True).strip()
    symbols = subprocess.check_output([f"{prefix}objdump", "--dynamic-syms", libc], text=True)
    versions: dict[str, set[tuple[int, ...]]] = {}
    for version, name in re.findall(r"GLIBC_([\d.]+)\)?\s+(\w+)$", symbols, re.MULTILINE):
        versions.setdefault(name, set()).add(tuple(map(int, version.split("."))))
    older = {name: [v for v in of if v <= BASELINE] for name, of in versions.items() if MOVED in of}
    return {name: f"GLIBC_{'.'.join(map(str, max(of)))}" for name, of in older.items() if of}


def link_flags(folder: pathlib.Path, prefix: str) -> list[str]:
    """Writes stubs to the folder, and returns flags with which a linker prefers them.

    The names of the compiler and binutils begin with the prefix.
    """
    older = older_versions(prefix)
    if not older:
        return []
    for soname, begin in LIBRARIES.items():
        names = [name for name in older if re.match(begin, name)]
        of_version = {older[name]: [n for n in names if older[n] == older[name]] for name in names}
        script = folder / f"{soname}.map"
        script.write_text("".join(f"{version} {{ {'; '.join(of)}; }};\n" for version, of in of_version.items()))
        stubs = "".join(f"void {name}(void) {{}}\n" for name in names)
        flags = "-shared", "-nostdlib", f"-Wl,-soname={soname},--version-script={script}"
        gcc(prefix, stubs, folder / f"{soname.partition('.')[0]}.so", *flags)
    gcc(prefix, SINGLE_THREADED, folder / "single_threaded.o", "-c")
    return [f"-L{folder}", "-Wl,--push-state,--no-as-needed,-lpthread,--pop-state", f"{folder}/single_threaded.o"]


def gcc(prefix: str, source: str, output: pathlib.Path, *flags: str) -> None:
    command = [f"{prefix}gcc", "-fPIC", "-fno-builtin", *flags, "-x", "c", "-", "-o", str(output)]
    subprocess.run(command, input=source, text=True, check=True)
