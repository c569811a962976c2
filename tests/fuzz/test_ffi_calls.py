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
SIZES = [0, 1, 2, 3, 7, 33]
NUMBERS = [-(2**63), -(2**31), -1, 0, 1, 2, 3, 2**15 + 1, 2**31 - 1, 2**31, 2**63 - 1]
TYPES = [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64, jnp.int32, jnp.int64, jnp.bool_, jnp.complex64]
ATTRIBUTES = [np.int32(1), np.float32(1), 1, 1.0, True, "1", np.zeros(0, np.int64), np.ones(3, np.int64)]


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
        return y.sum() + pooled.sum() + largest.sum() + aggregated.sum()

    operands = [jnp.ones(s) for s in ((2, 5, 6, 4), (2, 5, 6, 36), (3, 3, 4, 2), (2, 5, 6, 18), (3, 2, 2, 4))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", record)
        jax.clear_caches()
        jax.jit(jax.value_and_grad(all_operators, (0, 1, 2, 3, 4))).lower(*operands)
        jax.jit(lambda *operands: jax.jvp(all_operators, operands, operands)).lower(*operands)
    jax.clear_caches()
    return calls


@st.composite
def invalid_calls(draw):
    name = draw(st.sampled_from(NAMES))
    results, aliases, operands, attributes = valid_calls()[name]
    results, operands, attributes = list(results), list(operands), dict(attributes)
    for _ in range(draw(st.integers(1, 2))):
        buffers = draw(st.sampled_from([results, operands]))
        kind = draw(st.sampled_from(["shape", "rank", "type", "number", "attribute", "attribute's number"]))
        if kind == "attribute":
            attribute = draw(st.sampled_from([*attributes, "other"]))
            value = draw(st.sampled_from([None, *ATTRIBUTES]))
            attributes.pop(attribute, None)
            if value is not None:
                attributes[attribute] = value
        elif kind == "attribute's number":
            attribute = draw(st.sampled_from(sorted(attributes)))
            is_limited = attribute == "sample_per_part"  # large values are valid, and only take long
            numbers = [n for n in NUMBERS if not is_limited or n < 2**15]
            value, number = attributes[attribute], draw(st.sampled_from(numbers))
            attributes[attribute] = np.array([number, *value[1:]]) if np.ndim(value) else type(value)(number)
        elif buffers:
            i = draw(st.integers(0, len(buffers) - 1))
            shape, dtype = list(buffers[i].shape), buffers[i].dtype
            if kind == "shape" and shape:
                shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from(SIZES))
            elif kind == "rank":
                shape = draw(st.sampled_from([[], shape[1:], [*shape, 1]]))
            elif kind == "type":
                dtype = draw(st.sampled_from(TYPES))
            buffers[i] = jax.ShapeDtypeStruct(tuple(shape), dtype)
            if kind == "number":
                buffers[i:] = draw(st.sampled_from([[], [buffers[i]] * 2]))
    # XLA itself requires that an aliased operand and result exist and have the same shape and type.
    for operand, result in (aliases or {}).items():
        if operand >= len(operands) or result >= len(results) or operands[operand] != results[result]:
            aliases = None
    return name, results, aliases, operands, attributes


def call(name, results, aliases, operands, attributes):
    function = jax.ffi.ffi_call(name, results, input_output_aliases=aliases)
    arrays = [jnp.ones(operand.shape, operand.dtype) for operand in operands]
    return jax.block_until_ready(jax.jit(lambda *arrays: function(*arrays, **attributes))(*arrays))


def test_the_packages_own_calls_are_right():
    assert sorted(valid_calls()) == NAMES
    for name in NAMES:
        call(name, *valid_calls()[name])


@hypothesis.settings(max_examples=60)
@hypothesis.given(invalid_calls())
def test_wrong_calls(invalid):
    with jax.enable_x64(True):
        try:
            for result in call(*invalid):
                assert result is not None
        except jax.errors.JaxRuntimeError as error:
            assert "INVALID_ARGUMENT" in str(error), error


@pytest.mark.parametrize("name, data", [("dcn_cpu_fused_forward", (0, 3)), ("dcn_cpu_fused_cotangents", (0, 3, 4))])
def test_the_fused_kernels_refuse_float64(name, data):
    """All data operands have the type, so no other check refuses it. The fuzzer makes no such call."""
    results, aliases, operands, attributes = valid_calls()[name]
    operands = [jax.ShapeDtypeStruct(a.shape, "float64") if i in data else a for i, a in enumerate(operands)]
    results = [jax.ShapeDtypeStruct(results[0].shape, "float64"), *results[1:]]
    message = "INVALID_ARGUMENT.*x must be float32, bfloat16 or float16"
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(name, results, aliases, operands, attributes)


def test_sizes_of_levels_that_overflow():
    """Their pixels add up to 4 in 64 bits, as many as value has."""
    levels = [(2**31 - 1, 2**31 - 1, 1)] * 4 + [(2**17, 2**17, 1)]
    operands = jnp.ones((1, 4, 1, 1)), jnp.ones((1, 1, 1, 5, 2)), jnp.ones((1, 1, 1, 5)), jnp.zeros(2, jnp.int32)
    attributes = {"window": False, "discrete": False, "levels": np.array(levels).reshape(-1)}
    result = jax.ShapeDtypeStruct((1, 1, 1, 1), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*the pixels of all levels"):
        jax.ffi.ffi_call("dcn_aggregate", result)(*operands, **attributes)


SPECIAL = [0, -1, 1, 2**31, -(2**31), np.nan, np.inf, -np.inf, 1e-45, 3.4e38, 0.5, 2**24 + 1]


@hypothesis.settings(max_examples=15)
@hypothesis.given(st.data())
def test_public_functions_of_any_arguments(data):
    """They return a result, or raise an exception of the package's own checks."""
    size = st.sampled_from([0, 1, 2, 3, 5])
    number = st.sampled_from([*NUMBERS, 1.5, np.nan, None, "SAME", "CIRCULAR", (1, 2), (0, -1), np.ones(2, int)])

    def array(*least):
        dims = [data.draw(size) for _ in range(4)] if data.draw(st.booleans()) else least
        values = data.draw(st.sampled_from(SPECIAL))
        dtype = data.draw(st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16]))
        return jnp.full(dims, values, jnp.float32).astype(dtype)

    options = {
        name: data.draw(number) for name in ("strides", "padding", "kernel_dilation") if data.draw(st.booleans())
    }
    try:
        y = jax_dcn.deform_conv2d(array(1, 3, 3, 2), array(1, 3, 3, 8), array(2, 2, 2, 1), **options)
        assert y.ndim == 4
    except (TypeError, ValueError):
        pass
    options = {
        name: data.draw(number)
        for name in ("group_size", "part_size", "spatial_scale", "trans_std")
        if data.draw(st.booleans())
    }
    try:
        pooled = jax_dcn.deform_psroi_pool(
            array(1, 4, 4, 2), jnp.ones((2, 5)), array(2, 1, 1, 2), output_size=1, **options
        )
        assert pooled.shape[:3] == (2, 1, 1)
    except (TypeError, ValueError):
        pass
    options = {name: data.draw(number) for name in ("strides", "offset_scale") if data.draw(st.booleans())}
    try:
        y = jax_dcn.dcnv3(
            array(1, 3, 3, 2), array(1, 3, 3, 18), array(1, 3, 3, 9), kernel_size=3, padding=1, groups=1, **options
        )
        assert y.shape[-1] == 2
    except (TypeError, ValueError):
        pass
    try:
        y = jax_dcn.multi_scale_deformable_attention(
            array(5, 2, 3), array(4, 2, 2, 2), array(4, 2, 2), spatial_shapes=((2, 2), (1, 1)), points=(1, 1)
        )
        assert y.shape[-1] == 6
    except (TypeError, ValueError):
        pass
