"""The steps of `make gpu-check`: each is a function that returns its results, "ok" among them."""

import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from benchmarks.gpu_check import ncu
from benchmarks.gpu_check.process import ROOT, run
from benchmarks.support import gpu
from benchmarks.support.cuda_tools import find

PYTHON = (sys.executable, "-m")
BUILD = ROOT / "build" / "gpu_check"
LAUNCHES = BUILD / "launches"  # a program that calls every kernel
PROFILED = ("A:16", "C:16")
TEST_PROCESSES = 8  # that share the GPU
# Values, gradients and determinism of each operator, the most important first: what is not reached is cut off.
TESTS = (
    "tests/operators/test_determinism.py",
    "tests/operators/test_derivatives.py::test_gradients",
    "tests/operators/test_derivatives.py::test_tangents",
    "tests/deform_conv/test_dtypes.py::test_against_float64",
    "tests/deform_conv/test_values.py::test_numpy_reference",
    "tests/deform_conv/test_fused.py::test_values",
    "tests/deform_aggregation/test_values.py::test_the_numpy_reference",
    "tests/deform_aggregation/test_values.py::test_dtypes",
    "tests/roi_pool/test_align.py",
    "tests/roi_pool/test_values.py",
    "tests/sampling/test_values.py::test_numpy_reference",
    "tests/sampling/test_values.py::test_dtypes",
    "tests/operators/test_special.py::test_only_pixels_with_a_weight_are_read",
    "tests/operators/test_random_problems.py",
    "tests/test_boxes.py::test_a_loop_in_numpy_keeps_the_same",
)
NOT_TESTED = "No test passed on the GPU; tests that were skipped have their reasons above."
CLEAN = {  # what a tool of compute-sanitizer, or the program without one, says if there is no error
    "none": "every launch is done",
    "memcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "synccheck": "ERROR SUMMARY: 0 errors",
    "initcheck": "ERROR SUMMARY: 0 errors",
}


class Context(NamedTuple):
    gpu: dict[str, str]
    limit: float  # seconds
    is_rehearsal: bool  # on a CPU


class Step(NamedTuple):
    share: float  # of the time
    run: Callable[[Context], dict[str, Any]]


def read_facts(context):
    return {"ok": True, "facts": gpu.facts()}


def build(context):
    """Installs the package with kernels for this GPU, and links the same kernels to the program of the sanitizers."""
    end = time.monotonic() + context.limit
    architecture = context.gpu["compute capability"].replace(".", "")
    LAUNCHES.unlink(missing_ok=True)
    package = run(
        *(*PYTHON, "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--editable", "."),
        f"-Cbuild-dir={BUILD}",
        "-Ccmake.define.JAX_DCN_CUDA=ON",
        f"-Ccmake.define.JAX_DCN_CUDA_CODE={architecture}",
        limit=context.limit,
    )
    if package["ok"]:
        lib, compiled = ROOT / "lib", LAUNCHES.with_suffix(".o")
        nvcc = (find("nvcc"), "-std=c++17", f"-arch=sm_{architecture}", f"-I{lib}", f"-I{lib / 'cuda'}")
        kernels = (BUILD / "CMakeFiles" / "_cuda.dir" / "lib" / "cuda").glob("*.cu.o")
        source = ROOT / "tests" / "kernels" / "launches.cc"
        run(*nvcc, "-x", "cu", "-c", source, "-o", compiled, limit=end - time.monotonic())
        run(*nvcc, compiled, *kernels, "-o", LAUNCHES, limit=end - time.monotonic())
    return package


def smoke(context):
    """All kernels must have been compared."""
    step = measure(context, "benchmarks.smoke")
    unchecked = set(step["about"].get("calls", ())) - {row["call"] for row in step["rows"]}
    return step | {"ok": step["ok"] and not unchecked and all(row["ok"] for row in step["rows"])}


def time_kernels(context):
    return measure(context, "benchmarks.kernel_times")


def compare(context):
    return measure(context, "benchmarks.gpu_ratios")


def profile(context):
    """A machine on which nothing can be profiled does not fail the check."""
    if find("ncu") is None:
        return {"ok": True, "why": "There is no profile: ncu is not installed."}
    end, launches, why = time.monotonic() + context.limit, [], ""
    for case in PROFILED:
        program = (*PYTHON, "benchmarks.kernel_times", "--once", "--cases", case, *small(context))
        output = run(find("ncu"), *ncu.options(), *program, limit=end - time.monotonic())["output"]
        found = ncu.read(output)
        launches += [{"case": case, **launch} for launch in found]
        why += "" if found else f"No profile of {case}: {'; '.join(ncu.errors(output)) or output[-500:].strip()} "
    return {"ok": True, "launches": launches, "why": why}


def run_tests(context):
    """Some tests on the GPU; those of the CPU can run on any machine. They pass if some did, and none failed."""
    platform = "cpu" if context.is_rehearsal else "cuda"
    # One test after the other, in order: other ways to distribute them give each process a part of the list.
    processes = ["-n", str(min(TEST_PROCESSES, os.cpu_count())), "--dist", "load", "--maxschedchunk", "1"]
    options = ["-q", "--continue-on-collection-errors", f"--platform={platform}"]
    options += processes if find_spec("xdist") else []
    step = run(*PYTHON, "pytest", *options, *TESTS, limit=context.limit, rows_option="--outcomes")
    has_passed = any(row["outcome"] == "passed" and row["backend"] == platform for row in step["rows"])
    has_failed = any(row["outcome"] == "failed" for row in step["rows"])
    ended = step["ok"] or step["stopped at its limit"]
    return step | {"ok": has_passed and not has_failed and ended} | ({} if has_passed else {"why": NOT_TESTED})


def sanitize(context):
    """Runs every kernel, alone and under the tools of compute-sanitizer, as far as there is time."""
    sanitizer = find("compute-sanitizer")
    if sanitizer is None or not LAUNCHES.exists():
        missing = "compute-sanitizer is not installed" if sanitizer is None else "the step build made no program"
        return {"ok": False, "why": f"Nothing was checked: {missing}."}
    end, rows = time.monotonic() + context.limit, []
    for tool, clean in CLEAN.items():
        command = [] if tool == "none" else [sanitizer, "--tool", tool, "--error-exitcode", "1"]
        # initcheck takes memory that was filled in advance to be written.
        options = ["--leave-unwritten"] if tool == "initcheck" else []
        result = run(*command, LAUNCHES, *options, limit=end - time.monotonic())
        output, is_clean = result["output"], result["ok"] and clean in result["output"]
        is_skipped = result["stopped at its limit"] or "Device not supported" in output
        outcome = "passed" if is_clean else "skipped" if is_skipped else "failed"
        rows.append({"test": tool, "outcome": outcome, "message": "" if is_clean else output[-1000:]})
    outcomes = {row["test"]: row["outcome"] for row in rows}
    return {"ok": outcomes["memcheck"] == "passed" and "failed" not in outcomes.values(), "rows": rows}


# Without the build, nothing else runs. It leaves much of its share to the later steps.
STEPS = {
    "facts": Step(0.01, read_facts),
    "build": Step(0.28, build),
    "smoke": Step(0.08, smoke),
    "kernels": Step(0.13, time_kernels),
    "ratios": Step(0.19, compare),
    "profile": Step(0.10, profile),
    "tests": Step(0.14, run_tests),
    "sanitizers": Step(0.07, sanitize),
}


def small(context):
    return ["--small"] if context.is_rehearsal else []


def measure(context, module):
    """Runs a module whose first row says which platform it ran on. JAX may silently have fallen back to the CPU.

    What reaches the time limit has not failed: rows in the order of importance were written before.
    """
    step = run(*PYTHON, module, *small(context), limit=context.limit, rows_option="--out")
    about, *rows = step["rows"] or [{"platform": None}]
    expected = "cpu" if context.is_rehearsal else "gpu"
    found = step | {"about": about, "rows": rows}
    if about["platform"] not in (expected, None):
        return found | {"ok": False, "why": f"It ran on {about['platform']}, not on a {expected}."}
    return found | {"ok": bool(rows) and (step["ok"] or step["stopped at its limit"])}
