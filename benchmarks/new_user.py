"""`python -m benchmarks.new_user`: how long a user's first commands take in new clones, without pip's cache.

Nothing else should run on the machine meanwhile.
"""

import itertools
import os
import resource
import subprocess
import tempfile
import time
from statistics import median

from benchmarks.reports.formatting import list_named, markdown, paragraph
from benchmarks.reports.report import parser, write_page
from benchmarks.support.machine import cores, processor
from benchmarks.support.sources import ROOT, commit

BUILD = "rm -rf build wheels && {} .venv/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir wheels ."
NO_CACHES = {"PIP_NO_CACHE_DIR": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}  # each run does all the work
INSTALL = "python3 -m venv {0} && {0}/bin/pip install --quiet"
# The commands of each clone, one after the other: what they do, and the command.
CLONES = [
    {
        "the demo": "make demo",
        "the tests after it": "make test",
        "a wheel without CUDA": BUILD.format("JAX_DCN_CUDA=OFF"),
        "a wheel with CUDA": BUILD.format("JAX_DCN_CUDA=ON"),
        "the installation of this wheel": f"{INSTALL.format('other')} wheels/*.whl",
    },
    {"the tests": "make test"},
    {"the installation without CUDA": f"{INSTALL.format('new')} . --config-settings=cmake.define.JAX_DCN_CUDA=OFF"},
]
NOTE = (
    "Each cell has seconds by the clock / processor seconds, of all processes. Each clone begins with no virtual "
    "environment, and pip has no cache. The build tools of the wheels are installed already. "
    "Where there is no GPU, a wheel with CUDA has machine code for all of them."
)


def main():
    options = parser("new_user", __doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=3, help="how often (%(default)s)")
    options = options.parse_args()
    machine = f"Commit {commit()}; {processor()}, {cores()} cores."
    named = [(str(clone), what) for clone, commands in enumerate(CLONES, 1) for what in commands]
    commands = list_named({what: f"`{command}`" for clone in CLONES for what, command in clone.items()})
    runs = []
    for number in range(1, options.runs + 1):
        runs.append(list(itertools.chain.from_iterable(map(run, CLONES))))
        rows = [["clone", "what", *(f"run {k}" for k in range(1, number + 1)), "median"]]
        for names, times in zip(named, zip(*runs, strict=True), strict=True):
            middle = [median(column) for column in zip(*times, strict=True)]
            rows.append([*names, *(f"{wall:.0f} / {cpu:.0f}" for wall, cpu in (*times, middle))])
        sections = [paragraph(f"{machine} {NOTE}"), markdown(rows), commands]
        write_page(options.out, "new-user", "The first commands of a user", sections)


def run(commands):
    """Seconds and processor seconds of each command in a new clone."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        return [measure(command, folder) for command in commands.values()]


def measure(command, folder):
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True, cwd=folder, env=os.environ | NO_CACHES)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(f"{seconds:.0f} s, {processor_seconds:.0f} processor seconds", flush=True)
    return seconds, processor_seconds


if __name__ == "__main__":
    main()
