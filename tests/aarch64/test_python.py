"""The package, cross-compiled for Linux on aarch64, in a Python for aarch64 with jax's wheels, which qemu runs.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static debootstrap. The first run downloads about 300 MB.
"""

import pytest

from . import environment

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(environment.missing() != "", reason=environment.missing()),
]

# One file of each operator.
GOLDEN = "v2_k3- or v2_large or align_ratio_2 or g2_p4_s3 or two_levels or dcnv3_k3- or dcnv4_g1 or 2d_bilinear_border"


def run_tests(*arguments):
    options = "-q", "-p", "no:cacheprovider", "--platform", "cpu"
    result = environment.run(environment.checkout(), "-m", "pytest", *options, *arguments)
    assert result.returncode == 0, result.stdout[-6000:]


@pytest.mark.parametrize("cpu, instructions", [("cortex-a72", "neon"), ("max", "neon_bf16")])
def test_instruction_set_is_chosen_at_import(cpu, instructions):
    program = "from jax_dcn._operators.deform_conv import plan; print(plan.INSTRUCTIONS)"
    assert environment.run(environment.checkout(), "-c", program, cpu=cpu).stdout.split() == [instructions]


def test_values_and_gradients_of_the_public_api():
    result = environment.run(environment.checkout(), "tests/wheels/installed.py")
    assert result.returncode == 0, result.stdout
    assert "computes what its reference does" in result.stdout


def test_golden_files():
    run_tests("tests/operators/test_golden.py", "-k", f"not reference and ({GOLDEN})", "-m", "")


def test_fused_convolution():
    run_tests("tests/deform_conv/test_cpu_fused.py", "-k", "test_values and (panels or two_slices)")
