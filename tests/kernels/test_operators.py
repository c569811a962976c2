"""The operators' own tests of values, types and edge cases, run on the CUDA kernels: their compiled PTX, executed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn._operators import scatter
from jax_dcn._operators.deform_conv import im2col_plan, plan, primitive
from jax_dcn._operators.deform_conv.arguments import canonicalize
from jax_dcn._primitive.chain import Step
from jax_dcn._primitive.plan import Request
from jax_dcn._primitive.target import Target
from tests.deform_conv import test_dtypes as conv_types
from tests.deform_conv import test_tangents as conv_tangents
from tests.deform_conv import test_values as conv_values
from tests.deform_conv import test_vectors as conv_vectors
from tests.helpers.deform_conv.cases import CASES, Case, assert_close, pull_back
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import narrowed
from tests.operators import test_assignment as assignment
from tests.operators import test_ffi_calls as ffi_calls
from tests.operators import test_golden as golden
from tests.operators import test_memory as memory
from tests.operators import test_rounding as rounding
from tests.operators import test_special as special
from tests.operators import test_values as values
from tests.roi_pool import test_values as pool_values
from tests.sampling import test_values as sampling_values

pytestmark = [pytest.mark.usefixtures("executed_kernels"), pytest.mark.platforms("cpu"), pytest.mark.slow]


def test_these_tests_run_the_kernels(interpreter):
    def all_operators(x, offset, weight, shift):
        return (
            jax_dcn.deform_conv2d(x, offset, weight).sum()
            + jax_dcn.deform_psroi_pool(x, jnp.ones((1, 5)), shift, output_size=1).sum()
            + jax_dcn.roi_align(x, jnp.ones((1, 5)), output_size=1, mode="max").sum()
            + jax_dcn.dcnv3(x, offset, offset[..., :1], kernel_size=1, padding=0, groups=1).sum()
            + jax_dcn.grid_sample(x, offset).sum()
            + jax_dcn.linear_sum_assignment(x[..., 0]).sum()
        )

    def tangent(*operands):
        return jax.jvp(all_operators, operands, operands)

    operands = jnp.ones((2, 5, 6, 32)), jnp.ones((2, 5, 6, 2)), jnp.ones((1, 1, 32, 8)), jnp.ones((1, 1, 1, 2))
    programs = [jax.jit(function) for function in (all_operators, jax.grad(all_operators, (0, 1, 2, 3)), tangent)]
    text = "".join(program.lower(*operands).as_text() for program in programs)
    assert [name for name in interpreter.handlers.values() if f"@{name}(" not in text] == []


# The other handlers are compiled from the same files as those of the CPU, and sort as those of "points" do.
QUICK = ("columns", "points", "pairs")
OTHERS = [
    pytest.param(name, marks=pytest.mark.thorough) for name in ffi_calls.FUNCTIONS if name not in ("fused", *QUICK)
]


@pytest.mark.parametrize("function", [*QUICK, *OTHERS])
def test_wrong_calls_are_refused(function):
    ffi_calls.check_that_wrong_calls_are_refused(function, "cuda")


def test_no_room_for_a_table():
    call = ffi_calls.valid_calls("points", "cuda")["dcn_sampling_x_cotangent"]
    d_x, *tables = call.results
    no_tables = [jax.ShapeDtypeStruct((0, *table.shape[1:]), table.dtype) for table in tables]
    assert call._replace(results=[d_x, *no_tables]).is_refused()


test_conv_far_on_the_torus = conv_values.test_huge_offsets_stay_on_the_torus
test_conv_types = conv_types.test_against_float64
test_conv_sums_over_channels = conv_types.test_sums_over_channels_are_wide
test_conv_sums_over_pixels = conv_types.test_sums_over_pixels_are_wide
test_conv_locations = conv_types.test_locations_are_wide
test_conv_tangent_types = conv_tangents.test_types
test_conv_tangents_that_are_not_finite = conv_tangents.test_values_that_are_not_finite


@pytest.mark.parametrize("name", ["valid", "4_groups_6_offset_groups"])
def test_conv_parts(name, monkeypatch, x64):
    memory.test_parts_add_up(name, 2**11, monkeypatch, x64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("held", [2**8, 2**11], ids=["rows", "images"])
@pytest.mark.parametrize("sort_bytes", [1600, 11_000, 2**26], ids=["two_rows", "three_images", "all_images"])
def test_conv_parts_of_16_bits(held, sort_bytes, dtype, monkeypatch):
    """Parts add to the sums of x, or round and replace its images; each writes its part of d_offset and d_mask.

    The samples of several parts are sorted at a time: of two of five rows, or of three or six images.
    """
    case = dataclasses.replace(CASES["two_batch_dimensions"], image=(5, 4))
    cotangent, operands = narrowed(case, dtype)

    def gradients():
        jax.clear_caches()
        run = jax.jit(functools.partial(pull_back, **case.keywords))
        return "while" in run.lower(cotangent, operands).as_text(), run(cotangent, operands)

    is_a_loop, expected = gradients()
    memory.limit_samples(monkeypatch, held)
    monkeypatch.setattr(im2col_plan, "CONVOLUTION_SORT_BYTES", sort_bytes)
    has_parts, actual = gradients()
    assert (is_a_loop, has_parts) == (False, True)
    assert_close(actual, expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("name", ["sampling-bicubic_of_two_channels", "aggregation-attention"])
def test_sorted_tables(name, monkeypatch):
    """As many tables are sorted at a time as the budget has room for, and their number does not change a bit."""
    case = values.CASES[name]
    operands, cotangent, function = case.operands(lead=(5,)), case.cotangent(lead=(5,)), case.with_backend()

    def planned():
        _, of_sampled, *_ = jax_dcn.kernel_plan(function, *operands, platform="cuda")
        return of_sampled

    def gradient():
        jax.clear_caches()
        return jax.jit(lambda: jax.vjp(function, *operands)[1](jnp.asarray(cotangent, jnp.float32))[0])()

    total, expected = planned().choices.count, gradient()
    table_bytes = planned().workspace_bytes // total
    for count in (1, 2):
        monkeypatch.setattr(scatter, "SORT_BYTES", (count + 1) * table_bytes - 1)
        assert total >= 5 and planned().choices.count == count
        np.testing.assert_array_equal(gradient(), expected)


test_conv_vectors = conv_vectors.test_values
test_conv_nonfinite_offsets = conv_vectors.test_nonfinite_offsets
test_conv_reads = conv_vectors.test_only_pixels_that_samples_touch_are_read


def test_conv_parts_of_the_output():
    """A shard of the output rows and columns, which starts at an origin, has the values of the whole output."""
    case = Case("shard", (4, 5), 64, 16, (3, 3), 2, convolution=Convolution(padding="SAME"))
    cotangent, operands = narrowed(case, "bfloat16")
    whole, spec = canonicalize(2, *operands, **case.keywords)
    cotangent = cotangent.at[:, :2].set(0).at[:, :, :1].set(0)

    @jax.jit
    def run(offset, mask, cotangent, origin):
        operands = whole._replace(offset=offset, mask=mask)

        def planned(step):
            return plan.plan(Request(step, spec, Target("cuda")), operands)

        y = primitive._forward_by_kernels(planned(None), operands, spec=spec, origin=origin)
        plans = planned(Step("vjp", whole._fields))
        gradients = primitive._cotangent_by_kernels(plans, operands, cotangent, spec=spec, origin=origin)
        return y, *(gradients[name] for name in whole._fields)

    def shard(array):
        return array[:, 2:, 1:]

    y, d_x, d_offset, d_weight, d_bias, d_mask = run(whole.offset, whole.mask, cotangent, (0, 0))
    expected = shard(y), d_x, shard(d_offset), d_weight, d_bias, shard(d_mask)
    sharded = run(shard(whole.offset), shard(whole.mask), shard(cotangent), (2, 1))
    assert_close(sharded, expected, 2**-6, 2**-6)


test_pool_infinite_cotangent = pool_values.test_an_infinite_cotangent_reaches_what_its_bin_reads
test_pool_wide_image = pool_values.test_the_last_column_of_a_wide_image
test_pool_first_largest = pool_values.test_the_first_of_equal_points_and_nan_win
test_pool_coordinates = pool_values.test_coordinates_keep_their_precision_in_half_precision_images

test_assignment = assignment.test_scipy
test_assignment_ties = assignment.test_ties_and_forbidden_pairs
test_assignment_float64 = assignment.test_float64
test_assignment_padding = assignment.test_padding
test_assignment_magnitudes = assignment.test_any_magnitude
test_assignment_limits = assignment.test_the_largest_numbers

test_sampling_signals = sampling_values.test_a_signal_is_read_once

test_numpy_reference = values.test_numpy_reference
test_types = values.test_types
test_nothing_to_compute = values.test_nothing_to_compute
test_random_problems = values.test_random_problems
test_rounding_of_attention = rounding.test_attention
test_rounding_of_pooling = rounding.test_pooling
test_golden_files = golden.test_golden_files
test_locations_that_are_not_finite = special.test_locations_that_are_not_finite
test_nan_weights = special.test_a_nan_weight
test_special_regions = special.test_regions_that_are_padding_or_not_finite
test_huge_regions = special.test_huge_regions
test_reads = special.test_only_pixels_with_a_weight_are_read
