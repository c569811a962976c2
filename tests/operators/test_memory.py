"""The workspace stays small for every batch size, and the parts add up to the whole result."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn._operators.deform_conv import im2col_plan
from jax_dcn._primitive import parts
from tests.helpers.aggregation import cases as aggregation
from tests.helpers.deform_conv.cases import CASES, Operands, assert_close, convolve
from tests.helpers.operators import pull_back
from tests.helpers.slow import slow

pytestmark = pytest.mark.optimized

MIB = 2**20
# As docs/memory.md says, of a convolution and of an attention.
HELD_SAMPLES, SORTED = {"cpu": 16 * MIB, "cuda": 192 * MIB}, {"cpu": 0, "cuda": 256 * MIB}
LIBRARIES = {"cpu": 0, "cuda": 64 * MIB}  # what their matrix products ask for
MANY_ROWS = (128, 256, 128)  # the samples of one image: 144 MiB in float32
ONE_LARGE_ROW = (3, 4096, 1024)  # those of one row: 144 MiB
LAYER = (50, 84, 256)  # shape B of the benchmarks: the samples of one image take 37 MiB
LEVELS = ((64, 64), (32, 32), (16, 16), (8, 8))


def convolution(batch, image=LAYER, dtype="float32", features=256, taps=9):
    """A cotangent and operands of a convolution."""
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


def attention(batch, dtype="float32"):
    pixels, struct = sum(height * width for height, width in LEVELS), jax.ShapeDtypeStruct
    taps = (batch, pixels, 8, 4, 4)
    arrays = struct((batch, pixels, 8, 32), dtype), struct((*taps, 2), jnp.float32), struct(taps, jnp.float32)
    return struct((batch, pixels, 256), dtype), aggregation.Operands(*arrays)


def compute(operands, **options):
    if isinstance(operands, Operands):
        return convolve(operands, **options)
    return jax_dcn.multi_scale_deformable_attention(*operands, spatial_shapes=LEVELS, **options)


def forward(_, operands, **options):
    return compute(operands, **options)


def backward(cotangent, operands):
    return jax.vjp(compute, operands)[1](cotangent)[0]


def tangent(_, operands):
    return jax.jvp(compute, (operands,), (operands,))


def tangent_of_x(_, operands):
    return jax.jvp(lambda x: compute(operands._replace(x=x)), (operands.x,), (operands.x,))


def hessian_product(cotangent, operands):
    """The gradients too, so that the program has kernels."""
    return jax.jvp(functools.partial(backward, cotangent), (operands,), (operands,))


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
        sizes = {batch: temporary_bytes(function, *convolution(batch, image, dtype, 32)) for batch in (32, 64)}
    item = 8 if dtype == "float64" else 4
    one_row = arrays_of_samples * 9 * math.prod(image[1:]) * item
    one_image = math.prod(image) * item
    assert sizes[64] <= sizes[32] + MIB, sizes  # up to 32 tasks have sums of their own
    limit = max(HELD_SAMPLES[platform], one_row) + 3 * one_image + LIBRARIES[platform] + 4 * MIB
    assert max(sizes.values()) <= limit, sizes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_attention(dtype, platform):
    """On a GPU they need the samples of some heads, sorted."""
    for batch in (1, 16):
        assert temporary_bytes(backward, *attention(batch, dtype)) <= SORTED[platform] + MIB


@pytest.mark.parametrize(
    "shapes, derivative",
    [
        (convolution, tangent),
        pytest.param(convolution, tangent_of_x, marks=pytest.mark.thorough),
        (convolution, hessian_product),
        (attention, tangent),
        slow(attention, hessian_product),
    ],
)
def test_other_derivatives_do_not_grow_with_the_batch(shapes, derivative, platform):
    sizes = {batch: temporary_bytes(derivative, *shapes(batch)) for batch in (2, 16)}
    assert sizes[16] <= sizes[2] + MIB, sizes
    limit = 64 * MIB if shapes is attention else 3 * HELD_SAMPLES[platform] + LIBRARIES[platform]
    assert sizes[16] <= limit, sizes


def test_a_result_of_the_shape_of_x():
    """XLA could start y and the gradient of x from one array, and copy it."""
    layer = functools.partial(pull_back, lambda *operands: compute(Operands(*operands)))
    sizes = {batch: temporary_bytes(layer, *convolution(batch, (64, 64, 64), features=64)) for batch in (32, 64)}
    assert sizes[64] <= sizes[32] + MIB, sizes


def limit_samples(monkeypatch, held):
    monkeypatch.setattr(parts, "REFERENCE_BYTES", held)
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
    case = CASES[name]
    operands, cotangent = case.operands(), case.cotangent()
    by_parts = jax.jit(functools.partial(pull_back, case.with_backend()))
    assert "stablehlo.while" in by_parts.lower(cotangent, operands).as_text()
    assert_close(by_parts(cotangent, operands), case.expected(cotangent, operands))


@pytest.mark.parametrize(
    "case, held",
    [
        slow(CASES["circular"], 2**10),
        slow(CASES["strided_dilated"], 2**14),
        slow(CASES["two_batch_dimensions"], 2**8),
        pytest.param(CASES["6_groups_4_offset_groups"], 2**8, marks=pytest.mark.thorough),
        (aggregation.Attention(), 1),
        (aggregation.Convolution(), 2**11),
    ],
    ids=lambda value: None if isinstance(value, int) else type(value).__name__,
)
def test_parts_of_second_derivatives_add_up(case, held, monkeypatch, x64):
    """Parts of a row, of some rows and of some images, the last of which may be smaller; queries one by one."""
    lead = {} if isinstance(case.operands(), Operands) else {"lead": (2,)}
    arguments = case.cotangent(**lead), case.operands(**lead), case.operands(1, **lead)

    def product(backend):
        def run(cotangent, operands, tangents):
            gradients = functools.partial(pull_back, case.with_backend(backend), cotangent)
            return jax.jvp(gradients, (operands,), (tangents,))[1]

        return jax.jit(run)

    expected = product("reference")(*arguments)
    limit_samples(monkeypatch, held)
    by_parts = product(None)
    assert "stablehlo.while" in by_parts.lower(*arguments).as_text()
    assert_close(by_parts(*arguments), expected)


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(jnp.float32)])
def test_blocks_of_pixels_are_the_whole(dtype):
    """On a CPU, the cotangent of value is computed in blocks of pixels where its sums take too much memory."""
    sizes, channels = ((1024, 1024), (3, 5)), 16  # the sums of a head take 64 MiB
    random = np.random.default_rng(0)
    locations = random.uniform(-0.01, 1.01, (1, 300, 1, len(sizes), 4, 2)).astype(np.float32)
    weights = random.random(locations.shape[:-1], np.float32)
    cotangent = jnp.asarray(random.standard_normal((1, 300, channels)), dtype)
    value = jnp.zeros((1, 1024 * 1024 + 15, 1, channels), dtype)

    def d_value(backend):
        def attention(value):
            options = {"spatial_shapes": sizes, "backend": backend}
            return jax_dcn.multi_scale_deformable_attention(value, locations, weights, **options)

        return jax.jit(lambda: jax.vjp(attention, value)[1](cotangent)[0])()

    tolerance = 1e-2 if dtype == jnp.bfloat16 else 1e-5
    assert_close(d_value(None), d_value("reference"), tolerance, 1e-6)
