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
    # With 2**20 bfloat16 features, one image of the result has 2**32 vectors, or four images have.
    ((2, 2**7, 2**8), (2**7, 2**8), (1, 1)),
    ((6, 2**6, 2**7), (2**6, 2**7), (1, 1)),
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
    bound_by_vectors = {"image": 0, "images at a time": 0}
    for (pixels, output, kernel), channels, features, (groups, offset_groups) in problems():
        taps = math.prod(kernel)
        x = jax.ShapeDtypeStruct((*pixels, channels), dtype)
        offset = jax.ShapeDtypeStruct((pixels[0], *output, 2 * offset_groups * taps), jnp.float32)
        weight = jax.ShapeDtypeStruct((*kernel, channels // groups, features), dtype)
        spec = Spec((1, 1), ((0, 0), (0, 0)), (1, 1), False, groups, None, jnp.dtype(dtype), None)

        def rejection(
            handler, images=pixels[0], arguments=(pixels[1:], channels, output, kernel, features, groups, offset_groups)
        ):
            size, channels, output, kernel, features, groups, offset_groups = arguments
            return extension.modules["cpu"].fused_rejection(
                handler,
                dtype,
                x=(images, *size, channels),
                output=output,
                kernel_size=kernel,
                offset_groups=offset_groups,
                features=features,
                feature_group_count=groups,
            )

        is_fused = paths.obstacle("forward", x, offset, weight, spec, "cuda") is None
        count[is_fused] += 1
        assert is_fused == (rejection("forward") == ""), (x, weight, spec)
        for name, handler in HANDLERS.items():
            is_fused = paths.obstacle(name, x, offset, weight, spec, "cuda") is None
            count[is_fused] += 1
            assert is_fused == (rejection(handler) == ""), (name, x, weight, spec)
        is_fused = paths.obstacle("x", x, offset, weight, spec, "cuda") is None
        count[is_fused] += 1
        fits = fused.list_bytes(x, offset) <= fused.LIST_BYTES
        images = fused._images_at_once(x, offset, weight)
        # fused_rejection takes all images to be computed at a time.
        few_pixels = rejection("forward") == "" and fused.pixels(offset) < fused.MAX_PIXELS
        why = rejection("input_cotangent", images)
        assert is_fused == (fits and few_pixels and why == ""), (x, offset, weight, spec)
        bound_by_vectors["image"] += fits and few_pixels and is_about_vectors(why)
        one_more = min(images + 1, pixels[0])
        vectors, list_bytes = one_more * fused.image_vectors(offset, weight), one_more * fused.list_bytes(x, offset)
        if is_fused and vectors > fused.MAX_VECTORS and list_bytes <= fused.CHUNK_LIST_BYTES:
            assert is_about_vectors(rejection("input_cotangent", one_more)), (x, offset, weight, spec)
            bound_by_vectors["images at a time"] += 1
        if dtype != "float32":
            wide = dataclasses.replace(spec, dtype=jnp.dtype("float32"))
            assert (paths.obstacle("forward", x, offset, weight, wide, "cuda") is None) == (rejection("forward") == "")
            assert all(paths.obstacle(name, x, offset, weight, wide, "cuda") for name in ("x", *HANDLERS))
    assert sum(count.values()) > 10_000
    if dtype != "float64":
        assert count[True] > 100
        assert all(bound_by_vectors.values()), bound_by_vectors


def is_about_vectors(rejection):
    return "vectors of 16 bytes of d_y" in rejection


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
