"""Compiled files, cached in the build folder under a hash of their inputs."""

import functools
import hashlib
import pathlib
import subprocess
import tempfile
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
    target = CACHE / hashlib.sha256(b"\0".join(contents)).hexdigest()[:16] / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            written = pathlib.Path(folder) / name
            result = subprocess.run([*words, "-o", str(written)], capture_output=True, text=True)
            if result.returncode:
                raise RuntimeError(f"{' '.join(words)}\n{result.stderr}")
            written.replace(target)  # atomic, because other processes may build the same file
    return target


@functools.cache
def _version(compiler):
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
