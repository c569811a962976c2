"""The fused kernels of the CPU are right on shapes with tails in every dimension, and stay within their operands.

They run on every instruction set of the processor, under sanitizers too; AMX is emulated where the processor lacks only
that.
"""

import functools
import os
import shutil
import subprocess

import pytest

from . import build

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.slow]

(PORTABLE,) = build.PORTABLE


def run(program, instructions, *arguments):
    """The exit status and output, with the instruction set or the best that the processor has below it."""
    # ThreadSanitizer needs addresses that are not randomized.
    command = [*(["setarch", "-R"] if shutil.which("setarch") else []), program, *arguments]
    environment = os.environ | {"JAX_DCN_CPU_INSTRUCTIONS": instructions, "TSAN_OPTIONS": "halt_on_error=1"}
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=300
    )
    return result.returncode, result.stdout


def program(sanitizer, instructions):
    """Under sanitizers, the portable kernels are compiled alone."""
    is_alone = instructions == PORTABLE and sanitizer != "none"
    sets = build.PORTABLE if is_alone else build.FUSED_INSTRUCTION_SETS
    return build.cpu_fused_program(sanitizer, sets, is_emulated(instructions))


@functools.cache
def is_available(instructions):
    return run(build.cpu_fused_program("none"), instructions, "name") == (0, f"{instructions}\n")


def is_emulated(instructions):
    """Whether the processor lacks the instruction set, but can emulate it. Skips the test if it cannot."""
    if instructions == PORTABLE or is_available(instructions):
        return False
    if instructions != "amx" or not is_available("avx512_bf16"):
        pytest.skip(f"this processor has not got {instructions}")
    return True


# Programs with a sanitizer take long to compile; that of the portable kernels takes least.
QUICK = [("memory", PORTABLE), *(("none", name) for name in build.FUSED_INSTRUCTION_SETS)]
RUNS = [
    pytest.param(sanitizer, name, marks=() if (sanitizer, name) in QUICK else pytest.mark.thorough)
    for sanitizer in ("none", "memory", "threads")
    for name in build.FUSED_INSTRUCTION_SETS
]


@pytest.mark.parametrize("sanitizer, instructions", RUNS)
def test_kernels_are_right(sanitizer, instructions):
    if not build.has(sanitizer):
        pytest.skip(f"{build.COMPILER} has not got {' '.join(build.SANITIZERS[sanitizer])}")
    assert run(program(sanitizer, instructions), instructions) == (0, f"every result is right with {instructions}\n")
