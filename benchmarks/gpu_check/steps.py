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
PROFILED = ("C:16", "A:16")
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
CLEAN = {  # what a tool of compute-sanitizer says of a program without errors
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
    package = run(
        *(*PYTHON, "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--editable", "."),
        f"-Cbuild-dir={BUILD}",
        "-Ccmake.define.JAX_DCN_CUDA=ON",
        f"-Ccmake.define.JAX_DCN_CUDA_CODE={architecture}",
        limit=context.limit,
    )
    if not package["ok"]:
        return package
    nvcc, source, compiled = find("nvcc"), ROOT / "tests" / "kernels" / "launches.cc", LAUNCHES.with_suffix(".o")
    options = ("-std=c++17", f"-arch=sm_{architecture}", f"-I{ROOT / 'lib'}", f"-I{ROOT / 'lib' / 'cuda'}", "-x", "cu", "-c")
    kernels = (BUILD / "CMakeFiles" / "_cuda.dir" / "lib" / "cuda").glob("*.cu.o")
    program = run(nvcc, *options, source, "-o", compiled, limit=end - time.monotonic())
    linked = run(nvcc, compiled, *kernels, "-o", LAUNCHES, limit=end - time.monotonic())
    return package | ({} if program["ok"] and linked["ok"] else {"why": "There is no program for the sanitizers."})


def smoke(context):
    step = measure(context, "benchmarks.smoke")
    return step | {"ok": step["ok"] and all(row["ok"] for row in step["rows"])}


def time_kernels(context):
    return measure(context, "benchmarks.kernel_times")


def compare(context):
    return measure(context, "benchmarks.gpu_ratios")


def profile(context):
    """A machine on which nothing can be profiled does not fail the check."""
    if find("ncu") is None:
        return {"ok": True, "why": "There is no profile: ncu is not installed."}
    end, launches, why = time.monotonic() + context.limit, [], ""
    for number, case in enumerate(PROFILED):
        program = (*PYTHON, "benchmarks.kernel_times", "--once", "--cases", case, *small(context))
        limit = (end - time.monotonic()) / (len(PROFILED) - number)
        output = run(find("ncu"), *ncu.options(), *program, limit=limit, is_captured=True)["output"]
        found = ncu.read(output)
        launches += [{"case": case, **launch} for launch in found]
        why += "" if found else f"No profile of {case}: {'; '.join(ncu.errors(output)) or output[-500:].strip()} "
    return {"ok": True, "launches": launches, "why": why}


def run_tests(context):
    """Some tests on the GPU; those of the CPU can run on any machine. They pass if some did, and none failed."""
    platform = "cpu" if context.is_rehearsal else "cuda"
    processes = min(TEST_PROCESSES, os.cpu_count())
    parallel = ["-n", str(processes), "--dist", "worksteal"] if find_spec("xdist") else []
    options = ["-q", "--continue-on-collection-errors", f"--platform={platform}", *parallel]
    step = run(*PYTHON, "pytest", *options, *TESTS, limit=context.limit, rows_option="--outcomes")
    outcomes = {row["outcome"] for row in step["rows"] if row["backend"] in (platform, f"reference on {platform}")}
    has_passed = any(row["outcome"] == "passed" and row["backend"] == platform for row in step["rows"])
    ended_well = step["ok"] or step["stopped at its limit"]
    why = "" if has_passed else f"No test passed on {platform}; tests that were skipped have their reasons below."
    return step | {"ok": has_passed and "failed" not in outcomes and ended_well, "why": why}


def sanitize(context):
    """Runs every kernel, alone and under the tools of compute-sanitizer, as far as there is time."""
    end, rows, tool_path = time.monotonic() + context.limit, [], find("compute-sanitizer")
    for tool, clean in {"none": "every launch is done", **(CLEAN if tool_path else {})}.items():
        command = [] if tool == "none" else [tool_path, "--tool", tool, "--error-exitcode", "1"]
        # initcheck takes memory that was filled in advance to be written.
        options = ["--leave-unwritten"] if tool == "initcheck" else []
        result = run(*command, LAUNCHES, *options, limit=end - time.monotonic(), is_captured=True)
        output = result.pop("output")
        is_clean = result["ok"] and clean in output
        is_skipped = result["stopped at its limit"] or "Device not supported" in output
        outcome = "passed" if is_clean else "skipped" if is_skipped else "failed"
        rows.append({"test": tool, "outcome": outcome, "message": "" if is_clean else output[-1000:]})
    outcomes = [row["outcome"] for row in rows]
    why = "" if tool_path else "compute-sanitizer is not installed."
    return {"ok": "passed" in outcomes and "failed" not in outcomes, "rows": rows, "why": why}


STEPS = {
    "facts": Step(0.01, read_facts),
    "build": Step(0.11, build),
    "smoke": Step(0.08, smoke),
    "kernels": Step(0.17, time_kernels),
    "ratios": Step(0.23, compare),
    "profile": Step(0.11, profile),
    "tests": Step(0.19, run_tests),
    "sanitizers": Step(0.09, sanitize),
}


def small(context):
    return ["--small"] if context.is_rehearsal else []


def measure(context, module):
    """Runs a module whose first row says which platform it ran on. JAX may silently have fallen back to the CPU.

    What reaches the time limit has not failed: rows in the order of importance were written before.
    """
    step = run(*PYTHON, module, *small(context), limit=context.limit, rows_option="--out")
    about, *rows = step["rows"] or [{"platform": "nothing"}]
    expected = "cpu" if context.is_rehearsal else "gpu"
    is_right, ended = about["platform"] == expected, step["ok"] or step["stopped at its limit"]
    why = "" if is_right else f"It ran on {about['platform']}, not on a {expected}."
    return step | {"about": about, "rows": rows, "ok": is_right and ended and bool(rows), "why": why}
