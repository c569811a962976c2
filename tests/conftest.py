import os

# Before jax is imported: the sharding tests need several devices, on any machine.
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}".strip()

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile(
    "jax_dcn",
    deadline=None,  # the first example compiles
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a random seed shrinks to nothing simpler
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("jax_dcn")


@pytest.fixture
def x64():
    """float64 for one test; all others see jax's default, as users do."""
    with jax.enable_x64(True):
        yield
