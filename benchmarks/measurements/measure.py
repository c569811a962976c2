"""Measures the time and memory of all implementations on one problem, after checking that their results agree."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.baselines import PASSES, Unavailable, summary_of
from benchmarks.measurements.timing import interleaved
from benchmarks.support.machine import cores

# The largest difference to jax_dcn's result, relative to its norm. By default, a GPU multiplies float32 arrays in tf32.
TOLERANCE = {"float32": 5e-3, "bfloat16": 5e-2, "float16": 5e-2}


def seconds(calls, repeats):
    return {"seconds": interleaved(calls, repeats)}


def measure(problem, implementations, repeats, times=seconds):
    """One row per pass: `times` and bytes of each implementation, or why it is missing or was refused."""
    prepared = prepare_all(problem, implementations)
    return [
        measure_pass(problem, implementations, calls, repeats, times) | {"pass": name}
        for name, calls in prepared.items()
    ]


def prepare_all(problem, implementations):
    """The call of each implementation and pass, or the reason why it has none."""

    def prepare(pass_, name):
        try:
            return implementations[name].prepare(problem, pass_ != PASSES[0])
        except Unavailable as reason:
            return reason

    jobs = [(pass_, name) for pass_ in PASSES for name in implementations]
    with ThreadPoolExecutor(cores()) as pool:
        compiling = {job: pool.submit(prepare, *job) for job in jobs if implementations[job[1]].compiles}
        prepared = {job: prepare(*job) for job in jobs if job not in compiling}
        prepared |= {job: future.result() for job, future in compiling.items()}
    return {pass_: {name: prepared[pass_, name] for name in implementations} for pass_ in PASSES}


def measure_pass(problem, implementations, calls, repeats, times):
    without = {name: str(reason) for name, reason in calls.items() if isinstance(reason, Unavailable)}
    calls = {name: call for name, call in calls.items() if name not in without}
    held, refused = check(problem, implementations, calls)
    calls = {name: call for name, call in calls.items() if name not in refused}
    return {
        **times(calls, repeats),
        "bytes": {name: held[name] for name in calls},
        "notes": {name: call.note for name, call in calls.items() if call.note},
        "without": without,
        "refused": refused,
    }


def check(problem, implementations, calls):
    """Calls each implementation once: the peak memory in bytes, and why some fail or differ from jax_dcn."""
    held, refused, ours = {}, {}, None
    for name, call in calls.items():
        try:
            result, held[name] = call.held(call)
            arrays = call.arrays(result)
        except Exception as error:  # the other ones can still be timed
            refused[name] = summary_of(error)
            continue
        if name == "jax_dcn":
            ours = arrays
        elif ours is None:
            refused[name] = "there is nothing of jax_dcn's to compare with"
        else:
            agrees_at = implementations[name].agrees_at
            expected = calls["jax_dcn"].at(agrees_at(problem)) if agrees_at else ours
            norm = np.linalg.norm
            errors = {key: float(norm(arrays[key] - expected[key]) / norm(expected[key])) for key in arrays}
            if wrong := [f"{k} by {e:.2%}" for k, e in errors.items() if not e <= TOLERANCE[problem.dtype]]:
                refused[name] = f"differs from jax_dcn in {', '.join(wrong)}"
    return held, refused
