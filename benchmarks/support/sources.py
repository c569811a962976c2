"""The state of the sources that results were made with. It needs neither jax nor jax_dcn."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commit():
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
