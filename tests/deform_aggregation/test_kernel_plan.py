"""The kernel plans describe the custom calls of the program that is lowered."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jax_dcn

pytestmark = pytest.mark.platforms("cpu")
struct = jax.ShapeDtypeStruct
ATTENTION = {"spatial_shapes": ((5, 6), (3, 2)), "points": (2, 3)}
DCNV3 = {"kernel_size": 3, "padding": 1, "groups": 2}
CALLS = [
    "dcn_aggregate",
    "dcn_aggregation_value_cotangent",
    "dcn_aggregation_tap_cotangents",
    "dcn_aggregation_tap_cotangents",
]
FUNCTIONS = {
    "attention": (
        jax_dcn.multi_scale_deformable_attention,
        jax_dcn.multi_scale_deformable_attention_kernel_plan,
        ("value", "sampling_locations", "attention_weights"),
        ATTENTION,
    ),
    "dcnv3": (jax_dcn.dcnv3, jax_dcn.dcnv3_kernel_plan, ("x", "offset", "mask"), DCNV3),
}


def shapes(name, dtype, batch=()):
    wide = jnp.promote_types(dtype, jnp.float32)
    if name == "attention":
        return struct((*batch, 36, 4, 6), dtype), struct((*batch, 7, 4, 5, 2), wide), struct((*batch, 7, 4, 5), wide)
    return struct((*batch, 5, 6, 12), dtype), struct((*batch, 5, 6, 36), wide), struct((*batch, 5, 6, 18), wide)


def lowered(function, k, operands, platform):
    """The program of the forward, for k = 0, or of the gradient of operand k - 1."""

    def compute(cotangent, *operands):
        if k == 0:
            return function(*operands)
        before, after = operands[: k - 1], operands[k:]
        return jax.vjp(lambda operand: function(*before, operand, *after), operands[k - 1])[1](cotangent)

    cotangent = jax.eval_shape(function, *operands)
    return jax.jit(compute).trace(cotangent, *operands).lower(lowering_platforms=(platform,))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "target, dtype, batch, options",
    [
        ("cuda", "bfloat16", (2, 3), {}),
        ("cuda", "float64", (), {}),
        ("cpu", "float32", (2,), {}),
        ("cpu", "float32", (2,), {"backend": "reference"}),
        ("tpu", "float32", (2,), {}),
    ],
)
def test_the_plan_is_what_is_lowered(name, target, dtype, batch, options):
    function, plan_of, names, keywords = FUNCTIONS[name]
    with jax.enable_x64(dtype == "float64"):
        operands = shapes(name, dtype, batch)
        plan = plan_of(*operands, platform=target, **keywords, **options)
        assert [choice.computation for choice in plan] == ["forward", *names]
        kernels = target != "tpu" and not options
        for k, choice in enumerate(plan):
            program = lowered(functools.partial(function, **keywords, **options), k, operands, target)
            calls = re.findall(r"custom_call @(dcn_\w+)\(.* -> (.*)", program.as_text())
            assert [call for call, _ in calls] == ([CALLS[k]] if kernels else [])
            assert choice.path == ("kernel" if kernels else "reference")
            if kernels and names[k - 1] in ("value", "x") and k == 1:
                (elements,) = re.findall(r"tensor<(\d+)xi32>", calls[0][1])
                assert choice.workspace_bytes == 4 * int(elements)
            elif kernels:
                assert choice.workspace_bytes == 0
            elif target == "cpu":
                assert program.compile().memory_analysis().temp_size_in_bytes >= choice.workspace_bytes > 0


@pytest.mark.parametrize("batch", [1, 16, 1024])
def test_the_workspace_on_cuda_does_not_grow_with_the_batch(batch):
    levels = ((64, 64), (32, 32), (16, 16), (8, 8))
    value, locations = struct((batch, 5440, 8, 32), jnp.bfloat16), struct((batch, 5440, 8, 4, 4, 2), jnp.float32)
    weights = struct(locations.shape[:-1], jnp.float32)
    plan = jax_dcn.multi_scale_deformable_attention_kernel_plan(
        value, locations, weights, spatial_shapes=levels, platform="cuda"
    )
    assert 0 < plan["value"].workspace_bytes <= 256 * 2**20


@pytest.mark.parametrize("target", ["cuda", "cpu", "tpu"])
@pytest.mark.parametrize("symbol", ["batch", "queries"])
def test_symbolic_sizes_are_printed(target, symbol):
    (size,) = export.symbolic_shape("n")
    sizes = {"batch": 3, "queries": 7} | {symbol: size}
    taps = sizes["batch"], sizes["queries"], 4, 5
    operands = (
        struct((sizes["batch"], 36, 4, 6), jnp.bfloat16),
        struct((*taps, 2), jnp.float32),
        struct(taps, jnp.float32),
    )
    plan = jax_dcn.multi_scale_deformable_attention_kernel_plan(*operands, platform=target, **ATTENTION)
    for choice, row in zip(plan, str(plan).splitlines()[2:], strict=True):
        assert isinstance(choice.workspace_bytes, int) or f"{choice.workspace_bytes} B" in row


def test_errors():
    with pytest.raises(ValueError, match="spatial_shapes must"):
        jax_dcn.multi_scale_deformable_attention_kernel_plan(*shapes("attention", "float32"), spatial_shapes=())
    with pytest.raises(TypeError, match=r"dcnv3_kernel_plan\(\) got an unexpected keyword argument 'stride'"):
        jax_dcn.dcnv3_kernel_plan(*shapes("dcnv3", "float32"), **DCNV3, stride=2)
