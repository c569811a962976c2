"""The C++ programs of the tests, compiled for Linux on aarch64 as the package is, and run by qemu.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static
"""

import os
import subprocess

import pytest

from tests.kernels import build
from tests.kernels.test_cpu_linkage import shared_code_for_a_target
from tests.wheels import cross

from . import environment

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(environment.program_missing() != "", reason=environment.program_missing()),
]

# The processors that qemu emulates: Armv8.0, and one that has everything, BF16 included.
PROCESSORS = {"neon": "cortex-a72", "neon_bf16": "max"}


def run(program, *arguments, options=(), **variables):
    command = [environment.QEMU, *options, program, *arguments]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | variables
    )
    return result.returncode, result.stdout


def fused_program():
    return build.cpu_fused_program("aarch64", [*build.AARCH64_SETS, *build.AARCH64_PAIR_SETS])


@pytest.mark.parametrize("instructions", PROCESSORS)
def test_fused_kernels_are_right(instructions):
    """The kernels are those of the processor."""
    status, output = run(fused_program(), options=["-cpu", PROCESSORS[instructions]])
    assert (status, output) == (0, f"every result is right with {instructions}\n")


def test_instruction_sets_are_limited():
    assert run(fused_program(), "name", JAX_DCN_CPU_INSTRUCTIONS="neon") == (0, "neon\n")
    status, output = run(fused_program(), "name", JAX_DCN_CPU_INSTRUCTIONS="avx2")
    assert status != 0
    assert "JAX_DCN_CPU_INSTRUCTIONS is avx2, must be neon or neon_bf16" in output


def test_large_pages():
    """Pages of 64 KiB, as some kernels of Linux have them."""
    status, output = run(fused_program(), options=["-p", "65536"])
    assert (status, output) == (0, "every result is right with neon_bf16\n")


@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_shared_code_is_compiled_for_every_processor(level):
    """As in test_cpu_linkage.py: functions that files share have no instructions of BF16 or of Armv8.1."""
    instructions = r"\t(bfdot|bfcvt|ldadd|swp|cas)\w*\t"
    tools = {"compiler": cross.COMPILER, "objdump": f"{cross.PREFIX}objdump", "pattern": instructions}
    assert shared_code_for_a_target("deform_conv/fused_cpu/neon_bf16.cc", "neon_bf16", [level], **tools) == set()
