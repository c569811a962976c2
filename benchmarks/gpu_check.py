"""`make gpu-check`: builds for this machine's GPU, tests on it and on the CPU, measures, and writes a report.

It uses the Python that runs it and downloads nothing, so that it works without a network.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.readers.junit import read_tests
from benchmarks.reports.gpu_check import page
from benchmarks.reports.report import RESULTS

ROOT = Path(__file__).parents[1]
MINUTES = 9
LIMITS = {"build": 120, "tests": 270}  # seconds; the benchmark has the rest
LEAST_SECONDS = 60
WORKERS = 8  # test processes that share the GPU


def main():
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file, the table and the plots")
    args = parser.parse_args()
    begin = time.perf_counter()
    gpu = query_gpu()
    if gpu is None:
        print("Skipped: no NVIDIA GPU here (nvidia-smi finds none).")
        return 0

    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{date.today()}-gpu"
    report = {"gpu": gpu, "date": str(date.today())}

    def seconds_left():
        return MINUTES * 60 - (time.perf_counter() - begin)

    steps = {
        "build": lambda: build(gpu["compute capability"]),
        "tests": run_tests,
        "benchmark": lambda: run_benchmark(max(seconds_left() - 15, LEAST_SECONDS), args.out),
    }
    for name, step in steps.items():
        report[name] = step()
        report["seconds"] = round(time.perf_counter() - begin)
        # Written after each step, so that a run that is stopped leaves its results.
        stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        stem.with_suffix(".md").write_text(page(report))
        if not report["build"]["ok"]:
            break
    print(page(report))
    return 0 if all(report.get(name, {}).get("ok") for name in steps) else 1


def query_gpu():
    fields = {"name": "name", "compute capability": "compute_cap", "driver": "driver_version", "memory": "memory.total"}
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode or not result.stdout.strip():
        return None
    return dict(zip(fields, result.stdout.splitlines()[0].split(", "), strict=True))


def build(compute_capability):
    architecture = f"{compute_capability.replace('.', '')}-real"
    return run(
        *(sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--editable", "."),
        "-Ccmake.define.JAX_DCN_CUDA=ON",
        f"-Ccmake.define.CMAKE_CUDA_ARCHITECTURES={architecture}",
        limit=LIMITS["build"],
    )


def run_tests():
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        options = ["-q", f"--junitxml={results}"]
        if find_spec("xdist"):
            options += ["-n", str(min(WORKERS, os.cpu_count()))]
        step = run(sys.executable, "-m", "pytest", *options, limit=LIMITS["tests"])
        try:
            step |= read_tests(ElementTree.parse(results))
        except (OSError, ElementTree.ParseError) as error:
            return step | {"ok": False, "unreadable": str(error)}
    # If all tests of the GPU were skipped, nothing was tested.
    return step | {"ok": step["ok"] and step["backends"].get("cuda", {}).get("passed", 0) > 0}


def run_benchmark(limit, out):
    """Reaching the time limit is no failure: the results name what was not reached."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks", "operators", "--seconds", str(round(limit - 30))]
        command += ["--out", folder, *([] if find_spec("matplotlib") else ["--no-plot"])]
        step = run(*command, limit=limit)
        out.mkdir(parents=True, exist_ok=True)
        for path in Path(folder).iterdir():
            if path.suffix == ".json":
                step["results"] = json.loads(path.read_text())
            elif path.suffix == ".md":
                step["page"] = path.read_text()
            else:
                shutil.copy(path, out)
    refused = [
        (name, reason)
        for row in step.get("results", {}).get("operators", ())
        for name, reason in row["refused"].items()
    ]
    wrong = [reason for name, reason in refused if name == "jax_dcn" or reason.startswith("differs")]
    return step | {"ok": "results" in step and not wrong}


def run(*command, limit):
    """Runs a step, shows its output, and stops it at its limit: first by SIGINT, so that it can write its results."""
    begin = time.perf_counter()
    print(f"$ {' '.join(map(str, command))}", flush=True)
    # With this, a GPU that JAX cannot use is an error. Without it, JAX would use the CPU.
    environment = os.environ | {"JAX_PLATFORMS": "cuda,cpu"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    stopped = False
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        stopped = True
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
    finally:  # ends the processes that it started, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    seconds = round(time.perf_counter() - begin)
    return {"ok": process.returncode == 0, "seconds": seconds, "stopped at its limit": stopped}


if __name__ == "__main__":
    sys.exit(main())
