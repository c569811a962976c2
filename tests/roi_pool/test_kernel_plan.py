"""`deform_psroi_pool_kernel_plan` describes the custom calls of the program that is lowered."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jax_dcn

pytestmark = pytest.mark.platforms("cpu")
struct = jax.ShapeDtypeStruct
OPTIONS = {"output_size": 3, "group_size": 2, "part_size": 2, "sample_per_part": (2, 3)}
CALLS = {
    ("forward", "kernel"): {"dcn_roi_pool"},
    ("x", "kernel"): {"dcn_roi_pool_input_cotangent"},
    ("offset", "kernel"): {"dcn_roi_pool_offset_cotangent"},
}


def shapes(dtype="bfloat16", *, batch=(), offset=True):
    return (
        struct((*batch, 2, 6, 7, 4 * 3), dtype),
        struct((*batch, 5, 5), jnp.float32),
        struct((*batch, 5, 2, 2, 2), dtype) if offset else None,
    )


def lowered(computation, operands, platform, **options):
    names = ["x", "rois", "offset"]
    pool = functools.partial(jax_dcn.deform_psroi_pool, **OPTIONS | options)

    def compute(cotangent, *operands):
        if computation == "forward":
            return pool(*operands)
        k = names.index(computation)
        return jax.vjp(lambda operand: pool(*operands[:k], operand, *operands[k + 1 :]), operands[k])[1](cotangent)

    cotangent = jax.eval_shape(pool, *operands)
    return jax.jit(compute).trace(cotangent, *operands).lower(lowering_platforms=(platform,))


def workspace_bytes(computation, operands, result):
    """The result of the call of the gradient of x, where it is wider than x and is converted afterwards."""
    dimensions, dtype = re.fullmatch(r"tensor<((?:\d+x)*)b?f(\d+)>", result).groups()
    if computation != "x" or int(dtype) == 8 * operands[0].dtype.itemsize:
        return 0
    return math.prod(map(int, dimensions.split("x")[:-1])) * int(dtype) // 8


@pytest.mark.parametrize(
    "target, dtype, keywords, options",
    [
        ("cuda", "bfloat16", {}, {}),
        ("cuda", "float32", {}, {}),
        ("cuda", "float64", {}, {}),
        ("cuda", "bfloat16", {"offset": False}, {}),
        ("cuda", "float16", {"batch": (2, 3)}, {}),
        ("cpu", "bfloat16", {}, {}),
        ("cpu", "float32", {}, {"backend": "reference"}),
        ("tpu", "float32", {}, {}),
    ],
)
def test_the_plan_is_what_is_lowered(target, dtype, keywords, options):
    with jax.enable_x64(dtype == "float64"):
        operands = shapes(dtype, **keywords)
        plan = jax_dcn.deform_psroi_pool_kernel_plan(*operands, platform=target, **OPTIONS | options)
        present = [name for name, a in zip(("x", "rois", "offset"), operands, strict=True) if a is not None]
        assert [choice.computation for choice in plan] == ["forward", *present]
        for choice in plan:
            text = lowered(choice.computation, operands, target, **options).as_text()
            calls = dict(re.findall(r"custom_call @(dcn_\w+)\(.* -> (.*)", text))
            assert set(calls) == CALLS.get((choice.computation, choice.path), set()), choice
            if choice.path == "kernel":
                assert choice.workspace_bytes == workspace_bytes(choice.computation, operands, *calls.values()), choice
    kernels = target != "tpu" and not options
    assert plan["forward"].path == plan["x"].path == ("kernel" if kernels else "reference")


def test_the_workspace_of_the_reference_is_a_lower_bound():
    operands = shapes("float32", batch=(3,))
    options = {"backend": "reference"}
    for choice in jax_dcn.deform_psroi_pool_kernel_plan(*operands, platform="cpu", **OPTIONS | options):
        compiled = lowered(choice.computation, operands, "cpu", **options).compile()
        assert compiled.memory_analysis().temp_size_in_bytes >= choice.workspace_bytes, choice


@pytest.mark.parametrize("target", ["cuda", "cpu", "tpu"])
@pytest.mark.parametrize("symbol", ["batch", "images", "rows", "regions"])
def test_symbolic_sizes_are_printed(target, symbol):
    (size,) = export.symbolic_shape("n")
    sizes = {"batch": 3, "images": 2, "rows": 6, "regions": 5} | {symbol: size}
    x = struct((sizes["batch"], sizes["images"], sizes["rows"], 7, 12), jnp.bfloat16)
    rois = struct((sizes["batch"], sizes["regions"], 5), jnp.float32)
    offset = struct((sizes["batch"], sizes["regions"], 2, 2, 2), jnp.bfloat16)
    plan = jax_dcn.deform_psroi_pool_kernel_plan(x, rois, offset, platform=target, **OPTIONS)
    for choice, row in zip(plan, str(plan).splitlines()[2:], strict=True):
        assert isinstance(choice.workspace_bytes, int) or f"{choice.workspace_bytes} B" in row


ALIGN = {
    "roi_align": {"output_size": 3},
    "max": {"output_size": 3, "mode": "max"},
    "ps_roi_align": {"output_size": 2, "sampling_ratio": 2},
    "deform_roi_pool": {"output_size": 2},
}


@pytest.mark.parametrize("target", ["cuda", "cpu", "tpu"])
@pytest.mark.parametrize("name", ALIGN)
def test_the_plans_of_the_others(name, target):
    """They name the calls that are lowered, and their workspace is that of results which users do not see."""
    operator, options = "roi_align" if name == "max" else name, ALIGN[name]
    x, rois, offset = shapes()
    operands = (x, rois, offset) if name == "deform_roi_pool" else (x, rois)
    plan = getattr(jax_dcn, f"{operator}_kernel_plan")(*operands, platform=target, **options)
    names = ["x", "rois", "offset"][: len(operands)]
    assert [choice.computation for choice in plan] == ["forward", *names]
    pool = functools.partial(getattr(jax_dcn, operator), **options)

    def gradient(x, *rest):
        pooled, pull_back = jax.vjp(lambda x: pool(x, *rest), x)
        return pull_back(pooled)

    text = jax.jit(gradient).trace(*operands).lower(lowering_platforms=(target,)).as_text()
    calls = dict(re.findall(r"custom_call @(dcn_\w+)\(.* -> (.*)", text))
    kind = "dcn_roi_max_pool" if name == "max" else "dcn_roi_pool"
    expected = {kind, f"{kind}_input_cotangent"} | ({f"{kind}_argmax"} if name == "max" else set())
    if target == "tpu":
        assert not calls
        return
    assert set(calls) == expected
    del calls[kind]
    elements = [re.fullmatch(r"tensor<((?:\d+x)*)[a-z]+(\d+)>", result).groups() for result in calls.values()]
    size = sum(math.prod(map(int, shape.split("x")[:-1])) * int(bits) // 8 for shape, bits in elements)
    assert plan["x"].workspace_bytes == size


def test_errors():
    x, rois, offset = shapes()
    with pytest.raises(ValueError, match="offset must have shape"):
        jax_dcn.deform_psroi_pool_kernel_plan(x, rois, offset, output_size=3)
    with pytest.raises(TypeError, match=r"deform_psroi_pool_kernel_plan\(\) got an unexpected keyword argument 'size'"):
        jax_dcn.deform_psroi_pool_kernel_plan(x, rois, output_size=3, size=2)
