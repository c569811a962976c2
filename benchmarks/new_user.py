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

from benchmarks.reports.formatting import markdown, paragraph
from benchmarks.reports.report import parser, write_page
from benchmarks.support.machine import cores, processor
from benchmarks.support.sources import ROOT, commit

WHEEL = "rm -rf build && .venv/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir wheels ."
NEW = "python3 -m venv new && new/bin/pip install --quiet"
# The commands of each clone, one after the other.
CLONES = [
    ["make demo", "make test", f"JAX_DCN_CUDA=OFF {WHEEL}", f"JAX_DCN_CUDA=ON {WHEEL}", f"{NEW} wheels/*.whl"],
    ["make test"],
    [f"JAX_DCN_CUDA=OFF {NEW} ."],
]
NOTE = (
    "Each column is a run: seconds by the clock / processor seconds, of one core each. Commands of a clone follow each "
    "other. Those with `pip wheel` compile the kernels, and those with ON the CUDA kernels for all architectures, too; "
    "their build tools are installed already."
)


def main():
    options = parser("new_user", __doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=3, help="how often (%(default)s)")
    options = options.parse_args()
    names = [(clone, command) for clone, commands in enumerate(CLONES, 1) for command in commands]
    runs = [list(itertools.chain.from_iterable(map(run, CLONES))) for _ in range(options.runs)]
    rows = [["clone", "command", *(f"run {number}" for number in range(1, options.runs + 1)), "median"]]
    for (clone, command), times in zip(names, zip(*runs, strict=True), strict=True):
        middle = [median(column) for column in zip(*times, strict=True)]
        rows.append([str(clone), f"`{command}`", *(f"{wall:.0f} / {cpu:.0f}" for wall, cpu in (*times, middle))])
    machine = f"Commit {commit()}; {processor()}, {cores()} cores."
    write_page(
        options.out, "new-user", "The first commands of a user", [paragraph(f"{machine} {NOTE}"), markdown(rows)]
    )


def run(commands):
    """Seconds and processor seconds of each command in a new clone."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        return [measure(command, folder) for command in commands]


def measure(command, folder):
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True, cwd=folder, env=os.environ | {"PIP_NO_CACHE_DIR": "1"})
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(f"{seconds:.0f} s, {processor_seconds:.0f} processor seconds", flush=True)
    return seconds, processor_seconds


if __name__ == "__main__":
    main()
