"""No function that files share is compiled for an instruction set that a processor may not have.

An inline function or a template is compiled in each file that uses it, and the linker keeps one of these copies for the
whole module. If it was compiled for AVX-512, a processor without AVX-512 would stop there, whatever kernels it runs.
Functions in the namespace of an instruction set are only called by its kernels.
"""

import platform
import re
import shutil
import subprocess

import pytest

from . import build

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="there is only one instruction set elsewhere"),
    pytest.mark.skipif(
        not all(map(shutil.which, (build.COMPILER, "nm", "objdump"))), reason="it needs a compiler and binutils"
    ),
]

FUSED = "deform_conv/fused_cpu"
FILES = [(str(path.relative_to(build.LIB)), set) for path in build.CPU_KERNELS for set in ("avx2", "avx512")]
FILES += [(f"{FUSED}/avx512_bf16.cc", "avx512_bf16"), (f"{FUSED}/amx.cc", "amx")]
BY_DEFAULT = [("aggregation/cpu_corners.cc", "avx2"), ("roi_pool/cpu.cc", "avx512"), (f"{FUSED}/amx.cc", "amx")]


def read(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


# Names of all instructions of AVX and later vector extensions begin with v.
AVX = r"\tv\w+ "


def shared_code_for_a_target(file, instructions, flags=(), compiler=build.COMPILER, objdump="objdump", pattern=AVX):
    compiled = build.cpu_kernels(file, instructions, flags, compiler)
    shared = set(re.findall(r"^\S+ [WVu] (.*)$", read("nm", "-C", compiled), re.MULTILINE))
    functions = re.split(r"^[0-9a-f]+ <(.*)>:$", read(objdump, "-d", "-C", compiled), flags=re.MULTILINE)
    for_target = {name for name, code in zip(functions[1::2], functions[2::2], strict=True) if re.search(pattern, code)}
    assert for_target
    return {name for name in shared & for_target if f"dcn::{instructions}::" not in name}


@pytest.mark.parametrize("flags", [[], pytest.param(["-O3"], marks=pytest.mark.thorough)], ids=" ".join)
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[] if file in BY_DEFAULT else [pytest.mark.thorough], id=" ".join(file))
        for file in FILES
    ],
)
def test_shared_code_is_compiled_for_every_processor(file, flags):
    assert shared_code_for_a_target(*file, flags) == set()


def test_templates_compiled_for_an_instruction_set_are_found():
    """A compiler option, unlike the pragmas, applies to the templates of other files, too."""
    assert shared_code_for_a_target("aggregation/cpu_corners.cc", "avx512", ["-mavx512f"])
