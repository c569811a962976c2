import pytest

from jax_dcn._operators.deform_conv import plan


@pytest.fixture(autouse=True)
def fused_wherever_possible(monkeypatch):
    """Narrow groups take the fused path of the CPU, too; float64 takes the im2col path."""
    monkeypatch.setattr(plan, "MIN_GROUP_CHANNELS", 0)
    if plan.INSTRUCTIONS == "portable":
        monkeypatch.setattr(plan, "INSTRUCTIONS", "portable kernels, which are slow")


@pytest.fixture
def limits_of_the_package(fused_wherever_possible, monkeypatch):
    """Narrow groups take the im2col path of the CPU."""
    monkeypatch.undo()


@pytest.fixture
def im2col_on_cpu(fused_wherever_possible, monkeypatch):
    """All problems take the im2col path of the CPU, as on a processor without fast kernels."""
    monkeypatch.setattr(plan, "INSTRUCTIONS", "portable")
