"""The C++ programs of the tests, compiled for Linux on aarch64 as the package is, and run by qemu.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static
"""

import os
import re
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
    assert shared_code_for_a_target("deform_conv/fused_cpu/neon_bf16.cc", "neon_bf16", [level], **tools) == set()


# File, change of it, the instruction set that finds it.
MUTATIONS = {
    "element of A": ("pair_product.h", "(bfloat16x8_t)b, (bfloat16x4_t)FirstElement(a), {~~0~>1~~});", "neon_bf16"),
    "element of A in float32": ("product.h", "FirstElement(a), {~~0~>1~~});", "neon"),
    "second half of the pairs": ("halves.h", "high((Words){~~vzip2q_u16~>vzip1q_u16~~}(", "neon_bf16"),
    "halves swapped": ("halves.h", "vcvtq_low_bf16_f32((float32x4_t){~~low~>high~~})", "neon_bf16"),
    "order of the halves": (
        "halves.h", "(uint16x8_t)vextq_u32((uint32x4_t)halves, (uint32x4_t)halves, {~~2~>3~~})", "neon_bf16"),
    "shift of bfloat16": ("../../cpu/vectors.h", "vshll_n_u16(vld1_u16(&from->bits), {~~16~>15~~})", "neon"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_found(name, tmp_path):
    file, change, instructions = MUTATIONS[name]
    folder = build.mutated(build.LIB, os.path.normpath(f"deform_conv/fused_cpu/{file}"), change, tmp_path)
    status, output = run(
        fused_program(folder=folder, changed=[instructions]), options=["-cpu", PROCESSORS[instructions]]
    )
    assert status != 0
    assert ", must be " in output


# The micro kernel of each product, whose sums are 8 rows of two vectors.
PRODUCTS = {
    "float32": ("deform_conv/fused_cpu/kernels.cc", "neon", "MicroKernel<FloatWords, 8, 272, 1>"),
    "float32, gradient of the weight": (
        "deform_conv/fused_cpu/kernels.cc",
        "neon",
        "MicroKernel<FloatWords, 8, 1, 272>",
    ),
    "bfloat16": ("deform_conv/fused_cpu/neon_bf16.cc", "neon_bf16", "MicroKernel<PairWords, 8, 272, 1>"),
    "bfloat16, gradient of the weight": (
        "deform_conv/fused_cpu/neon_bf16.cc",
        "neon_bf16",
        "MicroKernel<PairWords, 8, 1, 272>",
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_stay_in_registers(name):
    file, instructions, function = PRODUCTS[name]
    flags = ["-O3", "-ffp-contract=fast", "-fno-trapping-math", "-DNDEBUG"]  # as CMakeLists.txt compiles them
    compiled = build.cpu_kernels(file, instructions, flags, cross.COMPILER)
    command = [f"{cross.PREFIX}objdump", "-d", "-C", "--no-show-raw-insn", compiled]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code = re.sub(rf"\(anonymous namespace\)::|dcn::|{instructions}::", "", code)
    names, bodies = (re.split(r"^[0-9a-f]+ <(.*)>:$", code, flags=re.MULTILINE)[first::2] for first in (1, 2))
    loops = [loop for name, body in zip(names, bodies, strict=True) if function in name for loop in innermost(body)]
    assert loops, f"{file} must have loops in {function}"
    main_loop = max(loops, key=lambda loop: count(r"^(fmla|bfdot)\s", loop) / len(loop))
    assert count(r"^(fmla|bfdot)\s", main_loop) == 16
    assert count(r"\[sp", main_loop) == 0


def innermost(body):
    """The instructions of each loop of a function that contains no other loop."""
    lines = re.findall(r"^ *([0-9a-f]+):\t(.*)$", body, re.MULTILINE)
    index = {address: i for i, (address, _) in enumerate(lines)}
    jumps = [re.match(r"(?:b\.\w+|cbn?z|tbn?z|b)\s+(?:.*,\s*)?([0-9a-f]+) <", text) for _, text in lines]
    targets = [index.get(jump[1], len(lines)) if jump else len(lines) for jump in jumps]
    loops = {(first, last) for last, first in enumerate(targets) if first <= last}
    for first, last in loops:
        if not any(a >= first and b <= last for a, b in loops - {(first, last)}):
            yield [text for _, text in lines[first : last + 1]]


def count(pattern, instructions):
    return sum(re.search(pattern, instruction) is not None for instruction in instructions)
