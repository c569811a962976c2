"""The fused kernels: which calls take them, and their values over the shapes that tiles and stages have edges in."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import PartitionSpec as P

import jax_dcn
from tests.helpers.deform_conv.cases import Case, Operands, assert_close, convolve, explicit_gradients, pull_back
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.slow import slow_unless

# Channels are vectors of 16 bytes in every type. Stages have eight of them: whole taps, parts of taps, several taps.
CASES = [
    Case("one_stage", (5, 6), 8, 2, (1, 1)),
    Case("ragged_strip_and_tile", (9, 17), 16, 10, (3, 3), convolution=Convolution(padding="SAME")),
    Case("several_tiles_of_features", (3, 4), 24, 300, (3, 3), convolution=Convolution(padding="SAME")),
    Case("several_stages_a_tap", (4, 5), 144, 6, (2, 2), convolution=Convolution(padding="VALID")),
    Case("many_taps", (6, 5), 16, 4, (5, 5), convolution=Convolution((1, 1), "SAME", (2, 1))),
    Case("2_groups_3_offset_groups", (3, 5), 48, 36, (2, 3), 3, convolution=Convolution((2, 1), 1, (1, 2), 2)),
    Case("3_groups_2_offset_groups", (4, 3), 48, 12, (3, 3), 2, convolution=Convolution((1, 1), "SAME", (1, 1), 3)),
    Case("group_of_one_vector", (4, 3), 32, 8, (3, 3), 1, convolution=Convolution((1, 1), "SAME", (1, 1), 4)),
    Case("torus", (3, 4), 16, 6, (3, 2), 2, convolution=Convolution((2, 1), "CIRCULAR", (3, 2))),
    Case("one_pixel", (1, 1), 8, 4, (3, 3), convolution=Convolution(padding=1)),
    Case("no_channels", (4, 5), 0, 4, (3, 3), convolution=Convolution(padding="SAME")),
    # The cotangents of these cases are fused, too.
    Case("one_stage_back", (5, 6), 32, 8, (1, 1)),
    Case("ragged_strip_and_tile_back", (9, 17), 32, 16, (3, 3), convolution=Convolution(padding="SAME")),
    Case("several_tiles_of_channels_back", (3, 4), 168, 8, (3, 3), convolution=Convolution(padding="SAME")),
    Case("several_tiles_of_features_back", (3, 4), 32, 168, (2, 1), convolution=Convolution(padding="SAME")),
    Case("4_offset_groups_in_2_groups_back", (3, 5), 128, 32, (2, 3), 4, convolution=Convolution((2, 1), 1, (1, 2), 2)),
    Case("4_groups_in_2_offset_groups_back", (4, 3), 128, 32, (2, 2), 2, convolution=Convolution((1, 1), 1, (1, 1), 4)),
    Case("torus_back", (3, 4), 64, 24, (3, 2), 2, convolution=Convolution((2, 1), "CIRCULAR", (3, 2))),
    Case("torus_of_one_pixel_back", (1, 1), 32, 8, (2, 2), convolution=Convolution((1, 1), "CIRCULAR")),
    Case("many_pixels_back", (33, 34), 32, 8, (1, 2), batch=(1,), convolution=Convolution(padding="SAME")),
    Case("8_channels_an_offset_group_back", (9, 8), 64, 16, (3, 3), 8, convolution=Convolution(padding="SAME")),
    Case("8_channels_many_features_back", (3, 4), 16, 72, (2, 3), 2, convolution=Convolution(padding="SAME")),
    Case("24_channels_an_offset_group_back", (4, 5), 96, 72, (2, 2), 4, convolution=Convolution((2, 1), 1, (1, 2), 2)),
    Case("8_channels_a_group_back", (4, 3), 32, 32, (3, 3), 2, convolution=Convolution((1, 1), 1, (1, 1), 4)),
    Case("whole_tile_of_channels_back", (9, 10), 128, 136, (1, 2), batch=(1,), convolution=Convolution(padding="SAME")),
    Case("two_batch_dimensions_back", (3, 4), 32, 8, (2, 2), batch=(2, 3), convolution=Convolution(padding="SAME")),
    Case("unbatched_back", (4, 5), 32, 8, (3, 3), batch=(), convolution=Convolution(padding=((1, 2), (0, 1)))),
    Case("empty_batch_back", (4, 5), 32, 8, (3, 3), batch=(0,), convolution=Convolution(padding="SAME")),
    Case("empty_output_back", (2, 5), 32, 8, (3, 3), convolution=Convolution(padding="VALID")),
]
CASE = {case.name: case for case in CASES}
PLAIN = Case("plain", (4, 5), 16, 8, (3, 3), 2, convolution=Convolution((1, 1), "SAME", (1, 1), 2))
RESOLUTION = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-10}  # of what is multiplied: float32 may be tf32
TYPES = tuple(RESOLUTION)


def cast(case, dtype, **kwargs):
    x, offset, weight, bias, mask = case.operands(grid=8, **kwargs)
    x, weight = jnp.asarray(x, dtype), jnp.asarray(weight, dtype)
    offset, bias, mask = (None if a is None else jnp.asarray(a, jnp.float32) for a in (offset, bias, mask))
    return Operands(x, offset, weight, bias, mask)


def widened(operands):
    return Operands(*(None if a is None else np.asarray(a, np.float64) for a in operands))


def sum_error(products, dtype):
    """A bound on the error of a sum that tensor cores compute, over the sum of the products' magnitudes.

    An mma adds 16 products, or 8 of float32, to the sum. It aligns all to the largest and cuts them off, at 24 bits in
    the least accurate tensor cores, and cuts off the result: at most 2^-23 of the largest for each, as often as there
    are mma. (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021.)
    """
    at_once = 8 if dtype == "float32" else 16
    return math.ceil(products / at_once) * (at_once + 2) * 2.0**-23


def sum_errors(case, dtype, cotangent, operands):
    """The largest error of y and of each gradient that the sums of tensor cores can cause."""
    x, offset, weight, _, mask = operands
    mask = np.ones((*offset.shape[:-1], offset.shape[-1] // 2)) if mask is None else np.abs(mask)
    magnitudes = Operands(np.abs(x), offset, np.abs(weight), None, mask)
    y, gradients = case.expected(np.abs(cotangent), magnitudes)
    taps, groups = math.prod(case.kernel), case.convolution.feature_group_count
    channels, features, pixels = case.cin // groups, case.cout // groups, math.prod((*case.batch, *case.output_size))

    def error(products, sums):
        return sum_error(products, dtype) * np.nanmax(sums, initial=0)

    of_y, of_x, of_weight = (
        error(taps * channels, y),
        error(taps * features, gradients.x),
        error(pixels, gradients.weight),
    )
    # Those of offset and mask have few products, one per feature, and that of the bias none.
    return of_y, *Operands(of_x, 0, of_weight, 0, 0)


def check_values(case, dtype, operands):
    """Value and gradients: what is rounded to the data's type, and the sums of tensor cores."""
    cotangent = jnp.asarray(case.cotangent(), dtype)
    run = functools.partial(pull_back, precision="default", **case.keywords)
    lowered = jax.jit(run).lower(cotangent, operands)
    y, gradients = lowered.compile()(cotangent, operands)
    exact_operands = np.asarray(cotangent, np.float64), widened(operands)
    exact_y, exact_gradients = case.expected(*exact_operands)
    assert y.dtype == dtype
    has_tensor_cores = "dcn_fused_forward" in lowered.as_text()
    errors = sum_errors(case, dtype, *exact_operands) if has_tensor_cores else [0] * 6
    for actual, exact, error in zip((y, *gradients), (exact_y, *exact_gradients), errors, strict=True):
        if exact is not None and exact.size:
            tolerance = 4 * RESOLUTION[dtype] * np.nanmax(np.abs(exact), initial=1) + error
            assert_close(actual, exact, 0, tolerance)


@pytest.mark.parametrize(
    "case, dtype",
    [
        *((case, "bfloat16") for case in CASES),
        # The cotangents of cases of the forward are not fused.
        *(slow_unless(not case.name.endswith("_back"), case, "float32") for case in CASES),
        # which differs from bfloat16 in how elements are converted, not in tiles and stages
        *((CASE[name], "float16") for name in ("2_groups_3_offset_groups", "torus_back", "8_channels_a_group_back")),
    ],
    ids=str,
)
def test_values(case, dtype):
    check_values(case, dtype, cast(case, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_without_mask_and_bias(dtype):
    check_values(PLAIN, dtype, cast(PLAIN, dtype, masked=False)._replace(bias=None))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_sum_leaves_unrounded(dtype):
    """A float32 result is not rounded to 16 bits: it is slightly more than one, which 16 bits cannot represent."""
    x, offset = jnp.full((1, 1, 1, 8), 1 / 8, dtype), jnp.zeros((1, 1, 1, 2))
    y = jax.jit(functools.partial(convolve, preferred_element_type=jnp.float32))(
        Operands(x, offset, jnp.ones((1, 1, 8, 2), dtype), jnp.full(2, 2.0**-20))
    )
    np.testing.assert_array_equal(y, np.full((1, 1, 1, 2), 1 + 2.0**-20, np.float32))


@pytest.mark.parametrize("name", ["ragged_strip_and_tile", "torus", "ragged_strip_and_tile_back", "torus_back"])
@pytest.mark.parametrize("values", [[np.nan], [np.inf, -np.inf]], ids=["nan", "inf"])
def test_nonfinite_offsets(values, name):
    case, random = CASE[name], np.random.default_rng(0)
    operands = cast(case, "bfloat16")
    hit = random.uniform(size=operands.offset.shape) < 0.01
    assert hit.any()
    offset = jnp.where(hit, random.choice(values, hit.shape), operands.offset).astype("float32")
    check_values(case, "bfloat16", operands._replace(offset=offset))


def test_only_pixels_that_samples_touch_are_read():
    """Samples on the border read one or two pixels, not those whose place the others' weights of zero would have."""
    x = jnp.full((1, 4, 4, 8), jnp.inf, jnp.bfloat16).at[0, 0, 0].set(1)
    at = {"corner": (-0.5, -0.5), "outside": (-1, 0), "far": (1e30, 0)}
    offset = jnp.asarray(list(at.values()), jnp.float32).reshape(1, 1, 3, 2) - jnp.asarray([[0, 0], [0, 1], [0, 2]])
    weight = jnp.ones((1, 1, 8, 2), jnp.bfloat16)
    y = jax.jit(lambda *a: convolve(Operands(*a), padding=((0, -3), (0, -1))))(x, offset, weight)
    np.testing.assert_array_equal(y[0, 0, :, 0], [2, 0, 0])


@pytest.mark.parametrize("dtype, precision", [("bfloat16", "default"), ("float32", "default"), ("float32", "highest")])
def test_all_samples_in_one_pixel(dtype, precision):
    """Whose gradient is the sum of all: the slowest case, and right."""
    case = CASE["many_pixels_back"]
    operands, cotangent = cast(case, dtype), jnp.asarray(case.cotangent(), dtype)
    rows, columns = np.ogrid[:33, :34]
    at = np.stack(np.broadcast_arrays(5.25 - rows, 7.5 - columns), -1)[None, :, :, None, :] - [[0, 0], [0, 1]]
    operands = operands._replace(offset=jnp.asarray(at.reshape(1, 33, 34, 4), jnp.float32))
    run = jax.jit(functools.partial(pull_back, precision=precision, **case.keywords))
    d_x = run(cotangent, operands)[1].x
    _, exact = case.expected(np.asarray(cotangent, np.float64), widened(operands))
    assert np.count_nonzero(np.abs(exact.x).sum(-1)) == 4
    assert_close(d_x, exact.x, 0, 4 * RESOLUTION[dtype] * np.abs(exact.x).max())


def test_the_cotangent_of_the_mask_alone():
    case = CASE["ragged_strip_and_tile_back"]
    operands, cotangent = cast(case, "bfloat16"), jnp.asarray(case.cotangent(), "bfloat16")
    run = functools.partial(explicit_gradients, **case.keywords)
    d_mask = jax.jit(lambda *arguments: run(*arguments).mask)(cotangent, operands)
    exact = case.expected(np.asarray(cotangent, np.float64), widened(operands))[1].mask
    assert_close(d_mask, exact, 0, 4 * RESOLUTION["bfloat16"] * np.abs(exact).max())


def per_image(operands, **keywords):
    def of_one(x, offset, mask):
        return gradient(operands._replace(x=x, offset=offset, mask=mask), **keywords)

    return jax.vmap(of_one)(operands.x, operands.offset, operands.mask)


def per_device(operands, **keywords):
    mesh = jax.make_mesh((2,), ("images",), axis_types=(jax.sharding.AxisType.Auto,))
    over_images = Operands(P("images"), P("images"), P(), P(), P("images"))
    of_some = functools.partial(gradient, **keywords)
    return jax.shard_map(of_some, mesh=mesh, in_specs=(over_images,), out_specs=over_images)(operands)


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("of", [per_image, per_device])
def test_transformed_gradients_are_fused(of, fuses_what_can_be):
    case = with_channels(32)
    assert custom_calls(cast(case, "bfloat16"), case=case, of=of) == {*IM2COL_COTANGENTS, WEIGHT}


@pytest.mark.platforms("cpu")
def test_gradients_of_any_batch_are_fused(fuses_what_can_be):
    """Exported, with a batch that is not known."""
    case = with_channels(32)
    operands = cast(case, "bfloat16")
    (batch,) = export.symbolic_shape("batch")
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands]
    for k in (0, 1, 4):
        structs[k] = structs[k].update(shape=(batch, *structs[k].shape[1:]))
    exporter = export.export(
        jax.jit(functools.partial(gradient, **case.keywords)),
        platforms=["cuda"],
        disabled_checks=jax_dcn.export.disabled_checks(),
    )
    text = exporter(Operands(*structs)).mlir_module()
    assert set(re.findall(r"@\w*(dcn_\w+)\(", text)) == {*IM2COL_COTANGENTS, WEIGHT}


def gradient(operands, **keywords):
    return jax.grad(lambda operands: convolve(operands, **keywords).astype(jnp.float32).sum())(operands)


def lowered(operands, platform="cuda", case=PLAIN, of=convolve, **keywords):
    run = functools.partial(of, **case.keywords | keywords)
    return jax.jit(run).trace(operands).lower(lowering_platforms=(platform,)).as_text()


def custom_calls(*args, **kwargs):
    return set(re.findall(r"@\w*(dcn_\w+)\(", lowered(*args, **kwargs)))


def with_channels(channels, features=8, groups=1, offset_groups=1):
    convolution = Convolution(padding="SAME", feature_group_count=groups)
    return Case("", (4, 5), channels, features, (3, 3), offset_groups, convolution=convolution)


WEIGHT = "dcn_fused_weight_cotangent"
IM2COL_COTANGENTS = {"dcn_sort_samples", "dcn_gather_samples", "dcn_offset_cotangent"}  # and the samples, in passing


@pytest.mark.parametrize("precision, name", [("highest", "dcn_sample"), ("default", "dcn_fused_forward")])
def test_the_default_precision_counts(precision, name, fuses_what_can_be):
    with jax.default_matmul_precision(precision):
        assert custom_calls(cast(PLAIN, "float32")) == {name}
        assert custom_calls(cast(PLAIN, "bfloat16")) == {"dcn_fused_forward"}


def weight_gradient(operands, **keywords):
    def loss(weight):
        return convolve(operands._replace(weight=weight), **keywords).astype(jnp.float32).sum()

    return jax.grad(loss)(operands.weight)


@pytest.mark.parametrize("of", [convolve, weight_gradient])
def test_no_columns_are_held(of):
    """Nothing larger than the operands, results, and partial sums of the weight is in the program."""
    struct = jax.ShapeDtypeStruct
    x, weight = struct((16, 50, 84, 256), jnp.bfloat16), struct((3, 3, 256, 256), jnp.bfloat16)
    offset, mask = struct((16, 50, 84, 18), jnp.float32), struct((16, 50, 84, 9), jnp.float32)
    text = lowered(Operands(x, offset, weight, None, mask), case=with_channels(256, 256), of=of, backend="fused")
    assert "while" not in text
    sizes = [np.prod([int(n) for n in shape.split("x") if n]) for shape in re.findall(r"tensor<((?:\d+x)+)", text)]
    assert max(sizes) == np.prod(x.shape) < 16 * 50 * 84 * 9 * 256
