"""The fused kernels of the CPU are right on shapes with tails in every dimension, and stay within their operands.

They run on every instruction set, under sanitizers too; AVX-512, AVX512-BF16 and AMX are emulated on processors that
have only AVX2. Mutations must be found.
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
EMULATED = ["avx512", "avx512_bf16", "amx"]  # in terms of AVX2, where the processor lacks them


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
    if instructions not in EMULATED or not is_available("avx2"):
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
WRONG_OR_SIGNAL = f"{WRONG}|^$"
MUTATIONS = {
    "tail of channels read past its end": (
        "../../cpu/vectors.h", "std::memcpy(lanes, from, {~~count * sizeof(T)~>sizeof lanes~~});", "none", "avx2",
        SIGNAL),
    "tail of features stored past its end": (
        "../../cpu/vectors.h", "std::memcpy(to, lanes, {~~count * sizeof(T)~>sizeof lanes~~});", "none", "avx512",
        WRONG_OR_SIGNAL),
    "last row of tiles as high as the others": (
        "plan.h", "{~~std::min(rows_, height_ - row)~>rows_~~}", "none", "avx2", WRONG_OR_SIGNAL),
    "last column of tiles as wide as the others": (
        "plan.h", "{~~std::min(columns_, width_ - column)~>columns_~~}", "none", PORTABLE, WRONG_OR_SIGNAL),
    "last rows of a product": (
        "product.h", "if (row {~~+ kMicroRows <=~><~~} rows) {", "memory", "avx512", SEGFAULT_BY_SANITIZER),
    "last panel of features as wide as the others": (
        "product.h", "{~~i < b.columns ? Load(from + i, b.columns - i) : Floats{}~>Load(from + i)~~}", "none",
        "avx2", SIGNAL),
    "groups narrower than a panel read past their end": (
        "product.h", "b.row_stride == kPanel{~~ && b.columns >= kPanel~>~~}", "none", "avx2", SIGNAL),
    "last panel of pairs as wide as the others": (
        "forward.h", "{~~std::min<int64_t>(kPanel, group_features_ - feature)~>kPanel~~}", "memory",
        "avx512_bf16", SEGFAULT_BY_SANITIZER),
    "last panel of channels as wide as the others": (
        "cotangents.h", "{~~c + n < slice.channels ? row[f] : T(0.0f)~>row[f]~~}", "none", PORTABLE, SIGNAL),
    "last block of K as long as the others": (
        "forward.h", "const int64_t length = {~~BlockLength(begin)~>block_~~};\n    buffers", "memory", "avx2",
        SEGFAULT_BY_SANITIZER),
    "square of samples past the last one": (
        "samples.h", "p + kSquare <= pixels{~~ && s + kSquare <= count_~>~~}", "none", "avx2", SIGNAL),
    "corner outside of the image that is read": (
        "samples.h", "address_[k][i] = {~~pixel >= 0 ? read : other~>read~~};", "none", "avx2", WRONG_OR_SIGNAL),
    "operands of all strips in one place": (
        "samples.h", "return kIsForward ? s : {~~strip * max_samples_ + ~>~~}s;", "none", "avx2", WRONG),
    "sample on the grid that reads the next row": (
        "samples.h", "LocateOnAxis(start.y[i] + tap_y, height, kIsCircular).pixel[{~~0~>1~~}]", "none", "avx2", WRONG),
    "sums of the weight in the place of another slice": (
        "cotangents.h", "* slices.count + slice{~~~> / 2~~}) *", "none", "avx2", WRONG),
    "channels of the slice before": (
        "plan.h", "return {group, {~~group * group_channels + ~>~~}first_in_group,", "none", "avx512",
        WRONG_OR_SIGNAL),
    "slice that does not add to the cotangents of positions": (
        "cotangents.h", "{~~c == 0 && plan_.SharesPositions(slice_)~>false~~}", "none", "avx2", WRONG),
    "slice that does not wait for the one before": (
        "cotangents.h",
        "{~~if (is_added) progress_.Of(plane_ - 1, tile_in_plane_).WaitFor(TileProgress::PositionsStored(tap));~>~~}",
        "threads", "avx2", "data race"),
    "tile that adds to the weight before the one before": (
        "cotangents.h", "if (tile_before {~~>= 0~>> 99~~}) {", "threads", "avx2", "data race"),
    "tile that adds to pixels before the one before": (
        "cotangents.h", "{~~before.box().Overlaps(samples_.box())~>false~~}", "threads", "avx2", "data race"),
    "planes that have their sums in one place": (
        "cotangents.h", "{~~plane % plan_.resident_planes()~>0~~}", "threads", "avx2", f"data race|{WRONG}"),
    "patch that has fewer rows than the tile reads": (
        "cotangents.h", "box.rows() <= {~~plan_.patch_rows()~>100~~};", "none", "avx2", SIGNAL),
    "tile without a patch that adds before the one before": (
        "cotangents.h", "{~~WaitForPixels();~>~~}\n      sums_ =", "threads", "avx2", "data race"),
    "plane that is rounded before it is finished": (
        "cotangents.h", "{~~progress_.finished_tiles.WaitFor(plane, plan_.tiles());~>~~}", "threads", "avx2",
        "data race"),
    "patch that is not zero at first": (
        "cotangents.h", "std::memset(patch_.data() + {~~row~>0~~} * width", "none", "avx2", WRONG),
    "workspace for one split": (
        "plan.cc", "{~~SaturatingMultiply(num_splits, weight_size)~>weight_size~~}", "none", "avx2", SIGNAL),
    "odd end of the columns' pairs": (
        "pairs.h",
        "RowOrZeros(row + kRowWords, p {~~+ 1 ~>~~}< pixels));\n          Store((Floats)pair.low, out);",
        "memory", "avx512_bf16", SEGFAULT_BY_SANITIZER),
    "odd end of the pairs of the cotangent of y": (
        "pairs.h",
        "RowOrZeros(row + kRowWords, p {~~+ 1 ~>~~}< pixels));\n            low[i] = pair.low;",
        "memory", "avx512_bf16", SEGFAULT_BY_SANITIZER),
    "pixels of a pair swapped": (
        "halves.h",
        "low = (Words)_mm512_permutex2var_epi16((__m512i){~~first~>second~~}, low_order,"
        " (__m512i){~~second~>first~~});",
        "none", "avx512_bf16", WRONG),
    "rows that do not fill a block of registers": (
        "amx.cc", "return {~~(rows + kBlockRows - 1) / kBlockRows * kBlockRows~>rows~~};", "none",
        "amx", SIGNAL),
    "pairs that do not fill a register": (
        "amx.cc", "return ({~~(pixels + 1) / 2 + kWords - 1) / kWords * kWords~>pixels + 1) / 2~~};", "none",
        "amx", WRONG_OR_SIGNAL),
    "cotangent of x that is not zero at first": (
        "cotangents.h", "{~~std::memset(sums.At(p), 0, channels * sizeof(float));~>;~~}", "none", "avx2", WRONG),
    "tail of channels of x that is not zero at first": (
        "cotangents.h", "std::memset(sums.At(p), 0, channels {~~~>/ 4 * 4 ~~}* sizeof(float));", "none", "avx2",
        WRONG),
    "cotangent of the weight that was not requested": (
        "cotangents.h", "{~~    if (!requested.weight) return;\n~>~~}", "none", "avx2",
        f"must not be written|{WRONG_OR_SIGNAL}"),
    "cotangent of the weight without pixels": (
        "cotangents.h", "    if ({~~sizes.pixels() == 0~>false~~}) {", "none", "avx2", WRONG),
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
