"""The steps of `make gpu-check`: each is a function that returns its results, "ok" among them."""

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from benchmarks.counting import estimates
from benchmarks.gpu_check import ncu
from benchmarks.gpu_check.process import GRACE, run
from benchmarks.reports.report import RESULTS
from benchmarks.support import gpu
from benchmarks.support.cuda_tools import find

WORKERS = 8  # test processes that share the GPU
SANITIZER_WORKERS = 4
SANITIZERS = "tests/kernels/test_compute_sanitizer.py"
# The shapes of `python -m benchmarks operators`, the most important first: what is not reached is cut off. With one
# type, more shapes are reached.
RATIO_SHAPES = ("A16", "B16", "C16", "D16", "P1", "P3", "A", "B", "C", "D", "E", "F", "P2", "P4")
RATIO_DTYPE = "bfloat16"
PROFILED_SHAPE, PROFILED_LAUNCHES = "A", 8
PYTHON = (sys.executable, "-m")
# The tests record their backend as a property. For other families pytest warns of that, and warnings are errors.
PYTEST = (*PYTHON, "pytest", "-q", "-o", "junit_family=xunit1")


class Context(NamedTuple):
    gpu: dict[str, str]
    limit: float  # seconds
    out: Path


class Step(NamedTuple):
    seconds: int  # its share of the time
    run: Callable[[Context], dict[str, Any]]


def read_facts(context):
    return {"ok": True, "facts": gpu.facts()}


def build(context):
    architecture = context.gpu["compute capability"].replace(".", "")
    return run(
        *(*PYTHON, "pip", "install", "--no-build-isolation", "--no-deps", "--editable", "."),
        "-Ccmake.define.JAX_DCN_CUDA=ON",
        f"-Ccmake.define.JAX_DCN_CUDA_CODE={architecture}",
        limit=context.limit,
    )


def smoke(context):
    return run_for_json(*PYTHON, "benchmarks.smoke", limit=context.limit)


def run_tests(context):
    """Only the tests of the GPU, because those of the CPU can run on any machine."""
    step = run_pytest("--platform=cuda", f"--ignore={SANITIZERS}", workers=WORKERS, limit=context.limit)
    return failing_if_all_were_skipped(step)


def sanitize(context):
    return failing_if_all_were_skipped(run_pytest(SANITIZERS, workers=SANITIZER_WORKERS, limit=context.limit))


def failing_if_all_were_skipped(step):
    """The step, which fails if no test passed on the GPU, because nothing was tested then."""
    if step["backends"].get("cuda", {}).get("passed", 0) > 0:
        return step
    return step | {"ok": False, "why": "No test passed on the GPU; tests that were skipped have their reasons below."}


def compare_estimates(context):
    step = run_for_json(*PYTHON, "benchmarks.kernel_times", limit=context.limit)
    path, name = estimates.newest(RESULTS), context.gpu["name"]
    found = estimates.read(path, name) if path else {}
    for row in step.get("results", {}).get("rows", ()):
        estimate = found.get((row["call"], row["shape"], row["batch"]))
        row["estimate"] = estimate and estimate._asdict()
    why = "" if found else f"There are no estimates for {name}: `python -m benchmarks.machine_code` writes them."
    return step | {"estimates": path and path.name, "why": why}


def compare_operators(context):
    """Reaching the time limit is no failure: the results name what was not reached."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = max(round(context.limit - 2 * GRACE), 1)
        command = [*PYTHON, "benchmarks", "operators", "--seconds", str(seconds), "--dtypes", RATIO_DTYPE]
        command += ["--shapes", *RATIO_SHAPES]
        command += ["--out", folder, *([] if find_spec("matplotlib") else ["--no-plot"])]
        step = run(*command, limit=context.limit)
        for path in Path(folder).iterdir():
            if path.suffix == ".json":
                step["results"] = json.loads(path.read_text())
            elif path.suffix == ".md":
                step["page"] = path.read_text()
            else:
                shutil.copy(path, context.out)
    refused = [
        (name, reason)
        for row in step.get("results", {}).get("operators", ())
        for name, reason in row["refused"].items()
    ]
    wrong = [reason for name, reason in refused if name == "jax_dcn" or reason.startswith("differs")]
    return step | {"ok": "results" in step and not wrong}


def profile(context):
    """A machine on which nothing can be profiled does not fail the check."""
    if find("ncu") is None:
        return {"ok": True, "why": "There is no profile: ncu is not installed."}
    command = [find("ncu"), *ncu.options(PROFILED_LAUNCHES), *PYTHON, "benchmarks.kernel_times"]
    step = run(*command, "--once", "--shapes", PROFILED_SHAPE, limit=context.limit, captured=True)
    output = step.pop("output")
    launches = ncu.read(output)
    why = "" if launches else f"There is no profile: {'; '.join(ncu.errors(output)) or output[-500:].strip()}"
    return step | {"ok": True, "launches": launches, "why": why}


STEPS = {
    "facts": Step(5, read_facts),
    "build": Step(80, build),
    "smoke": Step(60, smoke),
    "tests": Step(150, run_tests),
    "sanitizers": Step(75, sanitize),
    "estimates": Step(40, compare_estimates),
    "ratios": Step(95, compare_operators),
    "profile": Step(30, profile),
}


def run_for_json(*command, limit):
    """Runs a command that writes a JSON file after each of its parts, so that one that is stopped has results too."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        step = run(*command, "--out", path, limit=limit)
        if not path.exists():
            return step | {"ok": False}
        return step | {"results": json.loads(path.read_text())}


def run_pytest(*arguments, workers, limit):
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        processes = ["-n", str(min(workers, os.cpu_count()))] if find_spec("xdist") else []
        step = run(*PYTEST, f"--junitxml={results}", *processes, *arguments, limit=limit)
        try:
            return step | read_tests(ElementTree.parse(results))
        except (OSError, ElementTree.ParseError) as error:
            return step | {"ok": False, "backends": {}, "unreadable": str(error)}


def read_tests(results):
    """The outcomes of each backend's tests, counted; the reasons for skips, counted; and the messages of failures."""
    outcomes, reasons, failures = {}, Counter(), {}
    for case in results.iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        counts = outcomes.setdefault(properties.get("backend", "none"), Counter())
        name = f"{case.get('classname')}::{case.get('name')}"
        failed = [problem for kind in ("failure", "error") for problem in case.iter(kind)]
        skipped = case.find("skipped")
        if failed:
            failures[name] = (failed[0].get("message") or failed[0].text or "")[:500]
        elif skipped is not None:
            reasons[skipped.get("message")] += 1
        counts["failed" if failed else "passed" if skipped is None else "skipped"] += 1
    return {"backends": outcomes, "reasons to skip": reasons, "failures": failures}
