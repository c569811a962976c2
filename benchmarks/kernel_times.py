"""`python -m benchmarks.kernel_times`: the times of the kernels of operators and of their gradients on a GPU.

A program computes the result of an operator, or all of its gradients and nothing else, for bfloat16 data. The times of
its kernels come from jax's profiler. Of XLA's kernels, those are named that take a twentieth of the time or more.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax

from benchmarks.baselines import Call, summary_of
from benchmarks.measurements.sizes import small, with_batch
from benchmarks.measurements.trace import OWN, median, total, traced
from benchmarks.operators import operator_of
from benchmarks.reports.formatting import digits, table_head, table_line
from benchmarks.support import gpu
from benchmarks.support.machine import add_xla_flags, cores

# Shapes and batches, the most important first: what is not reached is cut off. Making operands of large images takes
# seconds.
CASES = ["A:16", "B:16", "C:16", "A:2", "B:2", "C:2", "M3:4", "M1:16", "F:16", "G:16", "E:16", "A:1", "B:1", "C:1"]
CASES += ["R2:1", "S1:2", "H:16", "W1:16", "P3:1", "D:1", "F:1", "G:1", "E:1", "M2:2", "P1:1", "S3:1", "S4:1"]
DTYPE, RUNS = "bfloat16", 5
COMPUTATIONS = ("forward", "gradients")
HEAD = ("case", "pass", "kernel", "launches", "µs", "µs with waiting", "SM clock")
XLA_FLAGS = "--xla_gpu_enable_command_buffer="  # in CUDA graphs the profiler sees no kernels
ONCE_FLAGS = "--xla_gpu_autotune_level=0"  # for the package's kernels alone; a profiler would slow the autotuning
AT_ONCE = 4  # cases, whose programs are compiled at the same time
SHARE = 0.05  # of the time of a program, from which on a kernel of XLA's is named


def find(case, is_small=False):
    """The operator and the shape of a case."""
    name, batch = case.split(":")
    operator = operator_of(name)
    shape = with_batch(operator.shapes[name], int(batch))
    return operator, small(shape) if is_small else shape


def programs(cases, is_small=False):
    """By case and computation: the compiled program, or the error that its compilation raised."""
    default_device = jax.config.jax_default_device  # new threads do not inherit it

    def prepare(operator, problem, computation):
        varied = problem.varied if computation == "gradients" else ()
        try:
            with jax.default_device(default_device):
                return compiled(operator.function, problem, varied)
        except Exception as error:
            return error

    found = {case: {} for case in cases}
    with ThreadPoolExecutor(cores()) as pool:
        for case in cases:
            operator, shape = find(case, is_small)
            problem = operator.problem(shape, DTYPE)
            for computation in COMPUTATIONS:
                found[case][computation] = pool.submit(prepare, operator, problem, computation)
    return {case: {key: future.result() for key, future in of_case.items()} for case, of_case in found.items()}


def compiled(function, problem, varied):
    """The call of the compiled program of `results`."""
    operands = problem.operands, problem.cotangent
    program = jax.jit(partial(results, function, varied, problem.options)).lower(*operands).compile()
    return Call(partial(program, *operands))


def results(function, varied, options, operands, cotangent):
    """The result, or the gradients of the operands named in `varied` and nothing else."""

    def of_varied(changed):
        return function(**{**operands, **changed}, **options)

    if not varied:
        return of_varied({})
    return jax.vjp(of_varied, {name: operands[name] for name in varied})[1](cotangent)


def measure(case, prepared):
    """A row for each program of a case. One that fails leaves its error, and the others are measured."""
    errors = {key: call for key, call in prepared.items() if isinstance(call, Exception)}
    seconds = {}
    for key, call in prepared.items():
        try:
            if key not in errors:
                seconds[key] = seconds_of(call)
        except Exception as error:
            errors[key] = error
    clock = gpu.sm_clock() or "-"  # as it still is a moment after the load
    found = traced({key: prepared[key] for key in seconds}, RUNS)
    for computation in prepared:
        row = {"case": case, "pass": computation}
        if error := errors.get(computation):
            yield row | {"error": summary_of(error)}
            continue
        of_runs = [run for run in found[computation] if run]
        names = dict.fromkeys(name for run in of_runs for name in run)
        yield row | {
            "milliseconds": median([total(run) for run in of_runs]),  # of all kernels
            "with waiting": seconds[computation] * 1e3,
            "SM clock": clock,
            "kernels": {name: of_kernel(name, of_runs) for name in names},
            "as many in all runs": len({tuple((name, run[name][1]) for name in sorted(run)) for run in of_runs}) <= 1,
        }


def seconds_of(call):
    """The seconds of a call and of waiting for it, after a first one."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def of_kernel(name, of_runs):
    found = [run[name] for run in of_runs if name in run]
    return {"milliseconds": statistics.median(one for one, _ in found), "launches": found[0][1]}


def lines(row):
    """The lines of the table: one for all kernels of a program, and one for each that is named."""
    begin = [row["case"], row["pass"]]
    if "error" in row:
        yield [*begin, row["error"], "", "", "", ""]
        return
    mark = "all" if row["as many in all runs"] else "all (runs differ)"
    launches = str(sum(kernel["launches"] for kernel in row["kernels"].values()))
    yield [
        *begin,
        mark,
        launches,
        microseconds(row["milliseconds"]),
        microseconds(row["with waiting"]),
        row["SM clock"],
    ]
    for name, kernel in row["kernels"].items():
        if name.startswith(OWN) or kernel["milliseconds"] >= SHARE * row["milliseconds"]:
            shown = f"`{name.removeprefix(OWN)}`"
            yield [*begin, shown, str(kernel["launches"]), microseconds(kernel["milliseconds"]), "", ""]


def microseconds(milliseconds):
    return "-" if milliseconds is None else digits(1e3 * milliseconds)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_times", description=__doc__)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="SHAPE:BATCH", help="such as A:16 or M1:1")
    parser.add_argument("--once", action="store_true", help="only run each program once, under a profiler like ncu")
    parser.add_argument("--small", action="store_true", help="few cases with few pixels, to try this program")
    args = parser.parse_args(arguments)
    add_xla_flags(f"{XLA_FLAGS} {ONCE_FLAGS}" if args.once else XLA_FLAGS)
    has_failed = False
    print(table_head(HEAD))
    cases = args.cases[: 6 if args.small else None]
    for first in range(0, len(cases), AT_ONCE):
        for case, prepared in programs(cases[first : first + AT_ONCE], args.small).items():
            if args.once:
                for program in prepared.values():
                    program()
                continue
            for row in measure(case, prepared):
                has_failed |= "error" in row
                for line in lines(row):
                    print(table_line(line), flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
