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
from jax_dcn._operators.deform_conv import im2col_plan
from jax_dcn._primitive import extension
from tests.helpers.operators import CONVOLUTION, OPERATORS, custom_calls_on

pytestmark = pytest.mark.platforms("cpu")
struct = jax.ShapeDtypeStruct

CALL = re.compile(r"custom_call @(dcn_\w+)\(.* : \((.*?)\) -> (.*)")
TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8}


def convolution(dtype="bfloat16", *, batch=(2,), image=(4, 5), channels=32, features=8, kernel=(3, 3), **more):
    """The operands of a "SAME" convolution; `all` adds bias and mask."""
    samples = (*batch, *image, more.get("offset_groups", 1) * math.prod(kernel))
    wide = jnp.promote_types(dtype, jnp.float32)
    operands = {
        "x": struct((*batch, *image, channels), dtype),
        "offset": struct((*samples[:-1], 2 * samples[-1]), wide),
        "weight": struct((*kernel, channels // more.get("groups", 1), features), dtype),
    }
    return operands | ({"bias": struct((features,), wide), "mask": struct(samples, wide)} if more.get("all") else {})


def planned(operands, target="cuda", **options):
    return jax_dcn.kernel_plan(jax_dcn.deform_conv2d, **operands, platform=target, **options)


def lowered(function, operands, argnums, target):
    """The program of the gradients with respect to some operands, or of the forward, for which argnums is None."""

    def gradients(cotangent, *operands):
        return jax.grad(lambda *operands: (function(*operands) * cotangent).sum(), argnums)(*operands)

    traced = jax.jit(function).trace(*operands)
    if argnums is not None:
        traced = jax.jit(gradients).trace(jax.eval_shape(function, *operands), *operands)
    return traced.lower(lowering_platforms=(target,))


# What a custom call needs besides its operands and results, by the bytes of both. Other calls need nothing. The sums of
# the gradient of x are counted if they are rounded after the call.
WORKSPACE = {
    "dcn_sample": lambda operands, results, sums: results[0],  # columns
    "dcn_offset_cotangent": lambda operands, results, sums: operands[3],  # the columns' cotangent
    "dcn_cpu_x_cotangent": lambda operands, results, sums: operands[2] + sums,
    "dcn_gather_samples": lambda operands, results, sums: operands[3] + sums,
    "dcn_sort_samples": lambda operands, results, sums: sum(results),
    "dcn_cpu_fused_forward": lambda operands, results, sums: results[-1],
    "dcn_cpu_fused_cotangents": lambda operands, results, sums: results[-1],
    "dcn_roi_pool_x_cotangent": lambda operands, results, sums: sums,
    "dcn_roi_max_pool_x_cotangent": lambda operands, results, sums: sums,
    "dcn_roi_max_pool_argmax": lambda operands, results, sums: results[0],
    "dcn_aggregation_value_cotangent": lambda operands, results, sums: sum(results[1:]),  # sorted samples
    "dcn_sampling_x_cotangent": lambda operands, results, sums: sum(results[1:]),
}


def tensor_bytes(tensors):
    """The size of each tensor in a list of MLIR types."""
    return [math.prod(map(int, dims.split("x")[:-1])) * BYTES[dtype] for dims, dtype in TYPE.findall(tensors)]


def calls_of(path, name, operator, target):
    """The custom calls of the forward or of the gradient of an operand."""
    calls = {"forward": operator.forward, **operator.kernels}
    if path == "fused":
        calls = dict.fromkeys(operator.names, "dcn_cpu_fused_cotangents") | {"forward": "dcn_cpu_fused_forward"}
    found = custom_calls_on(target, [calls[name]] if path in ("fused", "im2col", "kernel") else [])
    return found | ({"dcn_roi_max_pool_argmax"} if "dcn_roi_max_pool_x_cotangent" in found else set())


def check(operator, function, operands, target):
    """Compares the plan with the program of the forward and with that of all gradients, and returns it."""
    found = jax_dcn.kernel_plan(function, *operands, platform=target)
    x, by_name = operands[0], dict(zip(("forward", *operator.names), found, strict=False))
    for argnums, names in ((None, ["forward"]), ((*range(len(operands)),), [*by_name][1:])):
        sizes = {}
        for call, ins, outs in CALL.findall(lowered(function, operands, argnums, target).as_text()):
            results = tensor_bytes(outs)
            sums = results[0] if x.dtype.itemsize == 2 and TYPE.search(outs)[2] == "f32" else 0
            size = WORKSPACE[call](tensor_bytes(ins), results, sums) if call in WORKSPACE else 0
            sizes[call] = max(sizes.get(call, 0), size)
        calls = {name: calls_of(by_name[name].path, name, operator, target) for name in names}
        expected = set().union(*calls.values())
        if "dcn_offset_cotangent" in expected:  # which also stores the columns
            expected.discard("dcn_sample")
        assert sizes.keys() == expected or (0 in x.shape and sizes.keys() <= expected)
        for name in names:
            if calls[name] and calls[name] <= sizes.keys():
                assert by_name[name].workspace_bytes == sum(sizes[call] for call in calls[name]), name
    return found


@pytest.mark.parametrize(
    "target, dtype", [("cuda", "bfloat16"), ("cuda", "float64"), ("cpu", "float32"), ("tpu", "float32")]
)
@pytest.mark.parametrize("operator", [one for one in OPERATORS.values() if one.name != "deform_conv3d"], ids=str)
def test_the_plan_is_what_is_lowered(operator, target, dtype):
    with jax.enable_x64(dtype == "float64"):
        narrow, wide = {operator.names[0], *operator.shared}, jnp.promote_types(dtype, jnp.float32)
        arrays = operator.case.operands(lead=() if operator.shared else (2, 3))._asdict().items()
        operands = [struct(a.shape, dtype if name in narrow else wide) for name, a in arrays if a is not None]
        found = check(operator, operator.case.with_backend(), operands, target)
    is_reference = target == "tpu" and operator.name != "conv_on_grid"  # whose reference is an operation of XLA
    assert {of.path == "reference" for of in found} == {is_reference}


ALL = ("forward", "x", "offset", "weight", "mask")
RAGGED = {"channels": 192, "features": 48, "groups": 2, "offset_groups": 3, "all": 1}
# Target, convolution, options, what is fused, and the beginning of a reason.
TABLE = [
    ("cuda", {"all": 1}, {}, (), ""),
    ("cuda", {"channels": 64, "features": 16, "groups": 2, "batch": ()}, {}, (), ""),
    ("cuda", {"channels": 64, "offset_groups": 4, "kernel": (1, 1)}, {}, (), ""),
    ("cuda", {"features": 264, "batch": (2, 3)}, {}, (), ""),
    ("cuda", {"batch": (0,), "all": 1}, {}, (), ""),
    ("cuda", {"image": (40, 41), "batch": (3,), "all": 1}, {}, (), ""),
    ("cuda", {"channels": 0}, {}, (), ""),
    ("cuda", RAGGED, {}, (), ""),
    ("cuda", {"image": (2**14, 2**14), "batch": (8,)}, {}, (), ""),
    ("cuda", {"dtype": "float16"}, {"preferred_element_type": jnp.bfloat16}, (), ""),
    ("cuda", {"dtype": "float32", "groups": 2}, {"precision": "TF32_TF32_F32"}, (), ""),
    ("cuda", {"dtype": "float64", "channels": 12}, {}, (), ""),
    ("cuda", {}, {"backend": "im2col"}, (), "forward: backend='im2col' was passed"),
    ("cpu", {"channels": 2**31}, {}, (), f"forward: x has {2**31} channels; the fused kernels allow {2**31 - 1}"),
    ("cpu", {"features": 6}, {"backend": "im2col"}, (), "forward: backend='im2col' was passed"),
    ("cpu", {"features": 6, "all": 1}, {"backend": "fused"}, ALL, "x: backend='fused' was passed"),
    ("cpu", {"dtype": "float32", "image": (40, 41), "batch": (3,), "all": 1}, {"backend": "fused"}, ALL, ""),
    ("rocm", {}, {}, (), "forward: jax_dcn has no kernels for rocm"),
]


@pytest.mark.parametrize("target, shape, options, fused, reason", TABLE)
def test_paths_and_reasons(target, shape, options, fused, reason):
    options = {"feature_group_count": shape.get("groups", 1)} | options
    with jax.enable_x64(shape.get("dtype") == "float64"):
        operands = [*convolution(**shape).values()]
        found = check(CONVOLUTION, functools.partial(jax_dcn.deform_conv2d, **options), operands, target)
    assert {of.computation for of in found if of.path == "fused"} == set(fused)
    assert any(f"{of.computation}: {of.reason}".startswith(reason) for of in found)


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_volumes(target):
    """The workspace of masked samples, which are wide. It grows neither with the batch nor with many planes."""

    def planned_of(images, planes):
        shape, function = (images, planes, 9, 10), jax_dcn.deform_conv3d
        operands = [struct((*shape, 32), "bfloat16"), struct((*shape, 81), "float32")]
        operands += [struct((3, 3, 3, 32, 8), "bfloat16"), struct((8,), "float32"), struct((*shape, 27), "float32")]
        program = lowered(function, operands, (0, 1, 2, 4), target)
        return jax_dcn.kernel_plan(function, *operands, platform=target), program.as_text()

    assert [of.workspace_bytes for of in planned_of(64, 6)[0]] == [of.workspace_bytes for of in planned_of(128, 6)[0]]
    assert 0 < planned_of(1, 1200)[0]["forward"].workspace_bytes <= im2col_plan.COLUMN_BYTES[target]
    found, program = planned_of(1, 2)
    results = {call: tensor_bytes(outs) for call, _, outs in CALL.findall(program)}
    assert results.keys() == {"dcn_sampling", "dcn_sampling_x_cotangent", "dcn_sampling_locations_cotangent"}
    samples, image = 4 * 2 * 9 * 10 * 27 * 32, 4 * 2 * 9 * 10 * 32
    assert results["dcn_sampling"] == [samples]
    assert found["forward"].workspace_bytes == found["weight"].workspace_bytes == samples * 3 // 2  # also of 16 bits
    assert found["offset"].workspace_bytes == found["mask"].workspace_bytes == samples
    assert found["x"].workspace_bytes == samples + 3 * image + sum(results["dcn_sampling_x_cotangent"][1:])


@pytest.mark.parametrize("name", ["deform_conv2d", "multi_scale_deformable_attention"])
def test_the_workspace_of_the_reference_is_a_lower_bound(name):
    case = OPERATORS[name].case
    function, operands = case.with_backend("reference"), [struct(a.shape, "float32") for a in case.operands()]
    for number, of in enumerate(jax_dcn.kernel_plan(function, *operands, platform="cpu")):
        if of.computation != "bias":  # which needs no samples
            compiled = lowered(function, operands, number - 1 if number else None, "cpu").compile()
            assert compiled.memory_analysis().temp_size_in_bytes >= of.workspace_bytes > 0, of


def test_products_of_the_gradient_of_the_weight_divide_its_pixels():
    """As many as give each SM a tile of 128 x 128 results, or the next smaller divisor."""
    splits = functools.partial(im2col_plan.product_splits, features=128, columns=9 * 128, sms=132)
    assert [splits(pixels) for pixels in (0, 1, 13, 2 * 100 * 168, 11 * 13)] == [14, 1, 13, 14, 13]
    (batch,) = export.symbolic_shape("batch")
    assert splits(batch) == splits(28, features=4096) == 1


def test_costs():
    """The operations of the product and of interpolation, and the bytes of operands and results."""
    operands = convolution(groups=2, all=1)
    found = planned(operands, feature_group_count=2)
    samples, sizes = 2 * 4 * 5 * 9, {name: math.prod(a.shape) * a.dtype.itemsize for name, a in operands.items()}
    for computation in ("forward", "x", "weight"):
        assert found[computation].flops == 2 * samples * (32 // 2) * 8 + 8 * samples * 32
    everything = sum(sizes.values()) + 2 * 4 * 5 * 8 * 2
    assert found["forward"].bytes_accessed == everything
    assert found["offset"].bytes_accessed == everything + sizes["offset"]


def test_what_has_the_same_plan():
    """A gradient's own function, channels first, a batch that is not known, arrays, and the default device."""
    operands, cotangent = convolution(), struct((2, 4, 5, 8), jnp.bfloat16)
    gradient = jax_dcn.kernel_plan(jax_dcn.deform_conv2d_weight_grad, cotangent, *operands.values(), platform="cuda")
    assert [(of.computation, of.path, of.workspace_bytes) for of in gradient] == [
        ("weight", "im2col", planned(operands)["weight"].workspace_bytes)
    ]
    shapes = {"x": (2, 32, 4, 5), "offset": (2, 18, 4, 5), "weight": (8, 32, 3, 3)}
    nchw = {name: struct(shape, operands[name].dtype) for name, shape in shapes.items()}
    assert planned(nchw, data_format="NCHW") == planned(operands) == planned(operands, "gpu")
    unknown, one = (planned(convolution(batch=(size,))) for size in (*export.symbolic_shape("batch"), 1))
    assert [of.path for of in unknown] == [of.path for of in one]
    assert unknown["offset"].workspace_bytes == one["offset"].workspace_bytes
    arrays = {name: jnp.zeros(a.shape, a.dtype) for name, a in operands.items()}
    assert planned(arrays, None) == planned(operands, None) == planned(operands, "cpu")
    with pytest.raises(KeyError, match="must be one of 'forward', 'x'"):
        _ = one["input"]


@pytest.mark.parametrize(
    "name, version, expected",
    [("cpu", "<unknown>", "cpu"), ("gpu", "PJRT C API\ncuda 12090", "cuda"), ("gpu", "PJRT C API\nrocm 60300", "rocm")],
)
def test_platform_of(name, version, expected):
    client = types.SimpleNamespace(platform_version=version)
    assert kernel_plan.platform_of(types.SimpleNamespace(platform=name, client=client)) == expected


def test_the_reference_needs_no_kernels(monkeypatch):
    """On a GPU machine without CUDA kernels, the remedy that the error recommends can be planned."""
    monkeypatch.setattr(extension, "modules", {"cpu": extension.modules["cpu"]})
    devices = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda platform=None: devices)
    assert {of.path for of in planned(convolution(), backend="reference")} == {"reference"}
    with pytest.raises(RuntimeError, match="jax_dcn was built without its cuda kernels"):
        planned(convolution())


VOLUMES = {"x": struct((1, 2, 3, 4, 8), "float32"), "offset": struct((1, 2, 3, 4, 3), "float32")}
VOLUMES |= {"weight": struct((1, 1, 1, 8, 8), "float32"), "backend": "fused", "platform": "cpu"}


@pytest.mark.parametrize(
    "function, options, error, message",
    [
        ("deform_conv2d", {"x": struct((4, 5, 32), jnp.int32)}, TypeError, "x must be of type float16"),
        ("deform_conv2d", {"platform": 1}, TypeError, "platform must be None or a string"),
        ("deform_conv2d", {"platform": "CUDA"}, ValueError, "platform must be one of 'cpu', 'gpu', .* got 'CUDA'"),
        ("deform_conv2d", {"stride": 1}, TypeError, r"deform_conv2d\(\) got an unexpected keyword argument 'stride'"),
        ("deform_conv2d", {"backend": "fused"}, ValueError, "the forward: the fused kernels run on CPUs only. With"),
        ("deform_conv3d", VOLUMES, ValueError, "compute the forward: the fused kernels support two spatial axes only"),
        ("nms", {}, ValueError, "function must call one operator of jax_dcn, got nms, which calls 0"),
    ],
)
def test_errors(function, options, error, message):
    arguments = {"boxes": jnp.ones((2, 4)), "scores": jnp.ones(2), "iou_threshold": 0.5, "max_outputs": 2}
    if function != "nms":
        arguments = convolution() | {"platform": "cuda"}
    with pytest.raises(error, match=message):
        jax_dcn.kernel_plan(getattr(jax_dcn, function), **arguments | options)


@pytest.mark.parametrize("target, path", [("cuda", "im2col"), ("cpu", "im2col"), ("tpu", "reference")])
def test_symbolic_sizes_are_printed(target, path):
    """A symbolic number of bytes cannot be compared with a unit, so it is printed in bytes."""
    found = planned(convolution(image=export.symbolic_shape("n, m"), all=1), target, padding=1)
    of_x, row = found["x"], str(found).splitlines()[3]
    assert of_x.path == path and not isinstance(of_x.workspace_bytes, int)
    assert f"  {'at least ' * (path == 'reference')}{of_x.workspace_bytes} B" in row
