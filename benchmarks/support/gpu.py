"""Reads which GPU this machine has. It needs neither jax nor jax_dcn."""

import shutil
import subprocess

IDENTITY = {"name": "name", "compute capability": "compute_cap", "driver": "driver_version", "memory": "memory.total"}


def identity():
    """Name, compute capability, driver and memory of the first GPU, or None if there is none."""
    line = _first_line(",".join(IDENTITY.values()))
    return dict(zip(IDENTITY, line.split(", "), strict=True)) if line else None


def sm_clock():
    """The clock of the SMs now, such as "1755 MHz", or None."""
    return _first_line("clocks.sm") or None


def _first_line(query):
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True)
    return "" if result.returncode else result.stdout.partition("\n")[0].strip()
