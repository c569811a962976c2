"""The convolution of all detectors, beside that of Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_allclose

pytest.importorskip("sklearn")
pytest.importorskip("pycocotools")

from examples.detector.losses import loss
from examples.detector.model import Detector
from examples.detr import weights
from examples.digits_library import scenes
from examples.library import convolution
from tests.helpers.detectors import CONFIGS
from tests.helpers.lowered import lowered_for

pytestmark = pytest.mark.platforms("cpu")


@pytest.mark.parametrize(
    "size, options",
    [
        (3, {"padding": 1, "strides": 2}),
        (1, {"use_bias": False, "dtype": jnp.bfloat16}),
        (5, {"feature_group_count": 16, "padding": "VALID"}),
        (3, {"padding": "CIRCULAR", "kernel_dilation": 2}),
    ],
)
def test_parameters_and_results_are_those_of_flax(size, options):
    x = jax.random.normal(jax.random.key(0), (2, 9, 8, 16))
    layers = [kind(32, (size, size), **options) for kind in (convolution.Conv, nn.Conv)]
    (ours, variables), (theirs, expected) = (layer.init_with_output(jax.random.key(1), x) for layer in layers)
    assert jax.tree.all(jax.tree.map(np.array_equal, variables, expected))
    assert ours.dtype == theirs.dtype
    rounding = 2.0**-7 if "dtype" in options else 2.0**-20
    assert_allclose(np.float32(ours), np.float32(theirs), 0, rounding * np.abs(theirs).max())


def test_an_input_that_is_spread_is_refused():
    with pytest.raises(ValueError, match=r"input_dilation must be 1, got \(2, 2\)"):
        convolution.Conv(4, (3, 3), input_dilation=2).init(jax.random.key(0), jnp.ones((1, 4, 4, 2)))


def training_step():
    """The gradients of the detector of digits, and what they depend on."""
    batch = scenes.make_batch("train", 0, range(2), 64)
    model = Detector(10, "deformable", widths=(8, 8, 16, 16), blocks=(1, 1, 1))
    params = jax.eval_shape(model.init, jax.random.key(0), batch.images)["params"]
    return jax.grad(lambda params: loss(model, params, batch)), params


def detection():
    model = weights.make_model(CONFIGS["rt_detr"])
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)
    return lambda *arguments: model.apply(*arguments), variables, images  # a new function, which jax has not traced


@pytest.mark.parametrize("program", [training_step, detection])
def test_programs_for_gpus_are_those_with_the_convolution_of_jax(program, monkeypatch):
    function, *arguments = program()
    ours = lowered_for("cuda", function, *arguments)
    monkeypatch.setattr(convolution, "convolve", lax.conv_general_dilated)
    function, *arguments = program()
    assert "stablehlo.convolution" in ours and ours == lowered_for("cuda", function, *arguments)
