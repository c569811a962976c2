"""`python -m benchmarks.kernel_times`: the time of each computation of the convolution on a GPU, on either path.

The programs call the public functions, so they also prepare the weight as a training step does. The times of the
kernels alone come from jax's profiler, where it can trace the GPU.
"""

import argparse
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax

from benchmarks.baselines import Call
from benchmarks.measurements import deform_conv
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.gpu_check import times_table
from benchmarks.reports.report import write_json
from benchmarks.support import gpu
from benchmarks.support.cuda_tools import short_name
from benchmarks.support.machine import cores

SHAPES = ("A", "B", "C", "D")
BATCH, DTYPE = 16, "bfloat16"
REPEATS = 9
TRACED_RUNS = 3

# The path and the operands whose gradients a program computes, by its custom call. The time of its kernels does not
# include the products of the im2col path, which are XLA's; the time of the program does.
CALLS = {
    "dcn_fused_forward": ("fused", ()),
    "dcn_fused_input_cotangent": ("fused", ("x",)),
    "dcn_fused_offset_cotangent": ("fused", ("offset", "mask")),
    "dcn_fused_weight_cotangent": ("fused", ("weight",)),
    "dcn_sample": ("im2col", ()),
    "dcn_input_cotangent": ("im2col", ("x",)),
    "dcn_offset_cotangent": ("im2col", ("offset", "mask")),
    "dcn_sample, for the weight": ("im2col", ("weight",)),
}

# XLA would put custom calls into CUDA graphs, in which the profiler may not see the kernels.
XLA_FLAGS = "--xla_gpu_enable_command_buffer="


def programs(shape):
    """The program of each custom call, compiled."""
    problem = deform_conv.problem(shape, DTYPE)
    device = jax.config.jax_default_device  # new threads do not inherit it
    device_is_gpu = jax.default_backend() != "cpu"  # a CPU has one path

    def prepare(path_and_varied):
        path, varied = path_and_varied
        options = problem.options | ({"backend": path} if device_is_gpu else {})
        operands = (problem.operands, problem.cotangent)
        with jax.default_device(device):
            run = jax.jit(partial(results, varied, options)).lower(*operands).compile()
        return Call(partial(run, *operands), queued=device_is_gpu)

    with ThreadPoolExecutor(cores()) as pool:
        return dict(zip(CALLS, pool.map(prepare, CALLS.values()), strict=True))


def results(varied, options, operands, cotangent):
    """The result, or the gradients of the operands named in `varied` and nothing else."""

    def function(changed):
        return deform_conv.deformable(**{**operands, **changed}, **options)

    if not varied:
        return function({})
    _, pull_back = jax.vjp(function, {name: operands[name] for name in varied})
    return pull_back(cotangent)


def measure(name, shape):
    """A row for each custom call on a shape."""
    prepared = programs(shape)
    for program in prepared.values():
        program()
    seconds = interleaved(prepared, REPEATS)
    clock = gpu.sm_clock()  # as it still is a moment after the load
    for call, program in prepared.items():
        kernels = traced(program)
        own = sum(kernel["milliseconds"] for kernel in kernels.values() if kernel["own"])
        yield {
            "call": call,
            "shape": name,
            "batch": shape.batch,
            "dtype": DTYPE,
            "SM clock": clock,
            "program milliseconds": {key: seconds[call][key] * 1e3 for key in ("median", "min", "max")},
            "milliseconds": own or None,  # of the package's kernels
            "kernels": kernels,
        }


def traced(program):
    """The kernels of one run by name, {"milliseconds", "launches", "own"}: the mean of a few runs.

    `own` are those of this package; the others are XLA's. It is empty where the profiler sees no kernels. That needs a
    driver that lets CUPTI trace them, as drivers do by default.
    """
    kernels = {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(TRACED_RUNS):
                program()
        for event in kernel_events(Path(folder)):
            is_own = "dcn::" in event.name
            name = short_name(event.name) if is_own else event.name
            kernel = kernels.setdefault(name, {"milliseconds": 0.0, "launches": 0, "own": is_own})
            kernel["milliseconds"] += event.duration_ns * 1e-6 / TRACED_RUNS
            kernel["launches"] += 1 / TRACED_RUNS
    return kernels


def kernel_events(folder):
    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines if re.match(r"/device:GPU:\d+", plane.name) else ():
                if line.name.startswith("Stream"):  # the other lines summarize the streams
                    yield from line.events


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_times", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--out", type=Path, help="JSON file, written after each shape")
    parser.add_argument("--once", action="store_true", help="only run each call once, under a profiler such as ncu")
    args = parser.parse_args(arguments)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}"  # read when jax first uses a device
    shapes = {name: deform_conv.SHAPES[name]._replace(batch=BATCH) for name in args.shapes}
    if args.once:
        for shape in shapes.values():
            for program in programs(shape).values():
                program()
        return 0
    results = {"device": jax.devices()[0].device_kind, "rows": [], "not reached": list(shapes)}
    for name, shape in shapes.items():
        results["rows"] += measure(name, shape)
        results["not reached"].remove(name)
        if args.out:
            write_json(args.out, results)
    print(times_table(results["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
