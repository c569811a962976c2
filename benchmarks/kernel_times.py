"""`python -m benchmarks.kernel_times`: the times of the kernels of operators and of their gradients on a GPU.

A program computes the result of an operator, or all of its gradients and nothing else, for bfloat16 data; those of the
convolution on both paths, as far as they have kernels. The times of its kernels come from jax's profiler.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax

from benchmarks.baselines import Call, summary_of
from benchmarks.measurements.deform_conv import CONVOLUTION
from benchmarks.measurements.sizes import small, with_batch
from benchmarks.measurements.trace import OWN, median, total, traced
from benchmarks.operators import operator_of
from benchmarks.reports.formatting import digits, table_head, table_line
from benchmarks.support import gpu
from benchmarks.support.machine import add_xla_flags, cores

# Shapes and batches, the most important first: what is not reached is cut off. Making operands of large images takes
# seconds.
CASES = ["A:16", "B:16", "C:16", *(f"{name}:1" for name in ("A", "B", "C", "M1", "M2", "S1", "W1", "R2", "P3"))]
CASES += ["M1:16", "W1:16", *(f"{name}:{batch}" for batch in (16, 1) for name in "FGHED")]
CASES += ["P1:1", "S3:1", "S4:1", "S1:16", "P3:16", "R2:16"]
DTYPE, RUNS = "bfloat16", 5
# By path of the convolution, or of other operators. "weight" is the gradient of the weight by itself.
COMPUTATIONS = {
    "im2col": ("forward", "gradients", "weight"),
    "fused": ("forward", "weight"),
    "": ("forward", "gradients"),
}
HEAD = ("case", "path", "pass", "kernel", "launches", "µs", "µs with waiting", "SM clock")
# In CUDA graphs the profiler sees no kernels. Autotuning XLA's products would take longer than everything else.
XLA_FLAGS = "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0"


def find(case, is_small=False):
    """The operator and the shape of a case."""
    name, batch = case.split(":")
    operator = operator_of(name)
    shape = with_batch(operator.shapes[name], int(batch))
    return operator, small(shape) if is_small else shape


def programs(operator, shape, paths):
    """The compiled program of each path and computation, or the error that its compilation raised."""
    problem = operator.problem(shape, DTYPE)
    default_device = jax.config.jax_default_device  # new threads do not inherit it

    def prepare(key):
        path, computation = key
        options = problem.options | ({"backend": path} if operator is CONVOLUTION else {})
        varied = {"forward": (), "gradients": problem.varied, "weight": ("weight",)}[computation]
        try:
            with jax.default_device(default_device):
                return compiled(operator.function, problem, varied, options)
        except Exception as error:  # such as that of a path that is not possible
            return error

    keys = [(path, of) for path in (paths if operator is CONVOLUTION else [""]) for of in COMPUTATIONS[path]]
    with ThreadPoolExecutor(cores()) as pool:
        return dict(zip(keys, pool.map(prepare, keys), strict=True))


def compiled(function, problem, varied, options):
    """The call of the compiled program of `results`."""
    operands = problem.operands, problem.cotangent
    return Call(partial(jax.jit(partial(results, function, varied, options)).lower(*operands).compile(), *operands))


def results(function, varied, options, operands, cotangent):
    """The result, or the gradients of the operands named in `varied` and nothing else."""

    def of_varied(changed):
        return function(**{**operands, **changed}, **options)

    if not varied:
        return of_varied({})
    return jax.vjp(of_varied, {name: operands[name] for name in varied})[1](cotangent)


def measure(case, is_small=False):
    """A row for each program of a case. One that fails leaves its error, and the others are measured."""
    operator, shape = find(case, is_small)
    prepared = programs(operator, shape, ("im2col", "fused"))
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
    for path, computation in prepared:
        key, row = (path, computation), {"case": case, "shape": str(shape), "path": path, "pass": computation}
        if error := errors.get(key):
            yield row | {"error": summary_of(error)}
            continue
        of_runs = [run for run in found[key] if run]
        names = dict.fromkeys(name for run in of_runs for name in run)
        yield row | {
            "milliseconds": median([total(run) for run in of_runs]),  # of all kernels
            "with waiting": seconds[key] * 1e3,
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
    """The lines of the table: one for all kernels of a program, and one for each kernel of the package."""
    begin = [row["case"], row["path"] or "-", row["pass"]]
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
        if name.startswith(OWN):
            shown = f"`{name.removeprefix(OWN)}`"
            yield [*begin, shown, str(kernel["launches"]), microseconds(kernel["milliseconds"]), "", ""]


def microseconds(milliseconds):
    return "-" if milliseconds is None else digits(1e3 * milliseconds)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_times", description=__doc__)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="SHAPE:BATCH", help="such as A:16 or M1:1")
    parser.add_argument("--once", action="store_true", help="only run the im2col path once, under a profiler like ncu")
    parser.add_argument("--small", action="store_true", help="few cases with few pixels, to try this program")
    args = parser.parse_args(arguments)
    add_xla_flags(XLA_FLAGS)
    errors = []
    print(table_head(HEAD))
    for case in args.cases[: 6 if args.small else None]:
        if args.once:
            for program in programs(*find(case, args.small), ["im2col"]).values():
                program()
            continue
        for row in measure(case, args.small):
            errors += [row["error"]] if "error" in row else []
            for line in lines(row):
                print(table_line(line), flush=True)
    return 1 if any(not error.startswith("ValueError") for error in errors) else 0  # of a path that is not possible


if __name__ == "__main__":
    sys.exit(main())
