"""Python selects the fused path by the same rules by which the handlers accept calls, in lib/ffi/fused_limits.h."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import pytest

from jax_dcn._operators.deform_conv import fused, paths
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._primitive import extension

pytestmark = pytest.mark.platforms("cpu")

HANDLERS = {"offset": "offset_cotangent", "mask": "offset_cotangent", "weight": "weight_cotangent"}
PIXELS_AND_KERNELS = [  # images and their size, the size of the result, and the kernel's
    ((0, 3, 4), (3, 4), (3, 3)),
    ((2, 3, 4), (3, 4), (3, 3)),
    ((2, 3, 4), (5, 1), (3, 3)),
    ((1, 600, 600), (600, 600), (3, 3)),
    ((8, 2**14, 2**14), (2**14, 2**14), (1, 1)),
    ((fused.MAX_PIXELS - 1, 1, 1), (1, 1), (1, 1)),
    ((fused.MAX_PIXELS, 1, 1), (1, 1), (1, 1)),
    ((8, 2**14, 2**14), (1, 1), (1, 1)),
    # Only the result has many pixels.
    ((1, 1, 1), (fused.MAX_PIXELS - 1, 1), (1, 1)),
    ((1, 1, 1), (2**16, 2**15), (1, 1)),
    ((8, 1, 1), (2**14, 2**14), (1, 1)),
    ((1, 3, 4), (3, 4), (2**10, 2**10)),
]
CHANNELS = [0, 4, 8, 12, 24, 32, 48, 64, 72, 96, 192, 2**24, 2**31 - 8, 2**31]
FEATURES = [0, 1, 2, 6, 8, 12, 24, 48, 2**20, 2**30, 2**31 - 8, 2**31 - 2, 2**31]
GROUPS = [(1, 1), (1, 2), (2, 1), (2, 3), (4, 2), (3, 1)]  # and offset groups


def problems():
    for problem in itertools.product(PIXELS_AND_KERNELS, CHANNELS, FEATURES, GROUPS):
        _, channels, features, (groups, offset_groups) = problem
        if channels % groups == features % groups == channels % offset_groups == 0:
            yield problem


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_python_and_handlers_agree(dtype):
    """Python leaves out only what would need a large workspace: long scatter lists."""
    count = dict.fromkeys((True, False), 0)
    for (pixels, output, kernel), channels, features, (groups, offset_groups) in problems():
        taps = math.prod(kernel)
        x = jax.ShapeDtypeStruct((*pixels, channels), dtype)
        offset = jax.ShapeDtypeStruct((pixels[0], *output, 2 * offset_groups * taps), jnp.float32)
        weight = jax.ShapeDtypeStruct((*kernel, channels // groups, features), dtype)
        spec = Spec((1, 1), ((0, 0), (0, 0)), (1, 1), False, groups, None, jnp.dtype(dtype), None)

        def accepts(
            handler, images=pixels[0], arguments=(pixels[1:], channels, output, kernel, features, groups, offset_groups)
        ):
            size, channels, output, kernel, features, groups, offset_groups = arguments
            rejection = extension.modules["cpu"].fused_rejection(
                handler,
                dtype,
                x=(images, *size, channels),
                output=output,
                kernel_size=kernel,
                offset_groups=offset_groups,
                features=features,
                feature_group_count=groups,
            )
            return rejection == ""

        is_fused = paths.obstacle("forward", x, offset, weight, spec, "cuda") is None
        count[is_fused] += 1
        assert is_fused == accepts("forward"), (x, weight, spec)
        for name, handler in HANDLERS.items():
            is_fused = paths.obstacle(name, x, offset, weight, spec, "cuda") is None
            count[is_fused] += 1
            assert is_fused == accepts(handler), (name, x, weight, spec)
        is_fused = paths.obstacle("x", x, offset, weight, spec, "cuda") is None
        count[is_fused] += 1
        fits = fused.list_bytes(x, offset) <= fused.LIST_BYTES
        lists = fused.CHUNK_LIST_BYTES // max(fused.list_bytes(x, offset), 1)
        chunk = max(min(lists, fused.MAX_VECTORS // max(fused.image_vectors(offset, weight), 1)), 1)
        images = min(pixels[0], chunk) if fits else pixels[0]
        # fused_rejection takes all images to be computed at a time.
        few_pixels = accepts("forward") and fused.pixels(offset) < fused.MAX_PIXELS
        assert is_fused == (fits and few_pixels and accepts("input_cotangent", images)), (x, offset, weight, spec)
        if dtype != "float32":
            wide = dataclasses.replace(spec, dtype=jnp.dtype("float32"))
            assert (paths.obstacle("forward", x, offset, weight, wide, "cuda") is None) == accepts("forward")
            assert all(paths.obstacle(name, x, offset, weight, wide, "cuda") for name in ("x", *HANDLERS))
    assert sum(count.values()) > 10_000
    assert count[True] > 100 or dtype == "float64"


@pytest.mark.parametrize("wrong", [{"kernel": "weight_cotangnt"}, {"kernel": "cotangent"}, {"dtype": "float8"}])
def test_unknown_names_are_errors(wrong):
    sizes = {"x": (1, 3, 4, 32), "output": (3, 4), "kernel_size": (3, 3), "offset_groups": 1, "features": 8}
    (name, value) = next(iter(wrong.items()))
    arguments = {"kernel": "forward", "dtype": "bfloat16", **sizes, "feature_group_count": 1}
    assert extension.modules["cpu"].fused_rejection(**arguments) == ""
    with pytest.raises(ValueError, match=f"unknown {name} {value}"):
        extension.modules["cpu"].fused_rejection(**arguments | wrong)


def test_modules_export_the_same_limits():
    limits = [module.fused_limits for module in extension.modules.values()]
    assert all(limit == limits[0] for limit in limits)
