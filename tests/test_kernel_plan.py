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
from jax_dcn._operators.deform_conv.im2col_plan import sorted_shapes
from jax_dcn._primitive import extension
from tests.helpers.operators import ON_CUDA, OPERATORS

pytestmark = pytest.mark.platforms("cpu")
struct = jax.ShapeDtypeStruct

FUSED_CALLS = {"forward": "dcn_fused_forward", "weight": "dcn_fused_weight_cotangent"}
SORT, GATHER = ON_CUDA["dcn_cpu_x_cotangent"]


def expected_call(name, operands, of, platform):
    """The custom call of a computation, or None if it has none."""
    if of.path == "fused" and platform == "cpu":
        return f"dcn_cpu_fused_{'forward' if of.computation == 'forward' else 'cotangents'}"
    if of.path == "fused":
        return FUSED_CALLS[of.computation]
    operator = OPERATORS.get(name, OPERATORS["deform_roi_pool"])
    names = operands if name in ("dcnv3", "multi_scale_deformable_attention") else operator.kernels
    calls = {"forward": operator.forward} | dict(zip(names, operator.kernels.values(), strict=True))
    call = calls[of.computation] if of.path in ("im2col", "kernel") else None
    return GATHER if call == "dcn_cpu_x_cotangent" and platform == "cuda" else call


CALL = re.compile(r"custom_call @(dcn_\w+)\(.* : \((.*?)\) -> (.*)")
TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4}


def convolution(dtype="bfloat16", *, batch=(2,), image=(4, 5), channels=32, features=8, kernel=(3, 3), **more):
    """The operands of a "SAME" convolution."""
    samples = (*batch, *image, more.get("offset_groups", 1) * math.prod(kernel))
    wide = jnp.promote_types(dtype, jnp.float32)
    operands = {
        "x": struct((*batch, *image, channels), dtype),
        "offset": struct((*samples[:-1], 2 * samples[-1]), wide),
        "weight": struct((*kernel, channels // more.get("groups", 1), features), dtype),
    }
    return operands | ({"bias": struct((features,), wide), "mask": struct(samples, wide)} if more.get("all", 1) else {})


def pooling(dtype="bfloat16", *, batch=(), images=2, rows=6, regions=5, offset=True):
    operands = {"x": struct((*batch, images, rows, 7, 12), dtype), "rois": struct((*batch, regions, 5), jnp.float32)}
    return operands | ({"offset": struct((*batch, regions, 2, 2, 2), dtype)} if offset else {})


def attention(dtype="bfloat16", *, batch=(2,), queries=7):
    wide, taps = jnp.promote_types(dtype, jnp.float32), (*batch, queries, 4, 5)
    value, locations = struct((*batch, 36, 4, 6), dtype), struct((*taps, 2), wide)
    return {"value": value, "sampling_locations": locations, "attention_weights": struct(taps, wide)}


def window(dtype="bfloat16", *, batch=(2,)):
    wide = jnp.promote_types(dtype, jnp.float32)
    shapes = {"x": (*batch, 5, 6, 12), "offset": (*batch, 5, 6, 36), "mask": (*batch, 5, 6, 18)}
    return {name: struct(shape, dtype if name == "x" else wide) for name, shape in shapes.items()}


OPTIONS = {
    "deform_psroi_pool": {"output_size": 3, "group_size": 2, "part_size": 2, "sample_per_part": (2, 3)},
    "roi_align": {"output_size": 3},
    "ps_roi_align": {"output_size": 2, "sampling_ratio": 2},
    "deform_roi_pool": {"output_size": 2},
    "multi_scale_deformable_attention": {"spatial_shapes": ((5, 6), (3, 2)), "points": (2, 3)},
    "dcnv3": {"kernel_size": 3, "padding": 1, "groups": 2},
}


def planned(name, operands, platform="cuda", **options):
    function = getattr(jax_dcn, name)
    return jax_dcn.kernel_plan(function, **operands, platform=platform, **OPTIONS.get(name, {}) | options)


def lowered(name, operands, computations, platform, **options):
    """The program of ["forward"], or of the gradients with respect to some operands."""
    function = functools.partial(getattr(jax_dcn, name), **OPTIONS.get(name, {}) | options)

    def compute(cotangent, operands):
        if computations == ["forward"]:
            return function(**operands)
        actives = {computation: operands[computation] for computation in computations}
        (gradients,) = jax.vjp(lambda active: function(**operands | active), actives)[1](cotangent)
        return gradients

    cotangent = jax.eval_shape(lambda operands: function(**operands), operands)
    return jax.jit(compute).trace(cotangent, operands).lower(lowering_platforms=(platform,))


def tensor_bytes(types):
    """The size of each tensor in a list of MLIR types."""
    return [math.prod(map(int, dims.split("x")[:-1])) * BYTES[dtype] for dims, dtype in TYPE.findall(types)]


def workspace_bytes(call, operands, results, is_x_narrow, rounds_d_x):
    """What a custom call needs besides its operands and results, from the sizes of its buffers."""
    if call in ("dcn_sample", "dcn_fused_weight_cotangent"):
        return results[0]  # columns; partial sums
    if call.startswith("dcn_cpu_fused"):
        return results[-1]
    if call == "dcn_offset_cotangent":
        return operands[3]  # the columns' cotangent
    if call in ("dcn_cpu_x_cotangent", GATHER):
        *_, d_columns, d_x = operands[:4] if call == "dcn_cpu_x_cotangent" else operands
        return d_columns + (0 if rounds_d_x else is_x_narrow * d_x)
    if call == SORT:
        return sum(results)
    if call.startswith("dcn_fused"):
        return operands[3]  # the weight
    if call == "dcn_aggregation_value_cotangent":
        return results[1]
    return is_x_narrow * results[0] if call.endswith("_x_cotangent") else 0


def check(name, operands, platform, **options):
    """The plan of all computations, once they have been lowered and compared with it."""
    plan = planned(name, operands, platform, **options)
    first, *others = [of.computation for of in plan]
    assert first == "forward" and sorted(others) == sorted(operands)
    x = operands.get("x", operands.get("value"))
    is_narrow = x.dtype != jnp.promote_types(x.dtype, jnp.float32)
    for together in (["forward"], others):
        text = lowered(name, operands, together, platform, **options).as_text()
        found = {}
        for call, ins, outs in CALL.findall(text):
            rounds_d_x = is_narrow and TYPE.findall(outs)[0][1] != "f32"
            size = workspace_bytes(call, tensor_bytes(ins), tensor_bytes(outs), is_narrow, rounds_d_x)
            found[call] = max(found.get(call, 0), size)
        if SORT in found:
            found[GATHER] += found.pop(SORT)
        expected = {of: call for of in together if (call := expected_call(name, operands, plan[of], platform))}
        names = set(expected.values())
        if "dcn_offset_cotangent" in names:  # it also stores the columns
            names.discard("dcn_sample")
        assert found.keys() == names or (0 in x.shape and found.keys() <= names), together
        for of, call in expected.items():
            if call in found:
                assert plan[of].workspace_bytes == found[call], of
    return plan


@pytest.mark.parametrize("target, dtype", [("cpu", "float32"), ("cuda", "bfloat16")])
def test_the_plan_of_a_convolution_of_volumes(target, dtype):
    """A part of the planes or volumes at a time: the workspace does not grow with the batch."""

    def planned_of(images, planes):
        shape = (images, planes, 9, 10)
        operands = {"x": struct((*shape, 32), dtype), "offset": struct((*shape, 81), "float32")}
        operands |= {"weight": struct((3, 3, 3, 32, 8), dtype), "mask": struct((*shape, 27), "float32")}
        found = planned("deform_conv3d", operands, target)
        together = [of.computation for of in found if of.computation != "forward"]
        forward, gradients = (
            {call: tensor_bytes(outs) for call, _, outs in reversed(CALL.findall(text))}
            for text in (lowered("deform_conv3d", operands, of, target).as_text() for of in (["forward"], together))
        )
        assert list(forward) == ["dcn_sampling"]
        assert gradients.keys() == {"dcn_sampling", "dcn_sampling_x_cotangent", "dcn_sampling_locations_cotangent"}
        sort_bytes = 0 if target == "cpu" else 4 * found["x"].choices.images * sort_words(found["x"].choices, planes)
        assert gradients["dcn_sampling_x_cotangent"][1] == sort_bytes
        return {of.computation: of.workspace_bytes for of in found}

    def sort_words(choices, planes):
        return choices.sort_image + choices.sort_row * min(choices.rows, planes)

    assert planned_of(64, 6) == planned_of(128, 6)
    for planes in (600, 1200):
        assert 0 < planned_of(1, planes)["forward"] <= im2col_plan.COLUMN_BYTES[target]


def test_fused_kernels_have_two_axes():
    operands = {"x": struct((1, 2, 3, 4, 8), "float32"), "offset": struct((1, 2, 3, 4, 3), "float32")}
    operands["weight"] = struct((1, 1, 1, 8, 8), "float32")
    with pytest.raises(ValueError, match="cannot compute the forward: the fused kernels support two spatial axes only"):
        planned("deform_conv3d", operands, "cpu", backend="fused")


def paths(plan):
    return {of.computation: of.path for of in plan}


VARIANTS = {
    "fused": {},
    "groups": {"channels": 64, "features": 16, "groups": 2, "batch": ()},
    "vectors": {"channels": 12, "all": 0},
    "ragged_groups": {"channels": 192, "features": 48, "groups": 2, "offset_groups": 3},
    "narrow_offset_groups": {"channels": 64, "offset_groups": 4, "kernel": (1, 1), "all": 0},
    "few_features": {"features": 6, "all": 0},
    "many_features": {"features": 264, "batch": (2, 3), "all": 0},
    "no_images": {"batch": (0,)},
    "many_pixels": {"image": (40, 41), "batch": (3,)},
}


@pytest.mark.parametrize(
    "target, dtype, precision, variant",
    [
        *(("cuda", "bfloat16", "default", variant) for variant in VARIANTS),
        ("cuda", "float16", "highest", "few_features"),
        ("cuda", "float32", "highest", "few_features"),
        ("cuda", "float32", "default", "groups"),
        ("cuda", "float64", None, "vectors"),
        ("cpu", "bfloat16", None, "few_features"),
        ("cpu", "float32", None, "many_pixels"),
        ("tpu", "bfloat16", None, "vectors"),
    ],
)
def test_the_plan_of_a_convolution_is_what_is_lowered(target, dtype, precision, variant, fuses_what_can_be):
    with jax.enable_x64(dtype == "float64"):
        options = {"precision": precision, "feature_group_count": VARIANTS[variant].get("groups", 1)}
        check("deform_conv2d", convolution(dtype, **VARIANTS[variant]), target, **options)


@pytest.mark.parametrize(
    "name, target, dtype, batch, options",
    [
        *((name, "cuda", "bfloat16", (2, 3), {}) for name in OPTIONS),
        *((name, "cpu", "float32", (2,), {}) for name in OPTIONS),
        *((name, "cuda", "float64", (), {}) for name in ("deform_psroi_pool", "dcnv3")),
        ("dcnv3", "cpu", "float32", (2,), {"backend": "reference"}),
        ("deform_psroi_pool", "tpu", "float32", (2,), {}),
    ],
)
def test_the_plan_is_what_is_lowered(name, target, dtype, batch, options):
    of = {"multi_scale_deformable_attention": attention, "dcnv3": window}.get(name, pooling)
    with jax.enable_x64(dtype == "float64"):
        operands = of(dtype, batch=batch)
        if name in ("roi_align", "ps_roi_align"):
            del operands["offset"]
        plan = check(name, operands, target, **options)
    runs_kernels = target != "tpu" and not options
    assert set(paths(plan).values()) <= ({"kernel", "xla"} if runs_kernels else {"reference"})


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_the_gradient_of_a_maximum_needs_its_place(target):
    operands = pooling(offset=False)
    plan = planned("roi_align", operands, target, mode="max")
    text = lowered("roi_align", operands, ["x"], target, mode="max").as_text()
    results = [tensor_bytes(outs)[0] for _, _, outs in CALL.findall(text)]
    assert len(results) == 2 and plan["x"].workspace_bytes == sum(results)


def test_a_gradient_function_has_a_plan_of_its_own(fuses_what_can_be):
    operands = convolution(all=0)
    cotangent = struct((2, 4, 5, 8), jnp.bfloat16)
    plan = jax_dcn.kernel_plan(jax_dcn.deform_conv2d_weight_grad, cotangent, *operands.values(), platform="cuda")
    assert list(plan) == [planned("deform_conv2d", operands)["weight"]]


def test_first_channels():
    operands = convolution(all=0)
    shapes = {"x": (2, 32, 4, 5), "offset": (2, 18, 4, 5), "weight": (8, 32, 3, 3)}
    nchw = {name: struct(shape, operands[name].dtype) for name, shape in shapes.items()}
    assert planned("deform_conv2d", nchw, data_format="NCHW") == planned("deform_conv2d", operands)


@pytest.mark.parametrize("dtype, target", [("float32", "cpu"), ("float32", "cuda"), ("bfloat16", "cuda")])
def test_all_images_are_one_part_if_their_workspace_fits(dtype, target, monkeypatch):
    def workspace():
        operands = convolution(dtype, batch=(4,), all=0)
        found = check("deform_conv2d", operands, target, backend="im2col")
        sorts = sum(map(math.prod, sorted_shapes((4,), 4 * 5 * 9, (4, 5), 4))) if target == "cuda" else 0
        return found["x"].workspace_bytes + found["weight"].workspace_bytes - 4 * sorts

    at_once = workspace()
    monkeypatch.setitem(im2col_plan.COLUMN_BYTES, target, at_once // 2)
    assert workspace() == at_once
    monkeypatch.setitem(im2col_plan.COLUMN_BYTES, target, at_once // 2 - 1)
    assert workspace() == at_once // 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_samples_of_few_images_are_sorted_at_a_time(dtype):
    """They are those of whole parts, as many as the limit has room for."""

    def choices(images):
        operands = convolution(dtype, batch=(images,), image=(100, 168), channels=128, all=0)
        return planned("deform_conv2d", operands, backend="im2col")["x"].choices

    image_bytes = 4 * sum(map(math.prod, sorted_shapes((1,), 100 * 168 * 9, (100, 168), 4)))
    assert choices(16).sorted_images == 16
    many = choices(3 * 2**10)
    assert many.sorted_images % many.images == 0
    limit = im2col_plan.CONVOLUTION_SORT_BYTES
    assert limit / 2 < many.sorted_images * image_bytes <= limit


@pytest.mark.parametrize("target, path", [("cuda", "im2col"), ("cpu", "im2col"), ("cpu", "fused")])
def test_a_path_can_be_forced(target, path):
    plan = check("deform_conv2d", convolution(all=0), target, backend=path)
    assert set(paths(plan).values()) == {path}
    assert plan["forward"].reason == f"backend={path!r} was passed"


def test_a_forced_path_that_is_impossible_is_an_error():
    """The plan raises what lowering does."""
    operands, options = convolution("float32"), {"precision": "default", "backend": "fused"}
    message = "backend='fused' cannot compute the gradient of x: only the forward and the gradient of weight have fused"
    with pytest.raises(ValueError, match=message):
        planned("deform_conv2d", operands, **options)
    message = "backend='fused' cannot compute the gradient of weight: the data are float32; the fused gradient of"
    with pytest.raises(ValueError, match=message):
        lowered("deform_conv2d", operands, ["weight"], "cuda", **options)
    assert "dcn_fused_forward" in lowered("deform_conv2d", operands, ["forward"], "cuda", **options).as_text()
    with jax.enable_x64(True), pytest.raises(ValueError, match="cannot compute the forward: the data are float64"):
        lowered("deform_conv2d", convolution("float64"), ["forward"], "cpu", **options)


@pytest.mark.parametrize(
    "name, operands",
    [
        ("deform_conv2d", convolution("float32", image=(16, 17), all=0)),
        ("multi_scale_deformable_attention", attention("float32")),
    ],
)
def test_the_workspace_of_the_reference_is_a_lower_bound(name, operands):
    for of in planned(name, operands, "cpu", backend="reference"):
        if of.computation in ("rois", "bias"):
            continue  # XLA computes them without the samples
        compiled = lowered(name, operands, [of.computation], "cpu", backend="reference").compile()
        assert compiled.memory_analysis().temp_size_in_bytes >= of.workspace_bytes > 0, of


LARGE = {"image": (2**14, 2**14), "batch": (8,)}
VECTOR = "which is 16 bytes of bfloat16"
REASONS = [
    (
        {"channels": 24, "offset_groups": 2},
        "weight",
        f"x has 12 channels in each of 2 offset groups; the fused kernels need a multiple of 8, {VECTOR}",
    ),
    ({"channels": 0}, "weight", "x has no channels; the fused gradient of weight needs some"),
    ({"channels": 12}, "weight", f"x has 12 channels; the fused kernels need a multiple of 8, {VECTOR}"),
    ({"features": 7}, "weight", "weight has 7 output channels; the fused kernels need an even number"),
    (
        {"features": 6},
        "weight",
        f"weight has 6 output channels; the fused gradient of weight needs a multiple of 8, {VECTOR}",
    ),
    ({"dtype": "float32"}, "weight", "the data are float32; the fused gradient of weight needs a 16-bit type"),
    (LARGE, "weight", f"x has {2**31} pixels in all images; the fused kernels allow {2**31 - 257}"),
    (
        {"channels": 192, "features": 48, "groups": 2, "offset_groups": 3},
        "weight",
        "x has 96 channels in each group and 64 in each offset group; the fused gradient of weight needs one of these "
        "numbers to divide the other",
    ),
    ({}, "offset", "only the forward and the gradient of weight have fused CUDA kernels"),
    ({"channels": 2**31}, "forward", f"x has {2**32} bytes a pixel; the fused kernels allow {2**31 - 1}"),
    (
        {"channels": 2**29, "kernel": (8, 8)},
        "forward",
        f"an output channel of weight has {2**32} vectors of 16 bytes; the fused kernels allow {2**31 - 1}",
    ),
    ({"features": 2**31}, "forward", f"weight has {2**31} output channels; the fused kernels allow {2**31 - 1}"),
]


@pytest.mark.parametrize("keywords, computation, reason", REASONS)
def test_reasons(keywords, computation, reason):
    options = {"precision": "default", "feature_group_count": keywords.get("groups", 1)}
    assert planned("deform_conv2d", convolution(**keywords), **options)[computation].reason == reason


@pytest.mark.parametrize(
    "capability, channels, image, forward, weight",
    [
        ("8.0", 64, (128, 128), "fused", "im2col"),
        ("8.0", 64, (128, 127), "im2col", "im2col"),
        ("8.0", 32, (128, 128), "im2col", "im2col"),
        ("8.6", 16, (40, 50), "fused", "fused"),
        ("8.9", 16, (40, 49), "fused", "im2col"),  # a small forward
        ("8.9", 8, (89, 90), "im2col", "im2col"),
        ("8.7", 264, (40, 49), "im2col", "im2col"),
        ("9.0", 8, (80, 100), "fused", "im2col"),
        ("9.0", 16, (80, 100), "im2col", "im2col"),
        ("9.0", 256, (200, 200), "im2col", "im2col"),
        ("10.3", 256, (200, 200), "im2col", "im2col"),
        ("12.1", 16, (40, 50), "fused", "fused"),
        (None, 256, (200, 200), "im2col", "im2col"),
        ("12.0", 16, export.symbolic_shape("h, w"), "fused", "fused"),
        ("9.0", 256, export.symbolic_shape("h, w"), "im2col", "im2col"),
    ],
)
def test_the_rule_of_a_gpu(capability, channels, image, forward, weight):
    operands = convolution(batch=(1,), image=image, channels=channels, all=0)
    plan = planned("deform_conv2d", operands, compute_capability=capability, padding=1)
    assert paths(plan) == {"forward": forward, "x": "im2col", "offset": "im2col", "weight": weight}
    assert plan["forward"].reason.startswith("the GPU is not known" if capability is None else "estimated: ")


def test_reason_on_a_cpu():
    plan = planned("deform_conv2d", convolution("float32", channels=2**31), "cpu")
    assert plan["forward"].reason == f"x has {2**31} channels; the fused kernels allow {2**31 - 1}"


def test_options_are_reasons(fuses_what_can_be):
    precise = planned("deform_conv2d", convolution("float32"), precision="highest")
    assert precise["forward"].reason == "the data are float32, and precision HIGHEST does not allow tf32 products"
    wide = check("deform_conv2d", convolution(all=0), "cuda", preferred_element_type=jnp.float32)
    assert paths(wide) == {"forward": "fused"} | dict.fromkeys(("x", "offset", "weight"), "im2col")
    assert wide["weight"].reason == "the result is float32 for bfloat16 data; the fused gradients need bfloat16"


def test_table(fuses_what_can_be):
    plan = planned("deform_conv2d", convolution(all=0, channels=24))
    title, header, *rows = str(plan).splitlines()
    assert title == "deform_conv2d on cuda"
    assert header.split() == ["computation", "path", "workspace", "chosen", "why"]
    names = ["forward", "gradient of x", "gradient of offset", "gradient of weight"]
    assert [row.split("  ")[0] for row in rows] == names
    assert "tiles of 64 features" in rows[0]


def test_tiles_suit_the_gpu(fuses_what_can_be):
    """The widest tile takes 118 KiB of shared memory, and an SM of 12.0 has 100."""
    operands = convolution(image=(100, 168), batch=(16,), channels=256, features=256)
    for capability, features in (("9.0", 256), ("12.0", 128)):
        forward = planned("deform_conv2d", operands, compute_capability=capability)["forward"]
        assert forward.choices.tile_features == features


def test_partial_sums_suit_the_gpu(fuses_what_can_be):
    operands = convolution(image=(100, 168), batch=(16,), channels=128, features=128)
    splits = {}
    for capability in ("9.0", "12.0"):
        weight = planned("deform_conv2d", operands, compute_capability=capability)["weight"]
        splits[capability] = weight.choices.num_splits
        assert weight.workspace_bytes == splits[capability] * 9 * 128 * 128 * 4
    assert splits["9.0"] > splits["12.0"] > 1  # a block of the latter has an SM to itself


def test_flops_are_those_of_the_product_and_of_interpolation():
    operands = convolution("float32", groups=2)
    plan = planned("deform_conv2d", operands, "cpu", feature_group_count=2)
    pixels, taps = 2 * 4 * 5, 9
    for computation in ("forward", "x", "weight"):
        assert plan[computation].flops == 2 * pixels * taps * (32 // 2) * 8 + 8 * pixels * taps * 32


def test_bytes_are_those_of_operands_and_results():
    operands = convolution()
    sizes = {name: math.prod(a.shape) * a.dtype.itemsize for name, a in operands.items()}
    result = 2 * 4 * 5 * 8 * 2
    plan = planned("deform_conv2d", operands)
    assert plan["forward"].bytes_accessed == sum(sizes.values()) + result
    assert plan["offset"].bytes_accessed == sum(sizes.values()) + result + sizes["offset"]


def test_arrays_and_the_default_platform():
    """Arrays count by shape and type; the platform is that of the default device."""
    operands = convolution()
    arrays = {name: jnp.zeros(a.shape, a.dtype) for name, a in operands.items()}
    expected = planned("deform_conv2d", operands, "cpu")
    assert planned("deform_conv2d", arrays, None) == planned("deform_conv2d", operands, None) == expected
    with jax.default_device(jax.devices("cpu")[0]):
        assert planned("deform_conv2d", operands, None).platform == "cpu"
    assert planned("deform_conv2d", operands, "gpu").platform == "cuda"


@pytest.mark.parametrize(
    "name, version, expected",
    [("cpu", "<unknown>", "cpu"), ("gpu", "PJRT C API\ncuda 12090", "cuda"), ("gpu", "PJRT C API\nrocm 60300", "rocm")],
)
def test_platform_of(name, version, expected):
    client = types.SimpleNamespace(platform_version=version)
    assert kernel_plan.platform_of(types.SimpleNamespace(platform=name, client=client)) == expected


def test_rocm_runs_the_reference():
    plan = planned("deform_conv2d", convolution(), "rocm")
    assert set(paths(plan).values()) == {"reference"}
    assert plan["forward"].reason == "jax_dcn has no kernels for rocm"


def test_the_reference_needs_no_kernels(monkeypatch):
    """On a GPU machine without CUDA kernels, the remedy that the error recommends can be planned."""
    monkeypatch.setattr(extension, "modules", {"cpu": extension.modules["cpu"]})
    devices = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda platform=None: devices)
    assert set(paths(planned("deform_conv2d", convolution(), backend="reference")).values()) == {"reference"}
    with pytest.raises(RuntimeError, match="jax_dcn was built without its cuda kernels"):
        planned("deform_conv2d", convolution())


PLATFORMS = "platform must be one of 'cpu', 'gpu', 'tpu', 'cuda', 'rocm', 'oneapi', got"
WRONG = [
    ({"x": struct((4, 5, 32), jnp.int32)}, TypeError, "x must be of type float16"),
    ({"weight": struct((3, 3, 16, 8), jnp.float32)}, ValueError, "weight must have Cin/groups"),
    ({"platform": 1}, TypeError, "platform must be None or a string"),
    ({"platform": "CUDA"}, ValueError, f"{PLATFORMS} 'CUDA'"),
    ({"compute_capability": 9.0}, TypeError, "compute_capability must be None or a string"),
    ({"stride": 1}, TypeError, r"deform_conv2d\(\) got an unexpected keyword argument 'stride'"),
]


@pytest.mark.parametrize("wrong, error, message", WRONG)
def test_errors(wrong, error, message):
    with pytest.raises(error, match=message):
        jax_dcn.kernel_plan(jax_dcn.deform_conv2d, **convolution() | wrong)


def test_other_functions_are_errors():
    with pytest.raises(ValueError, match="function must call one operator of jax_dcn, got sin, which calls 0"):
        jax_dcn.kernel_plan(jnp.sin, 1.0)
    with pytest.raises(KeyError, match="must be one of 'forward', 'x'"):
        _ = planned("deform_conv2d", convolution())["input"]


def test_symbolic_batch(fuses_what_can_be):
    (batch,) = export.symbolic_shape("batch")
    symbolic, known = (planned("deform_conv2d", convolution(batch=(size,))) for size in (batch, 1))
    assert paths(symbolic) == paths(known)
    assert symbolic["offset"].workspace_bytes == known["offset"].workspace_bytes


@pytest.mark.parametrize("target, path", [("cuda", "im2col"), ("cpu", "im2col"), ("tpu", "reference")])
def test_symbolic_sizes_are_printed(target, path):
    """A symbolic number of bytes cannot be compared with a unit, so it is printed in bytes."""
    plan = planned("deform_conv2d", convolution(image=export.symbolic_shape("n, m")), target, padding=1)
    of_x, row = plan["x"], str(plan).splitlines()[3]
    assert of_x.path == path and not isinstance(of_x.workspace_bytes, int)
    assert f"  {'at least ' * (path == 'reference')}{of_x.workspace_bytes} B" in row
