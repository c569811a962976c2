"""Runs commands, and makes folders that several processes share."""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

ROOT = pathlib.Path(__file__).parents[2]


def run(*command: object, folder: pathlib.Path = ROOT, variables: Mapping[str, str] = os.environ) -> str:
    """The output of a command, which ends the process if the command fails."""
    words = [str(word) for word in command]
    process = subprocess.run(words, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit(f"{process.stdout}\n{' '.join(words)} failed")
    return process.stdout.strip()


def made(folder: pathlib.Path, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """The folder, which `make` fills if it is missing; one process at a time, and all of it or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.parent / "part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder
