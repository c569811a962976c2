"""`python -m benchmarks.smoke`: each custom call, with each type of data, on a small and on a ragged shape.

The kernels run through the public functions and their gradients. The expected values are those of backend="reference"
for the same operands, in float64 on the CPU. It takes less than a minute, so it is the first thing to run on a GPU.
"""

import argparse
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import summary_of
from benchmarks.reports.formatting import digits, table_head, table_line
from benchmarks.support.machine import add_xla_flags, cores
from jax_dcn._primitive.extension import ONLY_ON_CUDA, cuda_custom_calls, custom_calls

DTYPES = ("float32", "bfloat16", "float16", "float64")
SHAPES = ("small", "ragged")
HEAD = ("path", "shape", "type", "results", "largest error / tolerance", "wrong")

# The largest error that is allowed, as a fraction of the largest expected magnitude. Samples and results of 16-bit
# types are rounded to these types. Tensor cores take float32 as tf32, which has the mantissa of float16.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "tf32": 4e-3}

POOLING = {"y": "dcn_roi_pool", "x": "dcn_roi_pool_x_cotangent", "offset": "dcn_roi_pool_offset_cotangent"}

# The custom call that computes each result.
CALLS = {
    "im2col": {
        "y": "dcn_sample",
        "x": ("dcn_cpu_x_cotangent", "dcn_sort_samples", "dcn_gather_samples"),
        "offset": "dcn_offset_cotangent",
        "mask": "dcn_offset_cotangent",
        "weight": "dcn_offset_cotangent",  # it also stores the samples that the gradient of the weight needs
        "tangent": "dcn_sample_tangents",
    },
    "fused": {"y": "dcn_fused_forward", "weight": "dcn_fused_weight_cotangent"},
    "pooling": POOLING,
    "alignment": POOLING,
    "maximum": {"y": "dcn_roi_max_pool", "x": ("dcn_roi_max_pool_argmax", "dcn_roi_max_pool_x_cotangent")},
    "attention": {
        "y": "dcn_aggregate",
        "value": "dcn_aggregation_value_cotangent",
        "sampling_locations": "dcn_aggregation_tap_cotangents",
        "attention_weights": "dcn_aggregation_tap_cotangents",
    },
    "dcnv3": {
        "y": "dcn_aggregate",
        "x": "dcn_aggregation_value_cotangent",
        "offset": "dcn_aggregation_tap_cotangents",
        "mask": "dcn_aggregation_tap_cotangents",
    },
    "sampling": {"y": "dcn_sampling", "x": "dcn_sampling_x_cotangent", "grid": "dcn_sampling_locations_cotangent"},
}


class Case(NamedTuple):
    path: str
    shape: str
    dtype: str

    @property
    def is_tf32(self):
        return self.path == "fused" and self.dtype == "float32"

    @property
    def calls(self):
        """Pairs of a result and a custom call that it needs, on one platform or on all."""
        return [
            (result, name)
            for result, names in CALLS[self.path].items()
            for name in ([names] if isinstance(names, str) else names)
            if (result, self.is_tf32) != ("weight", True)  # whose fused kernel needs a 16-bit type
        ]

    @property
    def varied(self):
        """The operands whose gradients are computed."""
        return list(dict.fromkeys(result for result, _ in self.calls if result not in ("y", "tangent")))

    @property
    def tolerance(self):
        return TOLERANCE["tf32" if self.is_tf32 else self.dtype]


def cases(platform, shapes, dtypes):
    """The cases of a platform, "cpu" or "cuda"."""
    paths = [path for path in CALLS if path != "fused" or platform == "cuda"]
    every = [Case(path, shape, dtype) for shape in shapes for path in paths for dtype in dtypes]
    return [case for case in every if (case.path, case.dtype) != ("fused", "float64")]


def custom_calls_of(platform):
    """The custom calls of a platform, without the fused kernels of the CPU, which only larger problems run."""
    if platform == "cuda":
        return list(cuda_custom_calls)
    return [name for name in custom_calls if name not in ONLY_ON_CUDA and not name.startswith("dcn_cpu_fused")]


def run(chosen, calls):
    """The rows of each case, one for each of its results and those of `calls` that it needs, as soon as it has run."""
    with ThreadPoolExecutor(cores()) as pool:
        references = {
            key: pool.submit(compile_reference, *key)
            for key in dict.fromkeys((case.path, case.shape) for case in chosen)
        }
        device = jax.config.jax_default_device  # new threads do not inherit it
        programs = {case: pool.submit(compile_kernels, case, device) for case in chosen}
        for case, program in programs.items():
            needed = [pair for pair in case.calls if pair[1] in calls]
            yield rows(case, needed, program, references[case.path, case.shape])


def rows(case, needed, program, reference):
    """`program` and `reference` are futures of what `compile_kernels` and `compile_reference` return."""

    def row(name, call, error, reason):
        shown = {"call": call, "result": name, **case._asdict(), "ok": not reason, "reason": reason}
        return shown | {"error / tolerance": error}

    try:
        call_kernels, called = program.result()
        actual, expected = call_kernels(), reference.result()(case.dtype)
    except Exception as error:  # the other cases can still run
        return [row(name, call, None, summary_of(error)) for name, call in needed]
    found = []
    for name, call in needed:
        reason, error = "", largest_error(actual[name], expected[name]) / case.tolerance
        if call not in called:
            reason = f"the program does not call {call}"
        elif not error <= 1:
            reason = "differs from the reference"
        found.append(row(name, call, float(error) if np.isfinite(error) else None, reason))
    return found


def largest_error(actual, expected):
    """The largest error, as a fraction of the largest expected magnitude."""
    if actual.shape != expected.shape:
        return np.inf
    return np.max(np.abs(actual - expected)) / np.max(np.abs(expected))


def compile_kernels(case, device):
    """A function that returns the results of a case, and the custom calls in its program."""
    with jax.enable_x64(case.dtype == "float64"), jax.default_device(device):
        problem = problem_of(case.path, case.shape)
        operands, cotangent = problem.cast(case.dtype)
        precision = "default" if case.path == "fused" else "highest"
        is_convolution = case.path in ("fused", "im2col")
        function = partial(problem.function, backend=case.path) if is_convolution else problem.function
        with jax.default_matmul_precision(precision):
            lowered = results_of(function, case.path, case.varied).lower(operands, cotangent)
        called = set(re.findall(rf"({'|'.join(custom_calls)})\b", lowered.as_text()))
        program = lowered.compile()

    def call():
        with jax.enable_x64(case.dtype == "float64"):
            return to_float64(program(operands, cotangent))

    return call, called


def compile_reference(path, shape):
    """A function that returns the expected results for the operands of a type."""
    cpu = jax.devices("cpu")[0]
    problem = problem_of(path, shape)

    def in_float64(dtype):
        return jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), problem.cast(dtype))

    with jax.enable_x64(True), jax.default_device(cpu):

        def function(**operands):
            return problem.function(**operands, backend="reference")

        varied = Case(path, shape, "float64").varied
        program = results_of(function, path, varied).lower(*in_float64("float64")).compile()

    def call(dtype):
        with jax.enable_x64(True), jax.default_device(cpu):
            return to_float64(program(*in_float64(dtype)))

    return call


def results_of(function, path, varied):
    """The jitted function that returns the result, "y", and the gradients by the names of the `varied` operands.

    If the path has a kernel for tangents, also the "tangent" of the result in the direction of the operands themselves.
    """

    def run(operands, cotangent):
        def of_operands(active):
            return function(**operands | active)

        y, pull_back = jax.vjp(of_operands, {name: operands[name] for name in varied})
        (gradients,) = pull_back(cotangent)
        tangent = {"tangent": jax.jvp(of_operands, (operands,), (operands,))[1]} if "tangent" in CALLS[path] else {}
        return {"y": y, **gradients, **tangent}

    return jax.jit(run)


def to_float64(results):
    return {name: np.asarray(array).astype(np.float64) for name, array in results.items()}


class Problem(NamedTuple):
    """Operands in float64; of the types of a case only once they are cast."""

    function: Any  # of the operands
    operands: dict[str, np.ndarray]
    cotangent: np.ndarray

    def cast(self, dtype):
        """The operands, and the cotangent of the result. Locations and weights of samples are at least float32."""
        wide = jnp.promote_types(dtype, jnp.float32)
        operands = {
            name: jnp.asarray(array, wide if name in POSITIONS else dtype) for name, array in self.operands.items()
        }
        return operands, jnp.asarray(self.cotangent, dtype)


@cache
def problem_of(path, shape):
    """A problem with random operands of the sizes in `PROBLEMS`."""
    operator, sizes, options = PROBLEMS[path, shape]
    random = np.random.default_rng(0)
    operands = {name: POSITIONS.get(name, standard_normal)(random, size) for name, size in sizes.items()}
    if "regions" in options:
        options = options | {"rois": random_regions(random, options["regions"], len(operands["x"]))}
        del options["regions"]
    function = partial(operator, **options)
    result = jax.eval_shape(partial(function, backend="reference"), **operands)
    return Problem(function, operands, random.standard_normal(result.shape))


def standard_normal(random, size):
    return random.standard_normal(size)


def uniform(random, size):
    return random.uniform(0, 1, size).astype(np.float32)


def random_regions(random, regions, images):
    corner = random.uniform(-4, 12, (regions, 2))
    index = np.arange(regions)[:, None] % (images + 1) - 1  # -1 is padding
    return np.concatenate([index, corner, corner + random.uniform(1, 14, (regions, 2))], 1).astype(np.float32)


# The operands that are not data, and their numbers. Sampling locations are exact in float32 and not on pixels, where
# derivatives jump: offsets are odd multiples of 1/64; levels have powers of two as sizes, and locations are fractions.
POSITIONS = {
    "offset": lambda random, size: (2 * np.round(random.standard_normal(size) * 48) + 1) / 64,
    "sampling_locations": lambda random, size: np.round(random.uniform(-0.2, 1.2, size) * 1024) / 1024 + 2**-12,
    "grid": lambda random, size: np.round(random.uniform(-1.2, 1.2, size) * 1024) / 1024 + 2**-12,
    "mask": uniform,
    "attention_weights": uniform,
}
SMALL = (
    jax_dcn.deform_conv2d,
    {"x": (1, 8, 8, 32), "offset": (1, 8, 8, 18), "weight": (3, 3, 32, 32), "mask": (1, 8, 8, 9)},
    {},
)
STRIDED = {"strides": (2, 1), "kernel_dilation": (1, 2)}
BINS = {"spatial_scale": 0.5, "output_size": (2, 2), "regions": 4}
RAGGED_BINS = {"spatial_scale": 0.5, "output_size": (3, 2), "sampling_ratio": (0, 3), "regions": 7}
# By path and shape: the operator, the sizes of its operands, and its options. Ragged shapes have partial tiles, or no
# vectors of channels, and sizes that do not divide each other.
PROBLEMS = {
    ("im2col", "small"): SMALL,
    ("fused", "small"): SMALL,
    ("im2col", "ragged"): (
        jax_dcn.deform_conv2d,
        {"x": (2, 9, 7, 15), "offset": (2, 5, 7, 36), "weight": (3, 2, 3, 10), "mask": (2, 5, 7, 18)},
        STRIDED | {"feature_group_count": 5},
    ),
    ("fused", "ragged"): (
        jax_dcn.deform_conv2d,
        {"x": (2, 17, 11, 80), "offset": (2, 9, 11, 12), "weight": (2, 3, 40, 144), "mask": (2, 9, 11, 6)},
        STRIDED | {"feature_group_count": 2},
    ),
    ("pooling", "small"): (
        jax_dcn.deform_psroi_pool,
        {"x": (1, 8, 8, 8), "offset": (4, 2, 2, 2)},
        BINS | {"sample_per_part": 2, "trans_std": 0.25},
    ),
    ("pooling", "ragged"): (
        jax_dcn.deform_psroi_pool,
        {"x": (2, 9, 7, 36), "offset": (7, 2, 3, 6)},
        {"output_size": (5, 4), "group_size": (3, 2), "part_size": (2, 3), "sample_per_part": (3, 2)}
        | {"spatial_scale": 0.5, "trans_std": 0.25, "regions": 7},
    ),
    ("alignment", "small"): (
        jax_dcn.deform_roi_pool,
        {"x": (1, 8, 8, 8), "offset": (4, 2, 2, 2)},
        BINS | {"sampling_ratio": 2, "gamma": 0.25},
    ),
    ("alignment", "ragged"): (
        jax_dcn.deform_roi_pool,
        {"x": (2, 9, 7, 5), "offset": (7, 3, 2, 2)},
        RAGGED_BINS | {"gamma": 0.25},
    ),
    ("maximum", "small"): (jax_dcn.roi_align, {"x": (1, 8, 8, 8)}, BINS | {"sampling_ratio": 2, "mode": "max"}),
    ("maximum", "ragged"): (jax_dcn.roi_align, {"x": (2, 9, 7, 5)}, RAGGED_BINS | {"mode": "max"}),
    ("sampling", "small"): (jax_dcn.grid_sample, {"x": (1, 8, 8, 32), "grid": (1, 40, 2)}, {}),
    ("sampling", "ragged"): (
        jax_dcn.grid_sample,
        {"x": (2, 4, 2, 8, 3), "grid": (2, 37, 3)},
        {"padding_mode": "reflection"},
    ),
    ("attention", "small"): (
        jax_dcn.multi_scale_deformable_attention,
        {"value": (1, 80, 2, 32), "sampling_locations": (1, 80, 2, 8, 2), "attention_weights": (1, 80, 2, 8)},
        {"spatial_shapes": ((8, 8), (4, 4)), "points": (4, 4)},
    ),
    ("attention", "ragged"): (
        jax_dcn.multi_scale_deformable_attention,
        {"value": (2, 66, 3, 5), "sampling_locations": (2, 37, 3, 10, 2), "attention_weights": (2, 37, 3, 10)},
        {"spatial_shapes": ((8, 4), (1, 2), (2, 16)), "points": (3, 1, 6)},
    ),
    ("dcnv3", "small"): (
        jax_dcn.dcnv3,
        {"x": (1, 8, 8, 32), "offset": (1, 8, 8, 36), "mask": (1, 8, 8, 18)},
        {"kernel_size": 3, "padding": 1, "groups": 2},
    ),
    ("dcnv3", "ragged"): (
        jax_dcn.dcnv3,
        {"x": (2, 9, 7, 27), "offset": (2, 5, 4, 48), "mask": (2, 5, 4, 24)},
        {"kernel_size": 3, "padding": 1, "groups": 3, "strides": 2, "remove_center": True, "offset_scale": 0.5},
    ),
}


def line(case, of_case):
    """The line of the table for a case."""
    errors = [row["error / tolerance"] for row in of_case if row["error / tolerance"] is not None]
    wrong = [f"`{row['call']}`, {row['result']}: {row['reason']}" for row in of_case if not row["ok"]]
    return [*case, str(len(of_case)), digits(max(errors)) if errors else "-", "; ".join(wrong)]


def main(arguments=None, platform=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smoke", description=__doc__)
    parser.add_argument("--small", action="store_true", help="only float32 and small shapes, to try this program")
    args = parser.parse_args(arguments)
    platform = platform or {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    kinds = (SHAPES[:1], DTYPES[:1]) if args.small else (SHAPES, DTYPES)
    chosen, calls = cases(platform, *kinds), custom_calls_of(platform)
    unchecked, is_right = dict.fromkeys(calls), True
    print(table_head(HEAD))
    for case, of_case in zip(chosen, run(chosen, calls), strict=True):
        print(table_line(line(case, of_case)), flush=True)
        for row in of_case:
            unchecked.pop(row["call"], None)
            is_right &= row["ok"]
    for call in unchecked:
        print(f"**not reached**: `{call}`")
    return 0 if is_right and not unchecked else 1


if __name__ == "__main__":
    add_xla_flags("--xla_gpu_autotune_level=0")  # it takes longer than it saves in programs that run once
    sys.exit(main())
