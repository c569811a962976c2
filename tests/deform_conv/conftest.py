import pytest

from jax_dcn._operators.deform_conv import cpu_fused


@pytest.fixture(autouse=True)
def fused_wherever_possible(monkeypatch):
    """Small problems take the fused path of the CPU, too; float64 takes the plain one."""
    monkeypatch.setattr(cpu_fused, "MIN_PIXELS", 0)
    monkeypatch.setattr(cpu_fused, "MIN_GROUP_CHANNELS", 0)
    monkeypatch.setattr(cpu_fused, "MIN_TASKS", 0)
    if cpu_fused.INSTRUCTIONS == "portable":
        monkeypatch.setattr(cpu_fused, "INSTRUCTIONS", "portable kernels, which are slow")


@pytest.fixture
def limits_of_the_package(fused_wherever_possible, monkeypatch):
    """Small problems take the plain path of the CPU."""
    monkeypatch.undo()
