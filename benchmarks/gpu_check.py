"""`make gpu-check`, or `python -m benchmarks.gpu_check`: builds for this machine's GPU, and tests and measures there.

Each step is a command with a time limit, in all less than 10 minutes. What it printed, its exit status and its time are
written to a page and to a JSON file as soon as it ends. The steps use the Python that runs this, and no network.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.reports.formatting import table_head, table_line
from benchmarks.reports.report import RESULTS, write_json, write_text
from benchmarks.support import cuda_tools, gpu
from benchmarks.support.sources import ROOT, commit

GRACE = 10  # seconds that a command has to end when it is interrupted
SHOWN_LINES = 200  # of the end of what a step prints; the JSON file has all of it
BUILD = "build/gpu_check"


class Step(NamedTuple):
    seconds: int  # time limit
    script: str  # of bash


FACTS = """
nvidia-smi
nvidia-smi -q -d CLOCK
for tool in nvcc ncu compute-sanitizer g++ cmake ninja; do
  echo "$tool: $($tool --version 2>&1 | grep -m 1 '[0-9]\\.[0-9]')"
done
$PYTHON -m pip list | grep -iE '^(jax|flax|numpy|torch|nvidia-cuda-runtime)'
"""
INSTALL = f"""
$PYTHON -m pip install --no-index --no-build-isolation --no-deps --editable . -Cbuild-dir={BUILD} \
  -Ccmake.define.JAX_DCN_CUDA=ON -Ccmake.define.JAX_DCN_CUDA_CODE=$ARCHITECTURE
$PYTHON -m jax_dcn
$PYTHON -c "import jax; assert jax.default_backend() == 'gpu', jax.devices()"
"""
# Values, gradients and determinism of each operator, the most important first: what is not reached is cut off. One test
# runs after the other, in order: other ways to distribute them give each process a part of the list. pytest-benchmark
# warns if it is installed beside xdist, and warnings are errors.
TESTS = (
    "tests/operators/test_determinism.py",
    "tests/operators/test_values.py",
    "tests/operators/test_derivatives.py::test_tangents",
    "tests/deform_conv/test_dtypes.py::test_against_float64",
    "tests/deform_conv/test_vectors.py::test_values",
    "tests/roi_pool/test_values.py",
    "tests/operators/test_special.py::test_only_pixels_with_a_weight_are_read",
    "tests/test_boxes.py::test_a_loop_in_numpy_keeps_the_same",
)
RUN_TESTS = f"""
distribute=$($PYTHON -c 'import xdist' 2>/dev/null && echo "-n 8 --dist load --maxschedchunk 1" || true)
$PYTHON -m pytest -q -m "not thorough" -p no:benchmark --continue-on-collection-errors --platform=cuda $distribute \
  {" ".join(TESTS)}
"""
# Of arrays that fill the memory, one after the other.
LARGE = """
XLA_PYTHON_CLIENT_ALLOCATOR=platform $PYTHON -m pytest -q -m thorough -p no:benchmark --platform=cuda \
  tests/operators/test_large.py
"""
# The first launch of each gather of the convolution and of each kernel of the sort. By default ncu fixes the clocks,
# which not every machine allows, and follows the compilers that XLA may start.
PROFILED = "::regex:^(SampleColumns|OffsetCotangent|XCotangent|Partition|SortBins)Kernel$:1"
PROFILE = (
    f"ncu --kernel-id '{PROFILED}' --clock-control none --target-processes application-only --section SpeedOfLight "
    "--section MemoryWorkloadAnalysis --section SchedulerStats --section WarpStateStats --section Occupancy "
    "--section LaunchStats $PYTHON -m benchmarks.kernel_times --once --cases"
)
# A case of each operator, with an allocation of exactly its size for each array.
SANITIZED = "$PYTHON -m benchmarks.kernel_times --small --once --cases A:1 M3:1 W1:1 R2:1 P3:1 S1:1"
SANITIZE = "XLA_PYTHON_CLIENT_ALLOCATOR=platform compute-sanitizer --kernel-name kns=dcn --error-exitcode 1 --tool"
STEPS = {
    "facts": Step(10, FACTS),
    "build": Step(120, INSTALL),
    "tests": Step(90, RUN_TESTS),
    "large": Step(35, LARGE),
    "kernels": Step(90, "$PYTHON -m benchmarks.kernel_times"),
    "ratios": Step(110, "$PYTHON -m benchmarks.gpu_ratios"),
    "profile-A": Step(25, f"{PROFILE} A:16"),
    "profile-C": Step(25, f"{PROFILE} C:16"),
    **{tool: Step(30, f"{SANITIZE} {tool} {SANITIZED}") for tool in ("memcheck", "racecheck", "synccheck")},
}


def main(arguments=None):
    args = parse(arguments)
    identity = gpu.identity()
    if identity is None:
        print("Skipped: no NVIDIA GPU here (nvidia-smi finds none).")
        return 0
    variables = {
        "PYTHON": sys.executable,
        "ARCHITECTURE": identity["compute capability"].replace(".", ""),
        "PATH": cuda_tools.search_path(),
        "JAX_PLATFORMS": "cuda,cpu",  # the CPU is needed for expected values
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # processes share the GPU, and ncu saves all memory of a process
        "PYTHONUNBUFFERED": "1",
    }
    now = datetime.now()
    report = {"date": f"{now:%Y-%m-%d %H:%M}", "commit": commit(), "gpu": identity, "steps": {}}
    words = "".join(letter if letter.isalnum() else " " for letter in identity["name"].lower()).split()
    path = args.out / "-".join([f"{now:%Y-%m-%d-%H%M%S}", "gpu", *words])
    for name in args.only:
        result = report["steps"][name] = run(STEPS[name], variables)
        write_json(path.with_suffix(".json"), report)
        write_text(path.with_suffix(".md"), page(report))
        print(f"## {name}\n\n{result['output']}\n{outcome(result)}\n", flush=True)
        if name == "build" and result["exit status"]:
            break  # the others would run what was built before
    return 1 if any(result["exit status"] for result in report["steps"].values()) else 0


def run(step, variables):
    begin = time.perf_counter()
    interrupt = ["timeout", "--signal=INT", f"--kill-after={GRACE}", str(step.seconds)]
    with tempfile.TemporaryFile() as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        done = subprocess.run([*interrupt, "bash", "-ec", step.script], cwd=ROOT, env=os.environ | variables, **streams)
        output.seek(0)
        text = output.read().decode(errors="replace")
    seconds = round(time.perf_counter() - begin, 1)
    return {"exit status": done.returncode, "seconds": seconds, "script": step.script.strip(), "output": text}


def outcome(result):
    status = result["exit status"]
    if status in (124, 137):  # of timeout, if it has interrupted or killed the command
        return "stopped at its limit"
    return f"**failed** with status {status}" if status else "passed"


def page(report):
    gpu = ", ".join(f"{key} {value}" for key, value in report["gpu"].items())
    table = [table_head(["step", "result", "seconds"])]
    table += [table_line([name, outcome(step), str(step["seconds"])]) for name, step in report["steps"].items()]
    parts = ["# GPU check", f"{report['date']}, commit {report['commit']}, {gpu}.", "\n".join(table)]
    for name, step in report["steps"].items():
        shown = "\n".join(step["output"].splitlines()[-SHOWN_LINES:])
        parts += [f"## {name}", f"~~~text\n{shown}\n~~~"]
    return "\n\n".join(parts) + "\n"


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--only", type=names, default=list(STEPS), metavar="STEP,…", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the two files")
    return parser.parse_args(arguments)


def names(text):
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
