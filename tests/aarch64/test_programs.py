"""The C++ programs of the tests, compiled for Linux on aarch64 as the package is, and run by qemu.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static
"""

import os
import subprocess

import pytest

from benchmarks import aarch64_loops
from tests.fuzz.test_handlers import CORPUS
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


def fused_program(**mutation):
    return build.cpu_fused_program("aarch64", [*build.AARCH64_SETS, *build.AARCH64_PAIR_SETS], **mutation)


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
    assert shared_code_for_a_target("fused/neon_bf16", "neon_bf16", [level], **tools) == set()


# File, change of it, the instruction set that finds it.
MUTATIONS = {
    "element of A": ("pair_product.h", "(bfloat16x8_t)b, (bfloat16x4_t)FirstElement(a), {~~0~>1~~});", "neon_bf16"),
    "element of A in float32": ("product.h", "FirstElement(a), {~~0~>1~~});", "neon"),
    "second half of the pairs": ("halves.h", "high((Words){~~vzip2q_u16~>vzip1q_u16~~}(", "neon_bf16"),
    "halves swapped": ("halves.h", "vcvtq_low_bf16_f32((float32x4_t){~~low~>high~~})", "neon_bf16"),
    "order of the halves": (
        "halves.h", "(uint16x8_t)vextq_u32((uint32x4_t)halves, (uint32x4_t)halves, {~~2~>3~~})", "neon_bf16"),
    "shift of bfloat16": ("../vectors.h", "vshll_n_u16(vld1_u16(&from->bits), {~~16~>15~~})", "neon"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_found(name, tmp_path):
    file, change, instructions = MUTATIONS[name]
    folder = build.mutated(build.CPU, os.path.normpath(f"fused/{file}"), change, tmp_path)
    status, output = run(
        fused_program(folder=folder, changed=[instructions]), options=["-cpu", PROCESSORS[instructions]]
    )
    assert status != 0
    assert ", must be " in output


@pytest.mark.parametrize("what, file, function", aarch64_loops.PRODUCTS)
def test_products_stay_in_registers(what, file, function):
    loop = aarch64_loops.find(what, file, function)
    assert aarch64_loops.count(loop, aarch64_loops.MULTIPLY_ADD) == 16
    assert aarch64_loops.count(loop, aarch64_loops.OF_STACK) == 0


def test_any_call_is_refused_or_succeeds():
    """The fuzzer's corpus, and changed inputs of it."""
    status, output = run(build.fuzzer("cpu", "aarch64"), CORPUS, "500")
    assert status == 0, output
    assert output.endswith("changed ones are done\n")
