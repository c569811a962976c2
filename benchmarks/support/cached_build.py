"""Compiled files, cached in the build folder under a hash of their inputs."""

import fcntl
import functools
import hashlib
import pathlib
import subprocess
from collections.abc import Iterable, Sequence

ROOT = pathlib.Path(__file__).parents[2]
CACHE = ROOT / "build" / "compiled"


def build(name: str, command: Sequence, inputs: Iterable[pathlib.Path]) -> pathlib.Path:
    """The file that `command` writes with `-o`. It must depend only on `inputs` and the words of the command."""
    words = [str(word) for word in command]
    contents = [
        _version(words[0]).encode(),
        *(word.encode() for word in words),
        *(path.read_bytes() for path in inputs),
    ]
    folder = CACHE / hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]
    target = folder / name
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes wait instead of building the same file
        if not target.exists():
            written = folder / f"part_{name}"
            result = subprocess.run([*words, "-o", str(written)], capture_output=True, text=True)
            if result.returncode:
                raise RuntimeError(f"{' '.join(words)}\n{result.stderr}")
            written.replace(target)
    return target


@functools.cache
def _version(compiler):
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
