"""The benchmarks on tiny shapes: what they write, and which results they refuse."""

import json
import math
import sys

import jax
import pytest

from benchmarks import operators
from benchmarks.__main__ import main
from benchmarks.baselines import PASSES, compiled
from benchmarks.measurements import aggregation, convolution, deform_conv, deform_conv3d, roi_pool, sampling
from benchmarks.measurements.deform_conv import CONVOLUTION
from benchmarks.measurements.measure import measure

pytestmark = pytest.mark.platforms("cpu")  # the threads of the benchmarks use jax's default platform

TINY = deform_conv.Shape(1, 4, 5, 8, 4)
TINY_SHAPES = {
    "deform_conv2d": {"A": TINY},
    "deform_psroi_pool": {"P": roi_pool.Shape(2, 4, 5, 2, rois=3, group=7, classes=2)},
    "roi_align": {"R": roi_pool.Shape(2, 4, 5, 2, rois=3, points=2)},
    "multi_scale_deformable_attention": {"M": aggregation.Attention(2, ((4, 4), (3, 2)), heads=2)},
    "dcnv3": {"W": aggregation.Window(1, 5, 2)},
    "grid_sample": {"S": sampling.Shape("volume", 2, (2, 4, 3), 3, (7,))},
    "map_coordinates": {"K": sampling.Field((5, 6), 20)},
    "deform_conv3d": {"V": deform_conv3d.Shape(1, (2, 3, 4), 4)},
    "ordinary convolution": {"N": convolution.Shape(1, 6, 16, 32, stride=2)},
}
BASELINES = CONVOLUTION.implementations


@pytest.fixture
def tiny(monkeypatch):
    chosen = {name: one._replace(shapes=TINY_SHAPES[name]) for name, one in operators.OPERATORS.items()}
    monkeypatch.setattr(operators, "OPERATORS", chosen)


def run(folder, *arguments):
    """The exit status, the JSON file and the tables."""
    status = main([*arguments, "--repeats", "1", "--out", str(folder)])
    (written,) = folder.glob("*.json")
    return status, json.loads(written.read_text(), parse_constant=pytest.fail), written.with_suffix(".md").read_text()


def run_tiny_convolution(folder, *arguments):
    return run(folder, "--shapes", "A", "--dtypes", "float32", *arguments)


def rows_of(names, shape=TINY, dtype="float32"):
    """The rows of the convolution by jax_dcn and the baselines with these names."""
    return measure(deform_conv.problem(shape, dtype), {name: BASELINES[name] for name in ("jax_dcn", *names)}, 1)


@pytest.mark.thorough
def test_end_to_end(tiny, tmp_path):
    """Without the reference, whose gradients take longest to compile, and which many other tests compare with."""
    names = [name for name in operators.baselines() if name != "reference"]
    status, results, text = run(tmp_path, "--dtypes", "float32", "--baselines", *names)
    assert status == 0
    rows = {(row["shape"], row["pass"]): row for row in results["operators"]}
    assert set(rows) == {(shape, pass_) for shape in "APRMWSKVN" for pass_ in PASSES}
    for row in rows.values():
        assert "jax_dcn" in row["seconds"]
        assert not row["refused"]
        assert all(held is None or held >= 0 for held in row["bytes"].values())
        for times in row["seconds"].values():
            assert 0 < times["min"] <= times["median"] <= times["max"] < math.inf
    assert {"jax_dcn", "im2col path", deform_conv.XLA} <= set(rows["A", "forward"]["seconds"])
    assert all(name in text for name in operators.OPERATORS)


def test_baselines_agree_on_groups_and_strides():
    shape = TINY._replace(stride=2, dilation=2, groups=2, offset_groups=4)
    for row in rows_of((name for name in BASELINES if name != "reference"), shape, "bfloat16"):
        assert {"jax_dcn", deform_conv.XLA} <= set(row["seconds"])
        assert not row["refused"]


def test_chosen_baselines_an_absent_library_and_limited_instructions(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    absent = (deform_conv.ONEDNN, "torchvision")
    _, results, text = run_tiny_convolution(tmp_path, "--baselines", *absent, "im2col path")
    assert all(set(row["seconds"]) == {"jax_dcn", "im2col path"} for row in results["operators"])
    assert all(f"- {baseline} cannot be imported (" in text for baseline in absent)
    assert "ONEDNN_MAX_CPU_ISA AVX2" in " ".join(text.split())


@pytest.mark.parametrize("wrong", [lambda y: y + 1, lambda y: y * math.nan], ids=["values", "nan"])
def test_a_wrong_baseline_is_refused(tiny, wrong, tmp_path, monkeypatch):
    def deformable(**arguments):
        return wrong(deform_conv.deformable(**arguments))

    other = compiled.implementation(deformable, deform_conv.VARIED)
    monkeypatch.setitem(BASELINES, "im2col path", other)
    status, results, text = run_tiny_convolution(tmp_path, "--baselines", "im2col path")
    assert status == 1
    forward = results["operators"][0]
    assert set(forward["seconds"]) == {"jax_dcn"}
    assert forward["refused"]["im2col path"].startswith("differs from jax_dcn in y by ")
    assert "**refused**" in text


def test_a_wrong_gradient_is_refused(monkeypatch):
    def deformable(x, **arguments):
        return deform_conv.deformable(2 * x - jax.lax.stop_gradient(x), **arguments)  # twice the gradient

    monkeypatch.setitem(BASELINES, "other", compiled.implementation(deformable, deform_conv.VARIED))
    forward, backward = rows_of(["other"])
    assert "other" in forward["seconds"]
    assert backward["refused"] == {"other": "differs from jax_dcn in x by 100.00%"}
