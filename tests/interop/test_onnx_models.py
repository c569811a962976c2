"""ONNX models of functions that call the operators, run by onnxruntime."""

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn import interop
from tests.helpers.onnx import run

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.filterwarnings("ignore")]  # of jax2onnx
pytest.importorskip("jax2onnx")
pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def uniform(low, high, *shape):
    return RNG.uniform(low, high, shape).astype(np.float32)


def boxes(*shape):
    low = uniform(0, 20, *shape, 2)
    return np.concatenate([low, low + uniform(-1, 15, *shape, 2)], -1)


def rois(*shape):
    """Images from -1 to 2, of which 0 and 1 exist."""
    return np.concatenate([RNG.integers(-1, 3, (*shape, 1)), boxes(*shape)], -1).astype(np.float32)


def named_batch(array):
    return jax.ShapeDtypeStruct(("batch", *array.shape[1:]), array.dtype)


def check(function, *arrays, inputs=None, nodes, rtol=1e-5, atol=1e-5):
    model = interop.model_to_onnx(function, arrays if inputs is None else inputs)
    found = [node.op_type for node in model.graph.node]
    assert set(nodes) <= set(found)
    expected = jax.tree.leaves(jax.jit(lambda *arrays: function(*arrays))(*arrays))
    for ours, theirs in zip(expected, run(model, *arrays), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=rtol, atol=atol)


X = normal(2, 9, 10, 8)
WEIGHT, BIAS = normal(3, 3, 4, 6), normal(6)
SIZES = ((4, 5), (2, 3))


def conv(x, offset, mask):
    settings = dict(strides=(2, 1), padding=((0, 1), (2, 0)), kernel_dilation=(1, 2), feature_group_count=2)
    return jax_dcn.deform_conv2d(x, offset, WEIGHT, BIAS, mask, **settings)


conv1d = partial(jax_dcn.deform_conv1d, weight=WEIGHT[0], feature_group_count=2)
attention = partial(jax_dcn.multi_scale_deformable_attention, spatial_shapes=SIZES)
dcnv3 = partial(jax_dcn.dcnv3, kernel_size=3, padding=1, groups=2, offset_scale=1.5, remove_center=True)


def pool(x, rois):
    """Of a batch of batches of images."""
    return jax_dcn.roi_align(x[:, None], rois, output_size=(3, 4), spatial_scale=0.25)


def suppress(boxes, scores, classes):
    return jax_dcn.nms(boxes, scores, 0.4, max_outputs=20, classes=classes)


BATCHED = {
    "deform_conv2d": (conv, "DeformConv", X, normal(2, 4, 8, 36), normal(2, 4, 8, 18)),
    "deform_conv1d": (conv1d, "DeformConv", normal(2, 9, 8), normal(2, 9, 3)),
    "attention": (
        attention,
        "GridSample",
        normal(2, 26, 3, 4),
        uniform(-0.2, 1.2, 2, 7, 3, 2, 4, 2),
        normal(2, 7, 3, 2, 4),
    ),
    "dcnv3": (dcnv3, "GridSample", X, normal(2, 9, 10, 32), normal(2, 9, 10, 16)),
    "grid_sample": (jax_dcn.grid_sample, "GridSample", X, uniform(-1.5, 1.5, 2, 4, 5, 2)),
    "grid_sample of volumes": (
        jax_dcn.grid_sample,
        "GridSample",
        normal(2, 4, 5, 6, 3),
        uniform(-1.5, 1.5, 2, 4, 5, 6, 3),
    ),
    "resize": (partial(jax_dcn.resize, size=(20, 7)), "GridSample", X),
    "roi_align": (pool, "RoiAlign", X, rois(2, 12)),
    "find_peaks": (partial(jax_dcn.find_peaks, count=60, radius=2, rounds=2, border=1), "TopK", normal(2, 19, 20)),
    "nms": (
        suppress,
        "NonMaxSuppression",
        boxes(2, 60),
        np.where(np.arange(60) % 7, uniform(0, 1, 2, 60), [[-np.inf], [np.nan]]).astype(np.float32),
        RNG.integers(-1, 2, (2, 60)).astype(np.int32),
    ),
}


@pytest.mark.parametrize("function, node, arrays", [(f, node, a) for f, node, *a in BATCHED.values()], ids=BATCHED)
def test_operators_with_any_batch_size(function, node, arrays):
    check(function, *arrays, inputs=list(map(named_batch, arrays)), nodes=[node])


FIELD, PLACES = normal(9, 10), uniform(-6, 15, 2, 20)
OPTIONS = [
    *(
        (jax_dcn.grid_sample, "GridSample", dict(zip(("method", "padding_mode", "align_corners"), values, strict=True)))
        for values in itertools.product(
            ["bilinear", "nearest", "bicubic"], ["zeros", "border", "reflection"], [True, False]
        )
    ),
    *(
        (jax_dcn.map_coordinates, "GridSample", {"order": 1, "mode": mode})
        for mode in ("constant", "nearest", "mirror", "reflect")
    ),
    *(
        (jax_dcn.roi_align, "RoiAlign", {"output_size": 3, "spatial_scale": 0.25} | options)
        for options in ({"aligned": False}, {"sampling_ratio": 2})
    ),
]
ARRAYS = {"grid_sample": BATCHED["grid_sample"][2:], "map_coordinates": (FIELD, PLACES), "roi_align": (X, rois(12))}


@pytest.mark.thorough
@pytest.mark.parametrize("function, node, options", OPTIONS)
def test_options(function, node, options):
    check(partial(function, **options), *ARRAYS[function.__name__], nodes=[node])


@pytest.mark.thorough
def test_nms_of_fewer_boxes_than_outputs_in_nested_transformations():
    function = jax.jit(jax.vmap(suppress, in_axes=(0, 0, None)))
    classes = RNG.integers(0, 2, 12).astype(np.int32)
    check(function, boxes(2, 12), uniform(0, 1, 2, 12), classes, nodes=["NonMaxSuppression"])


def test_nms_is_the_usual_one_after_an_export():
    suppress = jax.jit(lambda boxes, scores: jax_dcn.nms(boxes, scores, 0.5, max_outputs=5))
    given = boxes(9), uniform(0, 1, 9)
    before = suppress(*given)
    interop.model_to_onnx(suppress, given)
    jax.tree.map(np.testing.assert_array_equal, suppress(*given), before)


@pytest.mark.parametrize("others", ["default", "cuda"])
def test_what_depends_on_the_platform(others):
    """A model has only the form for platforms without one of their own, or else the last."""
    forms = {"cpu": lambda x: x + x, others: lambda x: jnp.maximum(x, -1e9) * 2}
    forms |= {} if others == "default" else {"rocm": lambda x: jnp.maximum(x, -2e9) * 2}
    double = jax.jit(lambda x: jax.lax.platform_dependent(x, **forms))
    check(double, X, nodes=["Max", "Mul"])
    assert not {"If", "Add"} & {node.op_type for node in interop.model_to_onnx(double, [X]).graph.node}


def attributes():
    modules = jnp, jax.lax, jax.nn, flax.linen, flax.nnx
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return {(owner, name): value for owner in (*modules, *classes) for name, value in vars(owner).items()}


def replaced_by_exports():
    before = attributes()
    interop.model_to_onnx(jnp.sin, [(2,)])
    with pytest.raises(ValueError, match="order must be 1"):
        interop.model_to_onnx(partial(jax_dcn.map_coordinates, order=0), [(4, 5), (2, 3)])
    after = attributes()
    changed = (key for key in before.keys() | after.keys() if before.get(key) is not after.get(key))
    return [f"{owner.__name__}.{name}" for owner, name in changed]


@pytest.mark.slow
def test_nothing_stays_replaced_after_exports():
    """In a new process, where jax2onnx has not been imported yet."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(replaced_by_exports).result() == []


def refused(function, *arrays, match):
    with pytest.raises(ValueError, match=match):
        interop.model_to_onnx(function, arrays)


def test_what_onnx_cannot_express():
    offset, weight, regions = normal(2, 9, 10, 18), normal(3, 3, 8, 4), rois(4)

    def conv(x, **settings):
        return jax_dcn.deform_conv2d(x, offset, weight, **settings)

    def pool(operator, **settings):
        return lambda x: operator(x, regions, output_size=2, **settings)

    refused(lambda x: conv(x, padding="CIRCULAR"), X, match="padding must be .* nor negative, got 'CIRCULAR'")
    refused(jax.grad(lambda x: conv(x).sum()), X, match="derivative of deform_conv cannot be exported")
    kernels = normal(2, 3, 3, 8, 4)
    refused(jax.vmap(jax_dcn.deform_conv2d), X, offset, kernels, match="weight must be the same for all images")
    volumes = normal(1, 4, 5, 6, 2), normal(1, 4, 5, 6, 24), normal(2, 2, 2, 2, 3)
    refused(jax_dcn.deform_conv3d, *volumes, match=r"the kernel must have two axes, .* got \(2, 2, 2\)")
    locations, weights = uniform(0, 1, 2, 7, 3, 2, 4, 2), normal(2, 7, 3, 2, 4)
    discrete = partial(jax_dcn.multi_scale_deformable_attention, spatial_shapes=SIZES, method="discrete")
    message = "method must be one that ONNX's GridSample has, got 'discrete'"
    refused(lambda value: discrete(value, locations, weights), normal(2, 26, 3, 4), match=message)
    for operator in (jax_dcn.psroi_pool, jax_dcn.ps_roi_align):
        refused(pool(operator), X, match=f"only roi_align .* got {operator.__name__}")
    refused(pool(jax_dcn.roi_align, mode="max"), X, match="only roi_align .* got roi_align with mode='max'")
    refused(pool(jax_dcn.roi_align, sampling_ratio=(1, 2)), X, match=r"sampling_ratio must be the same .* got \(1, 2\)")
    at = uniform(0, 9, 2, 5)
    refused(lambda x: jax_dcn.map_coordinates(x, at, 1, mode="wrap"), X[0, :, :, 0], match="mode must be .* got 'wrap'")
    refused(lambda x: jax_dcn.map_coordinates(x, at, 0), X[0, :, :, 0], match="order must be 1 .* got 0")
    refused(lambda x: jax_dcn.map_coordinates(x, at[:1], 1), X[0, :, 0, 0], match="x must have two or three axes")
    with pytest.raises(ValueError, match="opset must be at least 20, got 19"):
        interop.model_to_onnx(jnp.sin, [(2,)], opset=19)
