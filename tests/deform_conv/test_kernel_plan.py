"""`kernel_plan` describes the custom calls of the program that is lowered, and the sizes of their workspace."""

import functools
import math
import re
import types

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jax_dcn
from jax_dcn._operators import kernel_plan
from jax_dcn._operators.deform_conv import fused, gpu_estimate, plain
from jax_dcn._primitive import extension
from tests.helpers.deform_conv.cases import Operands, convolve

pytestmark = pytest.mark.platforms("cpu")
struct = jax.ShapeDtypeStruct
CALLS = {  # by computation and path
    ("forward", "fused"): {"dcn_fused_forward"},
    ("x", "fused"): {"dcn_fused_input_cotangent"},
    ("offset", "fused"): {"dcn_fused_offset_cotangent"},
    ("mask", "fused"): {"dcn_fused_offset_cotangent"},
    ("weight", "fused"): {"dcn_fused_weight_cotangent"},
    ("forward", "plain"): {"dcn_sample"},
    ("x", "plain"): {"dcn_input_cotangent"},
    ("offset", "plain"): {"dcn_offset_cotangent"},
    ("mask", "plain"): {"dcn_offset_cotangent"},
    ("weight", "plain"): {"dcn_sample"},
}


def shapes(
    dtype="bfloat16",
    *,
    image=(4, 5),
    channels=32,
    features=8,
    groups=1,
    offset_groups=1,
    batch=(2,),
    kernel=(3, 3),
    bias=True,
    mask=True,
):
    """The operands of a "SAME" convolution."""
    samples = (*batch, *image, offset_groups * math.prod(kernel))
    wide = jnp.promote_types(dtype, jnp.float32)
    return Operands(
        x=struct((*batch, *image, channels), dtype),
        offset=struct((*samples[:-1], 2 * samples[-1]), wide),
        weight=struct((*kernel, channels // groups, features), dtype),
        bias=struct((features,), wide) if bias else None,
        mask=struct(samples, wide) if mask else None,
    )


def compute(computation, cotangent, operands, **options):
    """The forward, or one gradient."""
    x, offset, weight, bias, mask = operands
    if computation == "forward":
        return convolve(operands, **options)
    if computation == "bias":
        return jax.vjp(lambda bias: convolve(operands._replace(bias=bias), **options), bias)[1](cotangent)
    function = getattr(jax_dcn, f"deform_conv2d_{'input' if computation == 'x' else computation}_grad")
    return function(cotangent, x, offset, weight, mask, **options)


def lowered(computation, operands, platform, **options):
    cotangent = jax.eval_shape(functools.partial(convolve, **options), operands)
    function = jax.jit(functools.partial(compute, computation, **options))
    return function.trace(cotangent, operands).lower(lowering_platforms=(platform,)).as_text()


CALL = re.compile(r"custom_call @(dcn_\w+)\(.* : \((.*?)\) -> (.*)")
TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4}


def tensor_bytes(types):
    """The size of each tensor in a list of MLIR types."""
    return [math.prod(map(int, dims.split("x")[:-1])) * BYTES[dtype] for dims, dtype in TYPE.findall(types)]


def workspace_bytes(name, operands, results, is_in_place):
    """What a custom call needs besides its operands and results, from the sizes of its buffers."""
    if name in ("dcn_sample", "dcn_fused_weight_cotangent"):
        return results[0]  # columns; partial sums
    if name.startswith("dcn_cpu_fused"):
        return results[-1]
    if name == "dcn_offset_cotangent":
        return operands[3]  # the columns' cotangent
    if name == "dcn_input_cotangent":
        sums = 0 if is_in_place else operands[3]
        return operands[2] + sums + results[1]  # the columns' cotangent, sums, and the samples' order
    if name == "dcn_fused_input_cotangent":
        return operands[2] + sum(results[1:])  # the weight and the scatter lists
    return operands[3]  # the weight


def expected_calls(choice, platform):
    if (choice.path, platform) == ("fused", "cpu"):
        return {f"dcn_cpu_fused_{'forward' if choice.computation == 'forward' else 'cotangents'}"}
    return CALLS.get((choice.computation, choice.path), set())


def check(operands, platform, **options):
    """The plan of all computations, once they have been lowered and compared with it."""
    plan = jax_dcn.kernel_plan(*operands, platform=platform, **options)
    present = [name for name in ("x", "offset", "mask", "weight", "bias") if getattr(operands, name) is not None]
    assert [choice.computation for choice in plan] == ["forward", *present]
    for choice in plan:
        text = lowered(choice.computation, operands, platform, **options)
        calls = [
            (name, tensor_bytes(operands), tensor_bytes(results)) for name, operands, results in CALL.findall(text)
        ]
        names, expected = {name for name, *_ in calls}, expected_calls(choice, platform)
        assert names == expected or (names == set() and 0 in operands.x.shape), choice
        assert choice.reason, choice
        if calls:
            is_in_place = operands.x.dtype == jnp.promote_types(operands.x.dtype, jnp.float32)
            expected = max(workspace_bytes(*call, is_in_place) for call in calls)
            assert choice.workspace_bytes == expected, choice
    return plan


VARIANTS = {
    "fused": {},
    "narrow": {"channels": 24},
    "vectors": {"channels": 12},
    "groups": {"channels": 64, "features": 16, "groups": 2},
    "ragged_groups": {"channels": 192, "features": 48, "groups": 2, "offset_groups": 3},
    "offset_groups": {"channels": 64, "offset_groups": 2},
    "narrow_offset_groups": {"channels": 64, "offset_groups": 4},
    "odd_features": {"features": 7},
    "few_features": {"features": 6},
    "many_features": {"features": 264},
    "unbatched": {"batch": ()},
    "two_batch_dimensions": {"batch": (2, 3)},
    "no_images": {"batch": (0,)},
    "no_bias_and_mask": {"bias": False, "mask": False},
    "many_pixels": {"image": (40, 41), "batch": (3,)},
    "one_tap": {"kernel": (1, 1)},
}


DTYPES = [("float16", "highest"), ("float32", "highest"), ("float32", "TF32_TF32_F32"), ("float64", None)]
SHORT = ["fused", "groups", "no_bias_and_mask"]


@pytest.mark.parametrize(
    "target, dtype, precision, variant",
    [
        *(("cuda", dtype, "default", variant) for dtype in ("bfloat16", "float32") for variant in VARIANTS),
        *(("cuda", *dtype, variant) for dtype in DTYPES for variant in SHORT),
        *(("cpu", dtype, None, variant) for dtype in ("bfloat16", "float32") for variant in (*SHORT, "many_pixels")),
        ("tpu", "bfloat16", None, "fused"),
    ],
)
def test_the_plan_is_what_is_lowered(target, dtype, precision, variant):
    with jax.enable_x64(dtype == "float64"):
        options = {"precision": precision, "feature_group_count": VARIANTS[variant].get("groups", 1)}
        check(shapes(dtype, **VARIANTS[variant]), target, **options)


def paths(plan):
    return {choice.computation: choice.path for choice in plan}


def test_options_count():
    wide = check(shapes(), "cuda", preferred_element_type=jnp.float32)
    assert paths(wide) == {
        "forward": "fused",
        "x": "plain",
        "offset": "plain",
        "mask": "plain",
        "weight": "plain",
        "bias": "xla",
    }
    assert wide["x"].reason == "the result is float32 for bfloat16 data; the fused gradients need bfloat16"
    assert {choice.path for choice in check(shapes(), "cuda", backend="reference")} == {"reference", "xla"}


def test_first_channels():
    x, offset, weight, _, _ = shapes()
    nchw = [struct((2, 32, 4, 5), x.dtype), struct((2, 18, 4, 5), offset.dtype), struct((8, 32, 3, 3), weight.dtype)]
    plan = jax_dcn.kernel_plan(*nchw, data_format="NCHW", platform="cuda")
    assert plan == jax_dcn.kernel_plan(x, offset, weight, platform="cuda")


def limit_lists(monkeypatch, operands, images):
    """Allows the scatter lists of so many images."""
    size = fused.list_bytes(operands.x, operands.offset)
    monkeypatch.setattr(fused, "LIST_BYTES", min(images, 1) * size)
    monkeypatch.setattr(fused, "CHUNK_LIST_BYTES", images * size)
    monkeypatch.setattr(gpu_estimate, "MARGIN", math.inf)  # what can be fused is


@pytest.mark.parametrize("held", [0, 1, 3])
def test_images_in_chunks(held, monkeypatch):
    """One by one, three and the rest; or by the plain path, if even the lists of one image are too long."""
    operands = shapes(batch=(5,))
    limit_lists(monkeypatch, operands, held)
    plan = check(operands, "cuda")
    assert plan["x"].path == ("fused" if held else "plain")
    assert held or plan["x"].reason.startswith("the scatter lists of one image take")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_images_are_one_chunk_if_their_workspace_fits(dtype, target, monkeypatch):
    operands = shapes(dtype, batch=(4,))
    at_once = check(operands, target, backend="plain")["x"].workspace_bytes
    monkeypatch.setitem(plain.COLUMN_BYTES, target, at_once)
    assert check(operands, target, backend="plain")["x"].workspace_bytes == at_once
    monkeypatch.setitem(plain.COLUMN_BYTES, target, at_once - 1)
    assert check(operands, target, backend="plain")["x"].workspace_bytes == at_once // 2


@pytest.mark.parametrize("path", ["fused", "plain"])
def test_a_path_can_be_forced(path):
    plan = check(shapes(), "cuda", backend=path)
    assert set(paths(plan).values()) == {path, "xla"}
    assert plan["forward"].reason == f"backend={path!r} was passed"


def test_a_forced_path_that_is_impossible_is_an_error():
    """The plan raises what lowering does."""
    operands, options = shapes("float32"), {"precision": "default", "backend": "fused"}
    message = "backend='fused' cannot compute the gradient of weight: the data are float32; the fused gradient of"
    with pytest.raises(ValueError, match=message):
        jax_dcn.kernel_plan(*operands, platform="cuda", **options)
    with pytest.raises(ValueError, match=message):
        lowered("weight", operands, "cuda", **options)
    assert "dcn_fused_forward" in lowered("forward", operands, "cuda", **options)
    with jax.enable_x64(True), pytest.raises(ValueError, match="cannot compute the forward: the data are float64"):
        lowered("forward", shapes("float64"), "cpu", **options)


def test_the_plain_path_of_a_cpu_can_be_requested():
    assert set(paths(check(shapes(), "cpu", backend="plain")).values()) == {"plain", "xla"}


def test_the_workspace_of_the_reference_is_a_lower_bound():
    operands = shapes("float32", image=(16, 17))
    plan = jax_dcn.kernel_plan(*operands, platform="cpu", backend="reference")
    cotangent = jax.eval_shape(convolve, operands)
    for choice in plan:
        function = jax.jit(functools.partial(compute, choice.computation, backend="reference"))
        size = function.lower(cotangent, operands).compile().memory_analysis().temp_size_in_bytes
        assert size >= choice.workspace_bytes, choice


REASONS = [
    (
        {"channels": 24, "offset_groups": 2},
        "x has 12 channels in each of 2 offset groups; the fused kernels need a multiple of 8, which is 16 bytes of "
        "bfloat16",
    ),
    ({"channels": 0}, "x has no channels; the fused gradients need some"),
    ({"channels": 12}, "x has 12 channels; the fused kernels need a multiple of 8, which is 16 bytes of bfloat16"),
    ({"features": 7}, "weight has 7 output channels; the fused kernels need an even number"),
    (
        {"features": 6},
        "weight has 6 output channels; the fused gradients need a multiple of 8, which is 16 bytes of bfloat16",
    ),
    ({"dtype": "float32"}, "the data are float32; the fused gradient of weight needs a 16-bit type"),
    (
        {"image": (2**14, 2**14), "batch": (8,)},
        f"x has {2**31} pixels in all images; the fused kernels allow {2**31 - 257}",
    ),
]


@pytest.mark.parametrize("keywords, reason", REASONS)
def test_reasons(keywords, reason):
    plan = jax_dcn.kernel_plan(*shapes(**keywords), platform="cuda", precision="default")
    assert plan["weight"].reason == reason


def test_precision_is_a_reason():
    plan = jax_dcn.kernel_plan(*shapes("float32"), platform="cuda", precision="highest")
    assert plan["forward"].reason == "the data are float32, and precision HIGHEST does not allow tf32 products"


def test_table():
    plan = jax_dcn.kernel_plan(*shapes(bias=False, mask=False, channels=24), platform="cuda")
    title, header, *rows = str(plan).splitlines()
    assert title == "deform_conv2d on cuda"
    assert header.split() == ["computation", "path", "workspace", "why"]
    assert [row.split("  ")[0] for row in rows] == [
        "forward",
        "gradient of x",
        "gradient of offset",
        "gradient of weight",
    ]


def test_partial_sums():
    """Those of the weight's gradient are as many as suit the GPU. The table shows them with the workspace."""
    operands = shapes(image=(100, 168), batch=(16,), channels=128, features=128)
    plans = [jax_dcn.kernel_plan(*operands, platform="cuda", compute_capability=name) for name in ("9.0", "12.0")]
    assert [plan["weight"].partial_sums for plan in plans] == [29, 18]
    assert all("10.1 MiB, 18 partial sums  " in line for line in str(plans[1]).splitlines() if "of weight" in line)
    assert {choice.partial_sums for choice in plans[0] if choice.computation != "weight"} == {1}
    per_sum = 9 * 128 * 128 * 4
    assert all(plan["weight"].workspace_bytes == plan["weight"].partial_sums * per_sum for plan in plans)


def test_arrays_and_the_default_platform():
    """Arrays count by shape and type; the platform is that of the default device."""
    operands = shapes(bias=False)
    arrays = [None if a is None else jnp.zeros(a.shape, a.dtype) for a in operands]
    assert (
        jax_dcn.kernel_plan(*arrays) == jax_dcn.kernel_plan(*operands) == jax_dcn.kernel_plan(*operands, platform="cpu")
    )
    with jax.default_device(jax.devices("cpu")[0]):
        assert jax_dcn.kernel_plan(*operands).platform == "cpu"
    assert jax_dcn.kernel_plan(*operands, platform="gpu").platform == "cuda"


@pytest.mark.parametrize(
    "name, version, expected",
    [
        ("cpu", "<unknown>", "cpu"),
        ("gpu", "PJRT C API\ncuda 12090", "cuda"),
        ("gpu", "PJRT C API\nrocm 60300", "rocm"),
        ("tpu", "PJRT C API\nTFRT TPU v5 lite", "tpu"),
    ],
)
def test_platform_of(name, version, expected):
    client = types.SimpleNamespace(platform_version=version)
    assert kernel_plan.platform_of(types.SimpleNamespace(platform=name, client=client)) == expected


def test_rocm_runs_the_reference():
    plan = jax_dcn.kernel_plan(*shapes(), platform="rocm")
    assert set(paths(plan).values()) == {"reference", "xla"}
    assert plan["forward"].reason == "jax_dcn has no kernels for rocm"


def test_the_reference_needs_no_kernels(monkeypatch):
    """On a GPU machine without CUDA kernels, the remedy that the error recommends can be planned."""
    built = {"cpu": extension.modules["cpu"]}
    monkeypatch.setattr(extension, "modules", built)
    devices = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda platform=None: devices)
    plan = jax_dcn.kernel_plan(*shapes(), platform="cuda", backend="reference")
    assert set(paths(plan).values()) == {"reference", "xla"}
    with pytest.raises(RuntimeError, match="jax_dcn was built without its cuda kernels"):
        jax_dcn.kernel_plan(*shapes(), platform="cuda")


WRONG = [
    ({"x": [1.0]}, TypeError, "x must be an array"),
    ({"x": struct((4, 5, 32), jnp.int32)}, TypeError, "x must be of type float16"),
    ({"weight": struct((3, 3, 16, 8), jnp.float32)}, ValueError, "weight must have Cin/groups"),
    ({"platform": 1}, TypeError, "platform must be None or a string"),
    (
        {"platform": "CUDA"},
        ValueError,
        "platform must be one of 'cpu', 'gpu', 'tpu', 'cuda', 'rocm', 'oneapi', got 'CUDA'",
    ),
    ({"platform": ""}, ValueError, "platform must be one of"),
    ({"stride": 1}, TypeError, r"kernel_plan\(\) got an unexpected keyword argument 'stride'"),
]


@pytest.mark.parametrize("wrong, error, message", WRONG)
def test_errors(wrong, error, message):
    with pytest.raises(error, match=message):
        jax_dcn.kernel_plan(**shapes()._asdict() | wrong)


def test_no_such_computation():
    with pytest.raises(KeyError, match="must be one of 'forward', 'x'"):
        _ = jax_dcn.kernel_plan(*shapes())["input"]


def test_symbolic_batch():
    (batch,) = export.symbolic_shape("batch")
    plan = jax_dcn.kernel_plan(*shapes(batch=(batch,)), platform="cuda")
    known = jax_dcn.kernel_plan(*shapes(batch=(1,)), platform="cuda")
    assert paths(plan) == paths(known)
    assert plan["offset"].workspace_bytes == known["offset"].workspace_bytes
    # The scatter lists of the most images that are computed at a time, for want of a number.
    operands = shapes()
    limit = fused.CHUNK_LIST_BYTES // fused.list_bytes(operands.x, operands.offset)
    assert (
        plan["x"].workspace_bytes == jax_dcn.kernel_plan(*shapes(batch=(limit,)), platform="cuda")["x"].workspace_bytes
    )


@pytest.mark.parametrize("target", ["cuda", "cpu", "tpu"])
@pytest.mark.parametrize("symbols", ["batch", "image"])
def test_symbolic_sizes_are_printed(target, symbols):
    """A symbolic number of bytes cannot be compared with a unit, so it is printed in bytes."""
    sizes = {"batch": (export.symbolic_shape("n"), (4, 5)), "image": ((2,), export.symbolic_shape("h, w"))}
    batch, image = sizes[symbols]
    operands = shapes(batch=batch, image=image)
    plan = jax_dcn.kernel_plan(*operands, platform=target, padding=1)
    for choice, row in zip(plan, str(plan).splitlines()[2:], strict=True):
        symbolic = not isinstance(choice.workspace_bytes, int)
        assert choice.path != "reference" or symbolic
        assert not symbolic or f"  {'at least ' * (choice.path == 'reference')}{choice.workspace_bytes} B" in row
