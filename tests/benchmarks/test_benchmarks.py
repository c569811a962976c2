"""The benchmarks on tiny shapes: what they write, and which results they refuse."""

import json
import math
import shutil
import sys

import jax
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra 'benchmarks' is not installed")

from benchmarks.__main__ import main
from benchmarks.contenders import PASSES, compiled
from benchmarks.measurements import (
    attention,
    dcnv3,
    deform_conv,
    deform_psroi_pool,
    dispatch,
    growth,
    operators,
    roi_align,
)
from benchmarks.measurements.measure import measure
from benchmarks.readers import memory
from benchmarks.reports.plot import COLOURS, MARKERS
from jax_dcn._operators.deform_conv.cpu_fused import INSTRUCTIONS

pytestmark = pytest.mark.platforms("cpu")  # the threads of the benchmarks use jax's default platform

TINY = deform_conv.Shape(1, 4, 5, 8, 4)
TINY_POOL = deform_psroi_pool.Shape(2, 4, 5, 2, rois=3, group=7, classes=2)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(deform_conv, "SHAPES", {"A": TINY})
    monkeypatch.setattr(deform_psroi_pool, "SHAPES", {"P": TINY_POOL})
    monkeypatch.setattr(roi_align, "SHAPES", {"R": roi_align.Shape(2, 4, 5, 2, rois=3)})
    monkeypatch.setattr(attention, "SHAPES", {"M": attention.Shape(2, (4, 3), heads=2)})
    monkeypatch.setattr(dcnv3, "SHAPES", {"W": dcnv3.Shape(1, 5, 2)})
    axis = growth.AXES["batch"]._replace(values=(1, 2), shape=lambda n: TINY._replace(batch=n))
    monkeypatch.setattr(growth, "AXES", {"batch": axis})
    monkeypatch.setattr(dispatch, "KINDS", [("deform_psroi_pool", "forward")])
    monkeypatch.setattr(dispatch, "CALLS", {"jitted": 2, "eager": 1})
    monkeypatch.setattr(dispatch, "IMPORTS", 1)


def run(folder, *arguments):
    """The exit status, the JSON file and the tables."""
    status = main([*arguments, "--repeats", "1", "--out", str(folder)])
    (written,) = folder.glob("*.json")
    return status, json.loads(written.read_text(), parse_constant=pytest.fail), written.with_suffix(".md").read_text()


def test_end_to_end(tiny, tmp_path):
    status, results, text = run(tmp_path, "--dtypes", "float32")
    assert status == 0
    assert results["not reached"] == []
    rows = {(row["shape"], row["pass"]): row for row in results["operators"]}
    assert set(rows) == {(shape, pass_) for shape in "APRMW" for pass_ in PASSES}
    assert len(results["growth"]) == 2 * len(PASSES)
    for row in (*rows.values(), *results["growth"]):
        assert {"jax_dcn", "reference"} & set(row["seconds"])
        assert not row["refused"]
        assert all(held is None or held >= 0 for held in row["bytes"].values())
        for times in row["seconds"].values():
            assert 0 < times["min"] <= times["median"] <= times["max"] < math.inf
    expected = {"jax_dcn", "plain path", deform_conv.FLOOR, deform_conv.PRODUCTS, "pure JAX", "reference"}
    assert expected <= set(rows["A", "forward"]["seconds"])
    for part in (*operators.OPERATORS, "Growth", "Dispatch", "Importing jax_dcn"):
        assert part in text
    assert {path.name.rsplit("-", 1)[1] for path in tmp_path.glob("*.png")} == {
        "deform_conv2d.png",
        "deform_psroi_pool.png",
        "roi_align.png",
        "multi_scale_deformable_attention.png",
        "dcnv3.png",
        "growth.png",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_agree_on_strides(dtype):
    shape = TINY._replace(stride=2, dilation=2, offset_groups=4)
    contenders = {name: deform_conv.CONTENDERS[name] for name in ("jax_dcn", "matrix products")}
    for row in measure(deform_conv.problem(shape, dtype), contenders, 1):
        assert set(row["seconds"]) == set(contenders), row


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contenders_agree_on_groups_and_strides(dtype):
    shape = TINY._replace(stride=2, dilation=2, groups=2, offset_groups=4)
    contenders = {name: c for name, c in deform_conv.CONTENDERS.items() if name != "reference"}
    for row in measure(deform_conv.problem(shape, dtype), contenders, 1):
        assert {"jax_dcn", deform_conv.FLOOR, "pure JAX"} <= set(row["seconds"])
        assert not row["refused"]


def test_onnxruntime_agrees():
    pytest.importorskip("onnxruntime")
    contenders = {name: deform_conv.CONTENDERS[name] for name in ("jax_dcn", "onnxruntime")}
    forward, backward = measure(deform_conv.problem(TINY, "float32"), contenders, 1)
    assert "onnxruntime" in forward["seconds"]
    assert backward["without"] == {"onnxruntime": "has no backward pass"}


def test_onednn_agrees():
    pytest.importorskip("torch")
    contenders = {name: deform_conv.CONTENDERS[name] for name in ("jax_dcn", deform_conv.ONEDNN)}
    for row in measure(deform_conv.problem(TINY, "float32"), contenders, 1):
        assert deform_conv.ONEDNN in row["seconds"], row


def test_the_page_says_that_torch_is_absent(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    contenders = (deform_conv.ONEDNN, "torchvision")
    arguments = ("--contenders", *contenders, "--shapes", "A", "--dtypes", "float32", "--no-plot")
    _, results, text = run(tmp_path, "operators", *arguments)
    assert all(set(row["seconds"]) == {"jax_dcn"} for row in results["operators"])
    for contender in contenders:
        assert f"- {contender} cannot be imported (" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.skipif(not INSTRUCTIONS.startswith(("avx512", "amx")), reason="the processor has no AVX-512")
def test_the_bare_loop_of_the_convolution_agrees():
    contenders = {name: deform_conv.CONTENDERS[name] for name in ("jax_dcn", "bare loop")}
    shape = deform_conv.Shape(2, 9, 11, 40, 64, offset_groups=5)
    forward, backward = measure(deform_conv.problem(shape, "float32"), contenders, 1)
    assert "bare loop" in forward["seconds"], forward
    assert backward["without"] == {"bare loop": "has no backward pass"}


@pytest.mark.parametrize("operator", operators.OPERATORS)
def test_contenders_of_a_plot_look_different(operator):
    names = operators.OPERATORS[operator].CONTENDERS
    assert len({(COLOURS[name], MARKERS[name]) for name in names}) == len(names)


def test_the_time_limit_names_what_was_not_reached(tiny, tmp_path):
    _, results, text = run(tmp_path, "operators", "--dtypes", "float32", "--seconds", "0")
    assert results["operators"] == []
    assert results["not reached"] == [f"{shape} float32" for shape in "APRMW"]
    assert "Not reached in 0 s: A float32, P float32, R float32, M float32, W float32." in text


def test_chosen_contenders_and_limited_instructions(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    arguments = ("--contenders", "reference", "--shapes", "A", "--dtypes", "float32", "--no-plot")
    _, results, text = run(tmp_path, "operators", *arguments)
    assert all(set(row["seconds"]) == {"jax_dcn", "reference"} for row in results["operators"])
    assert "ONEDNN_MAX_CPU_ISA AVX2" in text


@pytest.mark.parametrize("wrong", [lambda y: y + 1, lambda y: y * math.nan], ids=["values", "nan"])
def test_a_wrong_contender_is_refused(tiny, wrong, tmp_path, monkeypatch):
    def deformable(**arguments):
        return wrong(deform_conv.deformable(**arguments))

    contenders = {
        "jax_dcn": deform_conv.CONTENDERS["jax_dcn"],
        "pure JAX": compiled.contender(deformable, deform_conv.VARIED),
    }
    monkeypatch.setattr(deform_conv, "CONTENDERS", contenders)
    status, results, text = run(tmp_path, "operators", "--shapes", "A", "--dtypes", "float32", "--no-plot")
    assert status == 1
    forward = results["operators"][0]
    assert set(forward["seconds"]) == {"jax_dcn"}
    assert forward["refused"]["pure JAX"].startswith("differs from jax_dcn in y by ")
    assert "**refused**" in text
    assert not list(tmp_path.glob("*.png"))


def test_a_wrong_gradient_is_refused():
    def deformable(x, **arguments):
        return deform_conv.deformable(2 * x - jax.lax.stop_gradient(x), **arguments)  # twice the gradient

    contenders = {
        "jax_dcn": deform_conv.CONTENDERS["jax_dcn"],
        "other": compiled.contender(deformable, deform_conv.VARIED),
    }
    forward, backward = measure(deform_conv.problem(TINY, "float32"), contenders, 1)
    assert "other" in forward["seconds"]
    assert backward["refused"] == {"other": "differs from jax_dcn in x by 100.00%"}


def test_a_contender_that_would_hold_too_much_is_left_out(monkeypatch):
    monkeypatch.setattr("benchmarks.readers.memory.most_bytes", lambda: 1)
    (forward, _) = measure(deform_conv.problem(TINY, "float32"), {"jax_dcn": deform_conv.CONTENDERS["jax_dcn"]}, 1)
    assert forward["without"] == {"jax_dcn": "would hold more than 0.0 GiB"}


def test_the_process_is_seen_to_grow():
    result, held = memory.of_process(lambda: np.ones(2**23))
    assert result.nbytes == 2**26
    if held is None:
        pytest.skip("how far the process grows is not to be had here")
    assert 0.98 * 2**26 < held < 1.2 * 2**26


def test_slopes():
    values = 2 ** np.arange(7)
    assert growth.slope(values, 3e-4 * values**1.5) == pytest.approx(1.5)
    everything, half = growth.slopes(zip(values, np.maximum(values, 8), strict=True))
    assert half == pytest.approx(1)
    assert 0 < everything < 1


def test_slopes_of_too_few():
    assert growth.slopes([(1, None), (2, 0.5)]) == (None, None)
