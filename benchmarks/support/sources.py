"""The state of the sources that results were made with. It needs neither jax nor jax_dcn."""

import hashlib
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What decides the results, in the folders of the repository.
SOURCES = ("CMakeLists.txt", "pyproject.toml", "cmake/*", "jax_dcn/**/*.py", "lib/**/*.*", "tests/**/*.*")
SOURCES += ("benchmarks/**/*.py",)


def commit():
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def digest_of_sources():
    """A hash of the sources. The commit would not do: results change it, and sources may be copied without git."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()}):
        if "__pycache__" in path.parts:
            continue
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
