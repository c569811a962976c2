"""A smoke test of the kernels: each custom call, with each type of data, on a small and on a ragged shape.

The kernels run through the public functions and their gradients. The expected values are those of backend="reference"
for the same operands, in float64 on the CPU. It takes less than a minute, so it is the first thing to run on a GPU.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.support.machine import cores
from jax_dcn._primitive.extension import FUSED, cuda_custom_calls

DTYPES = ("float32", "bfloat16", "float16", "float64")
SHAPES = ("small", "ragged")

# The largest error that is allowed, as a fraction of the largest expected magnitude. Samples and results of 16-bit
# types are rounded to these types. Tensor cores take float32 as tf32, which has the mantissa of float16.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "tf32": 4e-3}

POOLING = {"y": "dcn_roi_pool", "x": "dcn_roi_pool_input_cotangent", "offset": "dcn_roi_pool_offset_cotangent"}

# The custom call that computes each result.
CALLS = {
    "im2col": {
        "y": "dcn_sample",
        "x": "dcn_input_cotangent",
        "offset": "dcn_offset_cotangent",
        "mask": "dcn_offset_cotangent",
        "weight": "dcn_offset_cotangent",  # it also stores the samples that the gradient of the weight needs
        "tangent": "dcn_sample_tangents",
    },
    "fused": {
        "y": "dcn_fused_forward",
        "x": "dcn_fused_input_cotangent",
        "offset": "dcn_fused_offset_cotangent",
        "mask": "dcn_fused_offset_cotangent",
        "weight": "dcn_fused_weight_cotangent",
    },
    "pooling": POOLING,
    "alignment": POOLING,
    "maximum": {
        "y": "dcn_roi_max_pool",
        "x": ("dcn_roi_max_pool_argmax", "dcn_roi_max_pool_input_cotangent"),
    },
    "attention": {
        "y": "dcn_aggregate",
        "value": "dcn_aggregation_value_cotangent",
        "locations": "dcn_aggregation_tap_cotangents",
        "weights": "dcn_aggregation_tap_cotangents",
    },
    "dcnv3": {
        "y": "dcn_aggregate",
        "x": "dcn_aggregation_value_cotangent",
        "offset": "dcn_aggregation_tap_cotangents",
        "mask": "dcn_aggregation_tap_cotangents",
    },
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
        """Pairs of a result and a custom call that it needs."""
        # The fused gradient of the weight needs a 16-bit type.
        calls = CALLS[self.path] | ({"weight": "dcn_sample"} if self.is_tf32 else {})
        return [
            (result, name) for result, names in calls.items() for name in ([names] if isinstance(names, str) else names)
        ]

    @property
    def tolerance(self):
        return TOLERANCE["tf32" if self.is_tf32 else self.dtype]


class Problem(NamedTuple):
    """Operands in float64; of the types of a case only once they are cast."""

    function: Any  # of the operands in `data` and `positions`
    data: dict[str, np.ndarray]  # cast to the type of the case
    positions: dict[str, np.ndarray]  # cast to float32, or to float64 beside data of that type
    cotangent: np.ndarray  # cast to the type of the case

    def cast(self, dtype):
        """The operands, and the cotangent of the result."""
        operands = {name: jnp.asarray(array, dtype) for name, array in self.data.items()}
        wide = jnp.promote_types(dtype, jnp.float32)
        operands |= {name: jnp.asarray(array, wide) for name, array in self.positions.items()}
        return operands, jnp.asarray(self.cotangent, dtype)


def cases(platform):
    """The cases of a platform, "cpu" or "cuda"."""
    paths = [path for path in CALLS if path != "fused" or platform == "cuda"]
    every = [Case(path, shape, dtype) for shape in SHAPES for path in paths for dtype in DTYPES]
    return [case for case in every if (case.path, case.dtype) != ("fused", "float64")]


def custom_calls_of(platform):
    """The custom calls of a platform, without the fused kernels of the CPU, which only larger problems run."""
    return [name for name in cuda_custom_calls if platform == "cuda" or name not in FUSED]


def run(platform):
    """A pair for each case, as soon as it has run: the case, and one row for each of its results."""
    chosen = cases(platform)
    with ThreadPoolExecutor(cores()) as pool:
        references = {
            key: pool.submit(compile_reference, *key)
            for key in dict.fromkeys((case.path, case.shape) for case in chosen)
        }
        device = jax.config.jax_default_device  # new threads do not inherit it
        programs = {case: pool.submit(compile_kernels, case, device) for case in chosen}
        for case, program in programs.items():
            yield case, rows(case, program, references[case.path, case.shape])


def rows(case, program, reference):
    """`program` and `reference` are futures of what `compile_kernels` and `compile_reference` return."""

    def row(name, call, error, reason):
        shown = {"call": call, "result": name, **case._asdict(), "ok": not reason, "reason": reason}
        return shown | {"error / tolerance": error}

    try:
        call_kernels, called = program.result()
        actual, expected = call_kernels(), reference.result()(case.dtype)
    except Exception as error:  # the other cases can still run
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return [row(name, call, None, reason) for name, call in case.calls]
    found = []
    for name, call in case.calls:
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
        problem = PROBLEMS[case.path, case.shape]()
        operands, cotangent = problem.cast(case.dtype)
        precision = "default" if case.path == "fused" else "highest"
        # By default, convolutions as small as these are fused where they can be.
        function = partial(problem.function, backend="im2col") if case.path == "im2col" else problem.function
        with jax.default_matmul_precision(precision):
            lowered = results_of(function, case.path).lower(operands, cotangent)
        called = set(re.findall(rf"({'|'.join(cuda_custom_calls)})\b", lowered.as_text()))
        program = lowered.compile()

    def call():
        with jax.enable_x64(case.dtype == "float64"):
            return to_float64(program(operands, cotangent))

    return call, called


def compile_reference(path, shape):
    """A function that returns the expected results for the operands of a type."""
    cpu = jax.devices("cpu")[0]
    problem = PROBLEMS[path, shape]()

    def in_float64(dtype):
        return jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), problem.cast(dtype))

    with jax.enable_x64(True), jax.default_device(cpu):

        def function(**operands):
            return problem.function(**operands, backend="reference")

        program = results_of(function, path).lower(*in_float64("float64")).compile()

    def call(dtype):
        with jax.enable_x64(True), jax.default_device(cpu):
            return to_float64(program(*in_float64(dtype)))

    return call


def results_of(function, path):
    """The jitted function that returns the result, "y", and the gradients by the names of the operands.

    If the path has a kernel for tangents, also the "tangent" of the result in the direction of the operands themselves.
    """

    def run(operands, cotangent):
        def of_operands(operands):
            return function(**operands)

        y, pull_back = jax.vjp(of_operands, operands)
        (gradients,) = pull_back(cotangent)
        tangent = {"tangent": jax.jvp(of_operands, (operands,), (operands,))[1]} if "tangent" in CALLS[path] else {}
        return {"y": y, **gradients, **tangent}

    return jax.jit(run)


def to_float64(results):
    return {name: np.asarray(array).astype(np.float64) for name, array in results.items()}


def convolution(*, batch, image, channels, features, kernel, offset_groups, **options):
    """A modulated convolution. Offsets are multiples of 1/64, so that sampling locations are exact in float32."""
    random = np.random.default_rng(0)

    def function(x, offset, weight, mask, backend=None):
        return jax_dcn.deform_conv2d(x, offset, weight, mask=mask, backend=backend, **options)

    samples = offset_groups * kernel[0] * kernel[1]
    group_channels = channels // options.get("feature_group_count", 1)
    data = {
        "x": random.standard_normal((batch, *image, channels)),
        "weight": random.standard_normal((*kernel, group_channels, features)),
    }
    strides = options.get("strides", (1, 1))
    size = (batch, *(-(-length // stride) for length, stride in zip(image, strides, strict=True)))  # padding is "SAME"
    positions = {
        "offset": np.round(random.standard_normal((*size, 2 * samples)) * 2 * 64) / 64,
        "mask": random.uniform(0, 2, (*size, samples)).astype(np.float32),
    }
    return Problem(function, data, positions, random.standard_normal((*size, features)))


def random_regions(random, regions, images):
    corner = random.uniform(-4, 12, (regions, 2))
    index = np.arange(regions)[:, None] % (images + 1) - 1  # -1 is padding
    return np.concatenate([index, corner, corner + random.uniform(1, 14, (regions, 2))], 1).astype(np.float32)


def alignment(*, images, image, features, output, ratio, regions, mode="avg"):
    """RoIAlign: the mean with an offset, or the maximum, which takes none."""
    random = np.random.default_rng(0)
    rois = random_regions(random, regions, images)

    def function(x, offset=None, backend=None):
        options = {"output_size": output, "sampling_ratio": ratio, "spatial_scale": 0.5, "backend": backend}
        if mode == "max":
            return jax_dcn.roi_align(x, jnp.asarray(rois), mode="max", **options)
        return jax_dcn.deform_roi_pool(x, jnp.asarray(rois), offset, gamma=0.25, **options)

    data = {"x": random.standard_normal((images, *image, features))}
    positions = {} if mode == "max" else {"offset": random.standard_normal((regions, *output, 2)).astype(np.float32)}
    return Problem(function, data, positions, random.standard_normal((regions, *output, features)))


def pooling(*, images, image, features, group, output, part, points, classes, regions):
    random = np.random.default_rng(0)
    rois = random_regions(random, regions, images)

    def function(x, offset, backend=None):
        return jax_dcn.deform_psroi_pool(
            *(x, jnp.asarray(rois), offset),
            output_size=output,
            group_size=group,
            part_size=part,
            sample_per_part=points,
            spatial_scale=0.5,
            trans_std=0.25,
            backend=backend,
        )

    data = {"x": random.standard_normal((images, *image, features * group[0] * group[1]))}
    positions = {"offset": random.standard_normal((regions, *part, 2 * classes)).astype(np.float32)}
    return Problem(function, data, positions, random.standard_normal((regions, *output, features)))


def attention(*, batch, levels, points, queries, heads, channels):
    """Locations in multiples of 1/1024 of levels whose sizes are powers of two are exact in float32."""
    random = np.random.default_rng(0)

    def function(value, locations, weights, backend=None):
        return jax_dcn.multi_scale_deformable_attention(
            value, locations, weights, spatial_shapes=levels, points=points, backend=backend
        )

    taps = (batch, queries, heads, sum(points))
    pixels = sum(height * width for height, width in levels)
    data = {"value": random.standard_normal((batch, pixels, heads, channels))}
    positions = {
        "locations": np.round(random.uniform(-0.2, 1.2, (*taps, 2)) * 1024) / 1024 + 2**-12,
        "weights": random.uniform(0, 1, taps).astype(np.float32),
    }
    return Problem(function, data, positions, random.standard_normal((batch, queries, heads * channels)))


def dcnv3(*, batch, image, groups, channels, **options):
    """Offsets are odd multiples of 1/64, which are exact in float32, and not on pixels."""
    random = np.random.default_rng(0)

    def function(x, offset, mask, backend=None):
        keywords = {"kernel_size": 3, "padding": 1, "groups": groups}
        return jax_dcn.dcnv3(x, offset, mask, **keywords, **options, backend=backend)

    samples = groups * (9 - options.get("remove_center", False))
    stride = options.get("strides", 1)
    size = (batch, *((length - 1) // stride + 1 for length in image))
    data = {"x": random.standard_normal((batch, *image, groups * channels))}
    positions = {
        "offset": (2 * np.round(random.standard_normal((*size, 2 * samples)) * 48) + 1) / 64,
        "mask": random.uniform(0, 1, (*size, samples)).astype(np.float32),
    }
    return Problem(function, data, positions, random.standard_normal((*size, groups * channels)))


SMALL = {"batch": 1, "image": (8, 8), "channels": 32, "features": 32, "kernel": (3, 3), "offset_groups": 1}
ALIGNED_SMALL = {"images": 1, "image": (8, 8), "features": 8, "output": (2, 2), "ratio": 2, "regions": 4}
ALIGNED_RAGGED = {"images": 2, "image": (9, 7), "features": 5, "output": (3, 2), "ratio": (0, 3), "regions": 7}
PROBLEMS = {
    ("im2col", "small"): partial(convolution, **SMALL),
    ("fused", "small"): partial(convolution, **SMALL),
    # No vector of channels, and offset groups that divide no group.
    ("im2col", "ragged"): partial(
        convolution,
        **{"batch": 2, "image": (9, 7), "channels": 15, "features": 10, "kernel": (3, 2), "offset_groups": 3},
        **{"strides": (2, 1), "kernel_dilation": (1, 2), "feature_group_count": 5},
    ),
    # Partial tiles of pixels, channels and features.
    ("fused", "ragged"): partial(
        convolution,
        **{"batch": 2, "image": (17, 11), "channels": 80, "features": 144, "kernel": (2, 3), "offset_groups": 1},
        **{"strides": (2, 1), "kernel_dilation": (1, 2), "feature_group_count": 2},
    ),
    ("pooling", "small"): partial(
        pooling,
        **{"images": 1, "image": (8, 8), "features": 8, "group": (1, 1), "output": (2, 2), "part": (2, 2)},
        **{"points": (2, 2), "classes": 1, "regions": 4},
    ),
    ("pooling", "ragged"): partial(
        pooling,
        **{"images": 2, "image": (9, 7), "features": 6, "group": (3, 2), "output": (5, 4), "part": (2, 3)},
        **{"points": (3, 2), "classes": 3, "regions": 7},
    ),
    ("alignment", "small"): partial(alignment, **ALIGNED_SMALL),
    ("alignment", "ragged"): partial(alignment, **ALIGNED_RAGGED),
    ("maximum", "small"): partial(alignment, **ALIGNED_SMALL, mode="max"),
    ("maximum", "ragged"): partial(alignment, **ALIGNED_RAGGED, mode="max"),
    ("attention", "small"): partial(
        attention,
        **{"batch": 1, "levels": ((8, 8), (4, 4)), "points": (4, 4), "queries": 80, "heads": 2, "channels": 32},
    ),
    # No vector of channels, and uneven points.
    ("attention", "ragged"): partial(
        attention,
        **{"batch": 2, "levels": ((8, 4), (1, 2), (2, 16)), "points": (3, 1, 6), "queries": 37, "heads": 3},
        **{"channels": 5},
    ),
    ("dcnv3", "small"): partial(dcnv3, **{"batch": 1, "image": (8, 8), "groups": 2, "channels": 16}),
    ("dcnv3", "ragged"): partial(
        dcnv3,
        **{"batch": 2, "image": (9, 7), "groups": 3, "channels": 9, "strides": 2, "remove_center": True},
        **{"offset_scale": 0.5},
    ),
}
