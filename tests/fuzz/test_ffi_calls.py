"""Invalid calls of the FFI handlers, which the package never makes: they return a result or raise XLA's error."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn._primitive import extension

pytestmark = pytest.mark.platforms("cpu")

NAMES = sorted(extension.modules["cpu"].handlers)
NUMBERS = [-(2**63), -(2**31), -1, 0, 1, 2, 3, 2**15 + 1, 2**31 - 1, 2**31, 2**63 - 1]


@functools.cache
def valid_calls():
    """For each handler, one call that the package makes: (results, aliases, operands, attributes)."""
    calls = {}

    def record(name, results, input_output_aliases=None):
        def call(*operands, **attributes):
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in jax.tree.leaves(results)]
            operands = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands]
            calls[name] = shapes, input_output_aliases, operands, attributes
            return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), results)

        return call

    def all_operators(x, offset, weight, mask, shift):
        paths = ("im2col", "fused")
        y = sum(jax_dcn.deform_conv2d(x, offset, weight, mask=mask, backend=path) for path in paths)
        pooled = jax_dcn.deform_psroi_pool(x, jnp.ones((3, 5)), shift, output_size=2)
        largest = jax_dcn.roi_align(x, jnp.ones((3, 5)), output_size=2, mode="max")
        aggregated = jax_dcn.dcnv3(x, offset, mask, kernel_size=3, padding=1, groups=2)
        sampled = jax_dcn.grid_sample(x, offset[..., :2])
        return y.sum() + pooled.sum() + largest.sum() + aggregated.sum() + sampled.sum()

    operands = [jnp.ones(s) for s in ((2, 5, 6, 4), (2, 5, 6, 36), (3, 3, 4, 2), (2, 5, 6, 18), (3, 2, 2, 4))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", record)
        jax.clear_caches()
        jax.jit(jax.value_and_grad(all_operators, (0, 1, 2, 3, 4))).lower(*operands)
        jax.jit(lambda *operands: jax.jvp(all_operators, operands, operands)).lower(*operands)
    jax.clear_caches()
    return calls


def call(name, results, operands, attributes, aliases=None):
    function = jax.ffi.ffi_call(name, results, input_output_aliases=aliases)
    arrays = [jnp.ones(operand.shape, operand.dtype) for operand in operands]
    return jax.block_until_ready(jax.jit(lambda *arrays: function(*arrays, **attributes))(*arrays))


def test_the_packages_own_calls_are_right():
    assert sorted(valid_calls()) == NAMES
    for name in NAMES:
        results, aliases, operands, attributes = valid_calls()[name]
        call(name, results, operands, attributes, aliases)


def invalid(kind, results, operands, attributes):
    """A valid call with one change that the handler must refuse."""
    first = operands[0]
    return {
        "operand missing": lambda: (results, operands[:1], attributes),
        "operand too many": lambda: (results, [*operands, *[first] * 4], attributes),
        "result too many": lambda: ([*results, results[0]], operands, attributes),
        "type": lambda: (results, [jax.ShapeDtypeStruct(first.shape, "int64"), *operands[1:]], attributes),
        "rank": lambda: (results, [jax.ShapeDtypeStruct(first.shape[1:], first.dtype), *operands[1:]], attributes),
        "shape": lambda: ([jax.ShapeDtypeStruct((7, 7), results[0].dtype), *results[1:]], operands, attributes),
        "attribute missing": lambda: (results, operands, dict(sorted(attributes.items())[1:])),
        "attribute of another type": lambda: (results, operands, attributes | {min(attributes): "1"}),
    }[kind]()


KINDS = ["operand missing", "operand too many", "result too many", "type", "rank", "shape"]


@pytest.mark.parametrize("kind", [*KINDS, "attribute missing", "attribute of another type"])
@pytest.mark.parametrize("name", NAMES)
def test_wrong_calls(name, kind):
    """XLA passes what is wrong to the handler, which refuses it. The fuzzer changes calls further, without XLA."""
    results, _, operands, attributes = valid_calls()[name]
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT"):
        call(name, *invalid(kind, results, operands, attributes))


@pytest.mark.parametrize("name, data", [("dcn_cpu_fused_forward", (0, 3)), ("dcn_cpu_fused_cotangents", (0, 3, 4))])
def test_the_fused_kernels_refuse_float64(name, data):
    """All data operands have the type, so no other check refuses it. The fuzzer makes no such call."""
    results, _, operands, attributes = valid_calls()[name]
    operands = [jax.ShapeDtypeStruct(a.shape, "float64") if i in data else a for i, a in enumerate(operands)]
    results = [jax.ShapeDtypeStruct(results[0].shape, "float64"), *results[1:]]
    message = "INVALID_ARGUMENT.*the data are float64; the fused kernels need float16, bfloat16 or float32"
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(name, results, operands, attributes)


def test_sizes_of_levels_that_overflow():
    """Their pixels add up to 4 in 64 bits, as many as value has."""
    levels = [(2**31 - 1, 2**31 - 1, 1)] * 4 + [(2**17, 2**17, 1)]
    operands = jnp.ones((1, 4, 1, 1)), jnp.ones((1, 1, 1, 5, 2)), jnp.ones((1, 1, 1, 5)), jnp.zeros(2, jnp.int32)
    attributes = {"window": False, "discrete": False, "levels": np.array(levels).reshape(-1)}
    result = jax.ShapeDtypeStruct((1, 1, 1, 1), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*the pixels of all levels"):
        jax.ffi.ffi_call("dcn_aggregate", result)(*operands, **attributes)


SPECIAL = [0, -1, 1, 2**31, -(2**31), np.nan, np.inf, -np.inf, 1e-45, 3.4e38, 0.5, 2**24 + 1]


# A function with its fixed options, the shapes of its operands, and options that are drawn.
PUBLIC_CALLS = [
    (jax_dcn.deform_conv2d, [(1, 3, 3, 2), (1, 3, 3, 8), (2, 2, 2, 1)], ("strides", "padding", "kernel_dilation")),
    (
        lambda x, offset, **options: jax_dcn.deform_psroi_pool(x, jnp.ones((2, 5)), offset, output_size=1, **options),
        [(1, 4, 4, 2), (2, 1, 1, 2)],
        ("group_size", "part_size", "spatial_scale", "trans_std"),
    ),
    (
        functools.partial(jax_dcn.dcnv3, kernel_size=3, padding=1, groups=1),
        [(1, 3, 3, 2), (1, 3, 3, 18), (1, 3, 3, 9)],
        ("strides", "offset_scale"),
    ),
    (
        functools.partial(jax_dcn.multi_scale_deformable_attention, spatial_shapes=((2, 2), (1, 1)), points=(1, 1)),
        [(5, 2, 3), (4, 2, 2, 2), (4, 2, 2)],
        (),
    ),
    (jax_dcn.grid_sample, [(3, 3, 2), (4, 2)], ("method", "padding_mode", "align_corners")),
]


@hypothesis.settings(max_examples=15)
@hypothesis.given(st.data())
def test_public_functions_of_any_arguments(data):
    """They return a result, or raise an exception of the package's own checks."""
    size = st.sampled_from([0, 1, 2, 3, 5])
    number = st.sampled_from([*NUMBERS, 1.5, np.nan, None, "SAME", "CIRCULAR", (1, 2), (0, -1), np.ones(2, int)])

    def array(shape):
        dims = [data.draw(size) for _ in range(4)] if data.draw(st.booleans()) else shape
        values = data.draw(st.sampled_from(SPECIAL))
        dtype = data.draw(st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16]))
        return jnp.full(dims, values, jnp.float32).astype(dtype)

    for function, shapes, names in PUBLIC_CALLS:
        options = {name: data.draw(number) for name in names if data.draw(st.booleans())}
        try:
            result = jax.block_until_ready(function(*map(array, shapes), **options))
        except (TypeError, ValueError):
            continue
        assert isinstance(result, jax.Array)
