"""The workspace stays small for every batch size, and the parts add up to the whole result."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from jax_dcn._operators.deform_conv import im2col_plan
from tests.helpers.deform_conv.cases import CASE, Operands, assert_close, convolve, pull_back
from tests.helpers.slow import slow

pytestmark = pytest.mark.optimized

MIB = 2**20
HELD_SAMPLES = {"cpu": 16 * MIB, "cuda": 192 * MIB}  # as docs/memory.md says
LIBRARIES = {"cpu": 0, "cuda": 64 * MIB}  # what their matrix products ask for
MANY_ROWS = (128, 256, 128)  # the samples of one image: 144 MiB in float32
ONE_LARGE_ROW = (3, 4096, 1024)  # those of one row: 144 MiB


def shapes(batch, image, dtype, features=32, taps=9):
    *size, cin = image
    samples = (batch, *size, taps)
    wide = jnp.promote_types(dtype, jnp.float32)
    struct = jax.ShapeDtypeStruct
    operands = Operands(
        x=struct((batch, *image), dtype),
        offset=struct((*samples[:-1], 2 * taps), wide),
        weight=struct((3, 3, cin, features), dtype),
        bias=struct((features,), dtype),
        mask=struct(samples, wide),
    )
    return struct((batch, *size, features), dtype), operands


def forward(_, operands, **options):
    return convolve(operands, **options)


def backward(cotangent, operands):
    return pull_back(cotangent, operands)[1]


def temporary_bytes(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    assert "dcn_" in compiled.as_text()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    "image, dtype",
    [
        (MANY_ROWS, "float32"),
        (MANY_ROWS, "bfloat16"),
        (ONE_LARGE_ROW, "float32"),
        pytest.param(MANY_ROWS, "float64", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("function, arrays_of_samples", [(forward, 1), (backward, 2)], ids=["forward", "backward"])
def test_temporary_memory_is_bounded(function, arrays_of_samples, dtype, image, platform):
    """By the documented limit, or the samples of one row and their cotangents, and by what one image itself takes."""
    with jax.enable_x64(dtype == "float64"):
        sizes = {batch: temporary_bytes(function, *shapes(batch, image, dtype)) for batch in (32, 64)}
    item = 8 if dtype == "float64" else 4
    one_row = arrays_of_samples * 9 * math.prod(image[1:]) * item
    one_image = math.prod(image) * item
    assert sizes[64] <= sizes[32] + MIB, sizes  # up to 32 tasks have sums of their own
    limit = max(HELD_SAMPLES[platform], one_row) + 3 * one_image + LIBRARIES[platform] + 4 * MIB
    assert max(sizes.values()) <= limit, sizes


def tangent(_, operands):
    return jax.jvp(convolve, (operands,), (operands,))


def tangent_of_x(_, operands):
    return jax.jvp(lambda x: convolve(operands._replace(x=x)), (operands.x,), (operands.x,))


def hessian_product(cotangent, operands):
    """The gradients too, so that the program has kernels."""
    return jax.jvp(functools.partial(pull_back, cotangent), (operands,), (operands,))


LAYER = (50, 84, 256)  # shape B of the benchmarks: the samples of one image take 37 MiB


@pytest.mark.parametrize(
    "derivative", [tangent, pytest.param(tangent_of_x, marks=pytest.mark.thorough), hessian_product]
)
def test_other_derivatives_do_not_grow_with_the_batch(derivative, platform):
    sizes = {batch: temporary_bytes(derivative, *shapes(batch, LAYER, "float32", features=256)) for batch in (2, 16)}
    assert sizes[16] <= sizes[2] + MIB, sizes
    assert sizes[16] <= 3 * HELD_SAMPLES[platform] + LIBRARIES[platform], sizes


def test_a_result_of_the_shape_of_x():
    """XLA could start y and the gradient of x from one array, and copy it."""
    sizes = {batch: temporary_bytes(pull_back, *shapes(batch, (64, 64, 64), "float32", 64)) for batch in (32, 64)}
    assert sizes[64] <= sizes[32] + MIB, sizes


def limit_samples(monkeypatch, held):
    for name in im2col_plan.COLUMN_BYTES:
        monkeypatch.setitem(im2col_plan.COLUMN_BYTES, name, held // 2)


IN_PARTS = [
    *((name, 2**11) for name in ("plain", "valid", "strided_dilated", "4_groups_6_offset_groups", "circular")),
    *(("two_batch_dimensions", held) for held in (1, 2**11, 2**13)),
]


@pytest.mark.parametrize("name, held", IN_PARTS)
def test_parts_add_up(name, held, monkeypatch, x64):
    """Runs of a row, of some rows, of some images: with so little memory allowed that small arrays need them."""
    limit_samples(monkeypatch, held)
    case = CASE[name]
    operands, cotangent = case.operands(), case.cotangent()
    answer = jax.jit(lambda *a: pull_back(*a, **case.keywords))(cotangent, operands)
    assert_close(answer, case.expected(cotangent, operands))


@pytest.mark.parametrize(
    "name, held",
    [
        ("circular", 2**10),
        slow("strided_dilated", 2**14),
        slow("two_batch_dimensions", 2**8),
        pytest.param("6_groups_4_offset_groups", 2**8, marks=pytest.mark.thorough),
    ],
)
def test_parts_of_second_derivatives_add_up(name, held, monkeypatch, x64):
    """Parts of a row, of some rows and of some images, the last of which may be smaller."""
    case = CASE[name]
    arguments = case.cotangent(), case.operands(), case.operands(1)

    def product(backend):
        def run(cotangent, operands, tangents):
            gradients = functools.partial(pull_back, cotangent, backend=backend, **case.keywords)
            return jax.jvp(gradients, (operands,), (tangents,))[1]

        return jax.jit(run)

    expected = product("reference")(*arguments)
    limit_samples(monkeypatch, held)
    by_parts = product(None)
    assert "stablehlo.while" in by_parts.lower(*arguments).as_text()
    assert_close(by_parts(*arguments), expected)


@pytest.mark.parametrize("held, loops", [(1, True), (2**20, False)])
@pytest.mark.usefixtures("im2col_on_cpu")
def test_a_low_limit_makes_parts(held, loops, monkeypatch):
    """What the test above relies on."""
    limit_samples(monkeypatch, held)
    case = CASE["plain"]
    lowered = jax.jit(lambda operands: convolve(operands, **case.keywords)).lower(case.operands())
    assert ("stablehlo.while" in lowered.as_text()) == loops
