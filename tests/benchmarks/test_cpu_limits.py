"""On both sides of the limits of the fused path of a CPU."""

import pytest

from benchmarks import cpu_limits
from benchmarks.measurements import convolution
from benchmarks.measurements.deform_conv import Shape
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(INSTRUCTIONS not in cpu_limits.SETS, reason="this processor has no fast kernels"),
]


def test_the_page_has_every_limit(tmp_path, monkeypatch):
    shapes = {"Pixels": {"few": Shape(1, 4, 4, 8, 8)}, "Channels": {"of a grid": convolution.Shape(1, 4, 16, 32)}}
    monkeypatch.setattr(cpu_limits, "LIMITS", shapes)
    ratios = cpu_limits.measure(repeats=1)
    assert {name: len(of_shape) for name, of_shape in ratios.items()} == {"few": 2, "of a grid": 3}
    monkeypatch.setattr(cpu_limits, "measured_with", lambda name, _: ratios if name == INSTRUCTIONS else None)
    cpu_limits.main(["--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert f"{INSTRUCTIONS}, gradients" in page.read_text() and "| few " in page.read_text()
    assert f"{INSTRUCTIONS}, weight" in page.read_text() and "| of a grid " in page.read_text()
