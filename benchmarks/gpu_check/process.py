"""Runs a command with a time limit."""

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from benchmarks.reports.report import read_rows

ROOT = Path(__file__).parents[2]
GRACE = 10  # seconds that a command has to end when it is interrupted
ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda,cpu",  # the CPU is needed for expected values
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # processes share the GPU, and ncu saves all memory of a process
    "PYTHONUNBUFFERED": "1",
}


def run(*command, limit, rows_option=None):
    """Runs a command for at most `limit` seconds: GRACE seconds before, it is interrupted by SIGINT.

    The result has "ok", "stopped at its limit" and the "output", which is printed. With `rows_option`, such as "--out",
    it also has the "rows" that the command has added to the file that this option names, whether or not it was stopped.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        words = [*map(str, command), *([f"{rows_option}={path}"] if rows_option else [])]
        print(f"$ {' '.join(words)}", flush=True)
        with open(Path(folder) / "output", "wb+") as output:
            code, stopped = wait(words, limit, output)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(text, flush=True)
        result = {"ok": code == 0, "stopped at its limit": stopped, "output": text}
        return result | ({"rows": read_rows(path)} if rows_option else {})


def wait(command, limit, output):
    """The exit status of a command, and whether it was stopped."""
    streams = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | ENVIRONMENT, **streams)
    stopped = False
    try:
        process.wait(max(limit - GRACE, 0))
    except subprocess.TimeoutExpired:
        stopped = True
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    finally:  # ends the processes that it started, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, stopped
