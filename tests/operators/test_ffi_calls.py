"""Invalid calls of the FFI handlers, which the package never makes: they return a result or raise XLA's error."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn._primitive import extension
from tests.helpers.slow import slow_unless

pytestmark = pytest.mark.platforms("cpu")


def shaped(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


class Call(NamedTuple):
    """A custom call. `aliases` has the place of the result that overwrites an operand, by the operand's place."""

    name: str
    results: list
    operands: list
    attributes: dict
    aliases: dict | None

    def run(self):
        # XLA itself refuses an operand that is overwritten by a result of another shape or type.
        aliases = {
            i: j
            for i, j in (self.aliases or {}).items()
            if (i < len(self.operands) and j < len(self.results)) and self.operands[i] == self.results[j]
        }
        # With an effect, it is called even if nothing uses its results.
        options = {"input_output_aliases": aliases, "has_side_effect": True}
        function = jax.ffi.ffi_call(self.name, self.results, **options)
        arrays = [jnp.ones(operand.shape, operand.dtype) for operand in self.operands]
        return jax.block_until_ready(jax.jit(lambda *arrays: function(*arrays, **self.attributes))(*arrays))

    def is_refused(self):
        """Whether the handler refuses the call. XLA passes it what is wrong."""
        try:
            self.run()
        except jax.errors.JaxRuntimeError as error:
            assert "INVALID_ARGUMENT" in str(error), error
            return True
        return False


def convolution(backend):
    return lambda x, offset, weight, mask: jax_dcn.deform_conv2d(x, offset, weight, mask=mask, backend=backend)


# Functions whose kernels are all of the package's, and the shapes of their operands, which are all differentiated.
X, POSITIONS, MASKS = (2, 5, 6, 4), (2, 5, 6, 36), (2, 5, 6, 18)
FUNCTIONS = {
    "columns": (convolution("im2col"), [X, POSITIONS, (3, 3, 4, 2), MASKS]),
    "fused": (convolution("fused"), [X, POSITIONS, (3, 3, 4, 2), MASKS]),
    "regions": (functools.partial(jax_dcn.deform_psroi_pool, output_size=2), [X, (3, 5), (3, 2, 2, 4)]),
    "maximum": (functools.partial(jax_dcn.roi_align, output_size=2, mode="max"), [X, (3, 5)]),
    "window": (functools.partial(jax_dcn.dcnv3, kernel_size=3, padding=1, groups=2), [X, POSITIONS, MASKS]),
    "levels": (
        functools.partial(jax_dcn.multi_scale_deformable_attention, spatial_shapes=((2, 3), (1, 1)), points=(1, 2)),
        [(2, 7, 2, 3), (2, 4, 2, 3, 2), (2, 4, 2, 3)],
    ),
    "points": (jax_dcn.grid_sample, [X, (2, 3, 2)]),
    "pairs": (lambda costs: costs[..., 0] * jax_dcn.linear_sum_assignment(costs), [(2, 3, 4)]),
}


@functools.cache
def valid_calls(function, platform="cpu"):
    """The calls that the package makes for a function and its derivatives in both modes, one by handler.

    For another platform, its kernels must be substituted.
    """
    calls = {}

    def record(name, results, input_output_aliases=None):
        def call(*operands, **attributes):
            shapes = [shaped(a) for a in jax.tree.leaves(results)]
            calls[name] = Call(name, shapes, list(map(shaped, operands)), attributes, input_output_aliases)
            return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), results)

        return call

    function, shapes = FUNCTIONS[function]
    operands = [jnp.ones(shape) for shape in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", record)
        jax.clear_caches()
        jax.jit(lambda *operands: jax.vjp(function, *operands)[1](function(*operands))).lower(*operands)
        jax.jit(lambda *operands: jax.jvp(function, operands, operands)).lower(*operands)
    jax.clear_caches()
    return calls


def changed(values, place, value):
    return [*values[:place], value, *values[place + 1 :]]


def changed_arrays(arrays):
    """What may be wrong with operands, or with results, each by a name."""
    yield "one too many", [*arrays, arrays[0]]
    yield "one missing", arrays[:-1]
    for place, array in enumerate(arrays):
        yield f"{place} of int8", changed(arrays, place, jax.ShapeDtypeStruct(array.shape, jnp.int8))
        longer = {f"{place} with one dimension more": (1, *array.shape)}
        longer |= {f"{place} longer in {k}": changed(array.shape, k, size + 1) for k, size in enumerate(array.shape)}
        for name, shape in longer.items():
            yield name, changed(arrays, place, jax.ShapeDtypeStruct(shape, array.dtype))


def changed_attributes(attributes):
    for name, value in attributes.items():
        yield f"{name} missing", {other: attributes[other] for other in attributes if other != name}
        yield f"{name} of another type", attributes | {name: "1"}
        if isinstance(value, np.ndarray):
            yield f"{name} shorter", attributes | {name: value[:-1]}
            for place in range(value.size):
                for number in (-1, 2**31):
                    yield f"{name}[{place}] {number}", attributes | {name: np.array(changed([*value], place, number))}
        elif isinstance(value, bool):
            yield f"not {name}", attributes | {name: not value}
        elif isinstance(value, int):
            for number in (-1, 2**31):
                yield f"{name} {number}", attributes | {name: number}


def wrong_calls(call):
    """`call` with one change each, by its name."""
    for name, operands in changed_arrays(call.operands):
        yield f"operand {name}", call._replace(operands=operands)
    for name, results in changed_arrays(call.results):
        yield f"result {name}", call._replace(results=results)
    for name, attributes in changed_attributes(call.attributes):
        yield name, call._replace(attributes=attributes)
    if call.aliases:
        yield "nothing in place", call._replace(aliases=None)


def longer(array, *dimensions):
    return {f"{array} longer in {k}" for k in dimensions}


# The changes after which a call is as valid as before: an operand that may be absent, a larger image, another
# padding.
WINDOW = {"padding[0] -1", "padding[1] -1"}
CONVOLUTION = WINDOW | {"not circular", "operand one missing"}
VALID = {
    "columns": {
        "dcn_sample": CONVOLUTION | longer("operand 0", 0, 1, 2),
        "dcn_cpu_x_cotangent": CONVOLUTION,
        "dcn_offset_cotangent": CONVOLUTION | longer("operand 0", 0, 1, 2),
        "dcn_sample_tangents": WINDOW | {"not circular"},
        "dcn_sort_samples": CONVOLUTION | longer("operand 0", 0) | {"operand 0 of int8"},  # x, which is not read
        "dcn_gather_samples": {"not circular"} | longer("operand 0", 2),  # more samples than the part has
    },
    "fused": {
        "dcn_cpu_fused_forward": CONVOLUTION | longer("operand 0", 1, 2),
        "dcn_cpu_fused_cotangents": CONVOLUTION,
        "dcn_sample_tangents": WINDOW | {"not circular"},
    },
    "regions": {
        "dcn_roi_pool": longer("operand 0", 1, 2, 3) | {"operand one missing"},
        "dcn_roi_pool_x_cotangent": longer("result 0", 1, 2, 3) | {"operand one missing"},
        "dcn_roi_pool_offset_cotangent": longer("operand 0", 1, 2, 3),
    },
    "maximum": {
        "dcn_roi_max_pool": longer("operand 0", 1, 2, 3),
        "dcn_roi_max_pool_argmax": longer("operand 0", 1, 2, 3),
        "dcn_roi_max_pool_x_cotangent": longer("result 0", 1, 2, 3),
    },
    "window": {
        "dcn_aggregate": WINDOW | longer("operand 0", 1, 2),
        "dcn_aggregation_value_cotangent": WINDOW | longer("result 0", 1, 2),
        "dcn_aggregation_tap_cotangents": WINDOW | longer("operand 0", 1, 2),
    },
    "levels": {
        "dcn_aggregate": {"not discrete"},
        "dcn_aggregation_value_cotangent": {"not discrete"},
        "dcn_aggregation_tap_cotangents": {"not discrete"},
    },
    "points": {
        "dcn_sampling": longer("operand 0", 1, 2),
        "dcn_sampling_x_cotangent": longer("result 0", 1, 2),
        "dcn_sampling_locations_cotangent": longer("operand 0", 1, 2),
    },
    "pairs": {"dcn_assign": set()},
}


@pytest.mark.parametrize("function", [slow_unless(name == "levels", name) for name in FUNCTIONS])
def test_wrong_calls_are_refused(function, platform):
    check_that_wrong_calls_are_refused(function, platform)


def check_that_wrong_calls_are_refused(function, platform):
    for name, call in valid_calls(function, platform).items():
        call.run()
        with jax.enable_x64(True):
            accepted = {change for change, wrong in wrong_calls(call) if not wrong.is_refused()}
        valid = VALID[function][name]
        if platform == "cuda" and name in ("dcn_aggregation_value_cotangent", "dcn_sampling_x_cotangent"):
            valid = valid - longer("result 0", 1, 2)  # the other results have its size, too
        assert accepted == valid, name


@pytest.mark.parametrize(
    "function, handler, change, message",
    [
        ("fused", "dcn_cpu_fused_forward", "operand 3 of int8", "weight has element type s8, must be f32"),
        ("fused", "dcn_cpu_fused_cotangents", "num_splits -1", "attribute num_splits must be 1 to 64, is -1"),
        ("points", "dcn_sampling", "result 0 longer in 2", r"out has shape \[2, 3, 5\], must be \[2, 3, 4\]"),
    ],
)
def test_messages(function, handler, change, message):
    wrong = dict(wrong_calls(valid_calls(function)[handler]))[change]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: {handler}: {message}"):
        wrong.run()


def test_every_handler_is_called():
    assert {name for function in FUNCTIONS for name in valid_calls(function)} == {*extension.modules["cpu"].handlers}


# Arrays without elements, whose other sizes do not fit in 32 or in 64 bits: a function of FUNCTIONS, a handler, and the
# shapes of its first operands and of its first result.
EMPTY = {
    "an image's pixels": ("points", "dcn_sampling", [(0, 2**20, 2**20, 4), (0, 1, 2)], (0, 1, 4)),
    "a pixel's bytes": ("points", "dcn_sampling", [(0, 1, 1, 2**30), (0, 1, 2)], (0, 1, 2**30)),
    "samples of an image": ("points", "dcn_sampling", [(0, 4, 4, 4), (0, 2**30, 2)], (0, 2**30, 4)),
    "no memory can hold": ("points", "dcn_sampling", [(0, 2**40, 2**10, 4), (0, 1, 2)], (0, 1, 4)),
    "output's rows": (
        "columns",
        "dcn_sample",
        [(0, 5, 6, 4), (0, 2**31, 6, 36), (4,), (0, 2**31, 6, 18)],
        (0, 2**31, 6, 9, 4),
    ),
    "image's height": ("regions", "dcn_roi_pool", [(0, 2, 2**31, 6, 4), (0, 3, 5), (0, 3, 2, 2, 4)], (0, 3, 2, 2, 4)),
    "a head's samples": (
        "levels",
        "dcn_aggregate",
        [(0, 7, 2, 3), (0, 2**30, 2, 3, 2), (0, 2**30, 2, 3)],
        (0, 2**30, 2, 3),
    ),
}


@pytest.mark.parametrize("what", EMPTY)
def test_sizes_that_overflow(what):
    function, name, operands, result = EMPTY[what]
    call = valid_calls(function)[name]
    before = call.operands[: len(operands)]
    shaped_alike = [jax.ShapeDtypeStruct(shape, old.dtype) for shape, old in zip(operands, before, strict=True)]
    results = [jax.ShapeDtypeStruct(result, call.results[0].dtype)]
    call = call._replace(operands=shaped_alike + call.operands[len(operands) :], results=results)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{what}"):
        call.run()


@pytest.mark.parametrize("name, data", [("dcn_cpu_fused_forward", (0, 3)), ("dcn_cpu_fused_cotangents", (0, 3, 4))])
def test_the_fused_kernels_refuse_float64(name, data):
    """All data operands have the type, so no other check refuses it."""
    call = valid_calls("fused")[name]
    operands = [jax.ShapeDtypeStruct(a.shape, "float64") if i in data else a for i, a in enumerate(call.operands)]
    results = [jax.ShapeDtypeStruct(call.results[0].shape, "float64"), *call.results[1:]]
    message = "INVALID_ARGUMENT.*the data are float64; the fused kernels need float16, bfloat16 or float32"
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call._replace(operands=operands, results=results).run()


def test_sizes_of_levels_that_overflow():
    """Their pixels add up to 4 in 64 bits, as many as value has."""
    levels = [(2**31 - 1, 2**31 - 1, 1)] * 4 + [(2**17, 2**17, 1)]
    operands = jnp.ones((1, 4, 1, 1)), jnp.ones((1, 1, 1, 5, 2)), jnp.ones((1, 1, 1, 5)), jnp.zeros(2, jnp.int32)
    attributes = {"window": False, "discrete": False, "levels": np.array(levels).reshape(-1)}
    result = jax.ShapeDtypeStruct((1, 1, 1, 1), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*the pixels of all levels"):
        jax.ffi.ffi_call("dcn_aggregate", result)(*operands, **attributes)
