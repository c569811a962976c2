"""Runs a command with a time limit."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
GRACE = 10  # seconds that a command has to write its results when it is interrupted


def run(*command, limit, captured=False):
    """Runs a command for at most `limit` seconds: GRACE seconds before, it is interrupted by SIGINT.

    Returns "ok", "seconds", "stopped at its limit" and, if `captured`, "output", which is not shown then.
    """
    begin = time.perf_counter()
    print(f"$ {' '.join(map(str, command))}", flush=True)
    # With this, a GPU that JAX cannot use is an error. Without it, JAX would use the CPU.
    environment = os.environ | {"JAX_PLATFORMS": "cuda,cpu"}
    with tempfile.TemporaryFile() as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT} if captured else {}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **streams)
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
        seconds = round(time.perf_counter() - begin)
        result = {"ok": process.returncode == 0, "seconds": seconds, "stopped at its limit": stopped}
        if captured:
            output.seek(0)
            result["output"] = output.read().decode(errors="replace")
    return result
