"""The fused kernels of the CPU are right on shapes with tails in every dimension, and stay within their operands.

They run on every instruction set of the processor, under sanitizers too; AMX is emulated where the processor lacks only
that. Mutations must be found.
"""

import functools
import os
import re
import shutil
import subprocess

import pytest

from . import build

pytestmark = pytest.mark.platforms("cpu")

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


@functools.cache
def right_run(sanitizer, instructions):
    if not build.has(sanitizer):
        pytest.skip(f"{build.COMPILER} has not got {' '.join(build.SANITIZERS[sanitizer])}")
    return run(program(sanitizer, instructions), instructions)


def program(sanitizer, instructions, *mutation):
    """Under sanitizers, the portable kernels are compiled alone."""
    is_alone = instructions == PORTABLE and sanitizer != "none"
    sets = build.PORTABLE if is_alone else build.FUSED_INSTRUCTION_SETS
    return build.cpu_fused_program(sanitizer, sets, *mutation, is_emulated=is_emulated(instructions))


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


# Programs with a sanitizer take long to compile; that of the portable kernels takes least. avx512 is slow because amx
# runs the same float32 kernels.
SLOW = [("memory", PORTABLE), ("none", "avx512")]
RUNS = [
    pytest.param(sanitizer, name, marks=pytest.mark.slow if (sanitizer, name) in SLOW else marks)
    for sanitizer, marks in (("none", ()), ("memory", pytest.mark.thorough), ("threads", pytest.mark.thorough))
    for name in build.FUSED_INSTRUCTION_SETS
]


@pytest.mark.parametrize("sanitizer, instructions", RUNS)
def test_kernels_are_right(sanitizer, instructions):
    assert right_run(sanitizer, instructions) == (0, f"every result is right with {instructions}\n")


# File, change of it; the sanitizer and instruction set that find it, and the complaint. Without a sanitizer, an access
# past the end of an array ends the program by a signal.
SIGNAL = ""
SEGFAULT_BY_SANITIZER = r"SEGV|heap-buffer-overflow"
WRONG = r"is .*, must be"
MUTATIONS = {
    "tail of channels read past its end": (
        "../../cpu/vectors.h", "std::memcpy(lanes, from, {~~count * sizeof(T)~>sizeof lanes~~});", "none", "avx2",
        SIGNAL),
    "last panel of pairs as wide as the others": (
        "forward.h", "{~~std::min<int64_t>(kPanel, group_features_ - feature)~>kPanel~~}", "memory",
        "avx512_bf16", SEGFAULT_BY_SANITIZER),
    "slice that does not wait for the one before": (
        "cotangents.h",
        "{~~if (is_added) progress_.Of(plane_ - 1, tile_in_plane_).WaitFor(TileProgress::PositionsStored(tap));~>~~}",
        "threads", "avx2", "data race"),
    "workspace for one split": (
        "plan.cc", "{~~SaturatingMultiply(num_splits, weight_size)~>weight_size~~}", "none", "avx2", SIGNAL),
    "rows that do not fill a block of registers": (
        "amx.cc", "return {~~(rows + kBlockRows - 1) / kBlockRows * kBlockRows~>rows~~};", "none",
        "amx", SIGNAL),
}  # fmt: skip
BY_DEFAULT = [
    "tail of channels read past its end",
    "workspace for one split",
    "rows that do not fill a block of registers",
]


def changed_files(file, instructions):
    """Those to compile: the linker keeps one copy of an inline function of plan.h, so all must have it."""
    if file.endswith(".cc"):
        return [file.removesuffix(".cc")]
    if file == "plan.h":
        return ["fused", "plan", *build.FUSED_INSTRUCTION_SETS]
    return [instructions]


def test_mutations_are_in_the_source():
    for file, change, *_ in MUTATIONS.values():
        build.mutated_source(build.FUSED_CPU / file, change)


@pytest.mark.parametrize("name", build.mutations(MUTATIONS, BY_DEFAULT))
def test_mutations_are_found(name, tmp_path):
    file, change, sanitizer, instructions, complaint = MUTATIONS[name]
    folder = build.mutated(build.LIB, os.path.normpath(f"deform_conv/fused_cpu/{file}"), change, tmp_path)
    status, output = run(program(sanitizer, instructions, folder, changed_files(file, instructions)), instructions)
    assert status < 0 if complaint == SIGNAL else status != 0, output
    assert re.search(complaint, output, re.DOTALL), output
