"""On both sides of the limits of the fused path of a CPU."""

import pytest

from benchmarks import cpu_limits
from benchmarks.measurements.deform_conv import Shape
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(INSTRUCTIONS not in cpu_limits.SETS, reason="this processor has no fast kernels"),
]


def test_the_page_has_every_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_limits, "LIMITS", {"Pixels": {"few": Shape(1, 4, 4, 8, 8)}})
    ratios = cpu_limits.measure(repeats=1)
    assert list(ratios) == ["few"] and len(ratios["few"]) == len(cpu_limits.PASSES)
    monkeypatch.setattr(cpu_limits, "measured_with", lambda name, _: ratios if name == INSTRUCTIONS else None)
    cpu_limits.main(["--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert f"{INSTRUCTIONS}, gradients" in page.read_text() and "| few " in page.read_text()
