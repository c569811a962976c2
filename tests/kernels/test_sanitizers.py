"""The kernels run without errors under sanitizers and in the emulation.

The other tests check that errors would be found: in small correct and wrong kernels (toys.cu), and in the package's
kernels with one line changed.
"""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from . import build

pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture(scope="session")
def run():
    """`run(program, sanitizer, *arguments)`: the exit status and output of a program."""
    without_randomness = ["setarch", "-R"]  # randomized addresses may collide with those that ThreadSanitizer reserves
    try:
        subprocess.run([*without_randomness, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        without_randomness = []

    def run(program, sanitizer, *arguments, kernels=build.KERNELS):
        if not build.has(sanitizer):
            pytest.skip(f"{build.COMPILER} has not got {' '.join(build.SANITIZERS[sanitizer])}")
        command = [*without_randomness, build.program(program, sanitizer, kernels), *arguments]
        environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        if "ThreadSanitizer: unexpected memory mapping" in result.stdout:
            pytest.skip("ThreadSanitizer finds its addresses taken, and setarch -R is not allowed here")
        return result.returncode, result.stdout

    return run


# Races are looked for in the compiled kernels by default: see test_executed_ptx.py.
@pytest.fixture(params=["memory", pytest.param("threads", marks=pytest.mark.thorough)])
def sanitizer(request):
    return request.param


def test_kernels_are_clean(sanitizer, run):
    status, output = run("launches.cc", sanitizer)
    assert (status, output) == (0, "every launch is done\n")


@pytest.mark.thorough
def test_launches_do_not_depend_on_filled_memory(run):
    """compute-sanitizer's initcheck runs them so."""
    assert run("launches.cc", "memory", "--leave-unwritten") == (0, "every launch is done\n")


COUNTED = "    __syncthreads();\n    if (warp == 0) {"  # each warp has counted its entries
SCANNED = "    __syncthreads();\n    int32_t* chunk_ids"
MISTAKES = {
    "missing barrier": (
        ("counting_sort.h", COUNTED, "    if (warp == 0) {"),
        ("threads", r"data race.*PartitionKernel"),
    ),
    "another missing barrier": (
        ("counting_sort.h", SCANNED, "    int32_t* chunk_ids"),
        ("threads", r"data race.*PartitionKernel"),
    ),
    "barrier that not all reach": (
        ("counting_sort.h", COUNTED, "    if (warp_entries > 0) __syncthreads();\n    if (warp == 0) {"),
        ("memory", r"thread 0 waits at counting_sort.h:\d+ for thread \d+, which (waits|has ended)"),
    ),
    "off by one in shared memory": (
        ("counting_sort.h", "next[warp][bin] = 0;", "next[warp + 1][bin] = 0;"),
        ("memory", r"index \d+ out of bounds for type 'int \[8\]"),
    ),
    "off by one in global memory": (
        ("counting_sort.h", "shape.first_row(bin + 1) : shape.rows)", "shape.first_row(bin + 1) : shape.rows + 1)"),
        ("memory", r"heap-buffer-overflow.*SortBinsKernel"),
    ),
    "overlapping writes of threads": (
        ("deform_conv.cu", "out = columns + sample.Column(sizes)", "out = columns + sample.Column(sizes) / 16 * 8"),
        ("threads", r"data race.*SampleColumnsKernel"),
    ),
    "overlapping writes of blocks": (
        ("deform_conv.cu", "StorePositionCotangents(positions, sample.index,",
         "StorePositionCotangents(positions, sample.index % 8,"),
        ("threads", r"data race.*OffsetCotangentKernel"),
    ),
    "missing barrier of a warp": (
        ("counting_sort.h", "  __syncwarp();\n  if (key >= 0 && lower == 0)", "  if (key >= 0 && lower == 0)"),
        ("threads", r"data race"),
    ),
    "entry that is not stored": (
        ("counting_sort.h", "if (bin >= 0) chunk_ids[place]", "if (bin > 0) chunk_ids[place]"),
        ("memory", r"heap-buffer-overflow.*SortBinsKernel"),
    ),
    "rows counted where the parts of the bin are still read": (
        ("counting_sort.h", "    __syncwarp();  // the parts have been read\n", ""),
        ("threads", r"data race.*SortBinsKernel"),
    ),
    "list read while it is written": (
        ("roi_pool.cu", "list[list_index] = item;\n      __syncthreads();", "list[list_index] = item;"),
        ("threads", r"ThreadSanitizer: .*InputCotangentKernel"),
    ),
    "misaligned vector": (
        ("deform_conv.cu", "DispatchWidth<T>(sizes.group_channels(), [&](auto width) {\n"
         "      constexpr int N = decltype(width)::value;\n      return Launch<InputCotangentKernel",
         "DispatchWidth<T>(2 * sizes.group_channels(), [&](auto width) {\n"
         "      constexpr int N = decltype(width)::value;\n      return Launch<InputCotangentKernel"),
        ("memory", r"misaligned address"),
    ),
    "copy that is not waited for": (
        ("deform_conv_fused_forward.cu", "      wait_async_copies();\n", ""),
        ("memory", r"element \d+ of y is not written"),
    ),
    "stage multiplied before it is complete": (
        ("deform_conv_fused_forward.cu", "wait_async_copies();\n      __syncthreads();", "wait_async_copies();"),
        ("threads", r"data race.*FusedForwardKernel"),
    ),
    "samples loaded before their corners are stored": (
        ("deform_conv_fused_forward.cu", "+ tap] = corners;\n      }\n      __syncthreads();",
         "+ tap] = corners;\n      }"),
        ("threads", r"data race.*FusedForwardKernel"),
    ),
    "pixel past the end": (
        ("deform_conv_fused_forward.cu", "i < call.sizes.pixels()", "i <= call.sizes.pixels()"),
        ("memory", r"heap-buffer-overflow.*FusedForwardKernel"),
    ),
    "feature past the end of a group": (
        ("deform_conv_fused_forward.cu", " || in_group + k >= call.group_features", ""),
        ("memory", r"heap-buffer-overflow.*FusedForwardKernel"),
    ),
    "chunk past the end": (
        ("deform_conv_fused_forward.cu", "return tap_ < num_taps();", "return true;"),
        ("memory", r"deform_conv_fused_forward\.cu:\d+:\d+: runtime error: index \d+ out of bounds for type 'Corners"),
    ),
    "list that starts too early": (  # only the fused kernels sort values of more than 4 bytes
        ("counting_sort.h", "row_ends[-1] = bin_start;", "row_ends[-1] = bin_start - (sizeof(Value) > 4);"),
        ("memory", r"heap-buffer-overflow.*SumLists"),
    ),
    "contributions summed into the stage that is multiplied": (
        ("deform_conv_fused_input.cu", "HalfStage(slice / 2, slice % 2, half)",
         "HalfStage(slice / 2 + 1, slice % 2, half)"),
        ("threads", r"data race.*FusedInputCotangentKernel"),
    ),
    "pixel of x past the end": (
        ("deform_conv_fused_input.cu", "const bool is_valid = i < call.pixels;",
         "const bool is_valid = i <= call.pixels;"),
        ("memory", r"heap-buffer-overflow.*FusedInputCotangentKernel"),
    ),
    "pixels of x read before they are stored": (
        ("deform_conv_fused_input.cu", "    }\n    __syncthreads();\n    const ChannelTile",
         "    }\n    const ChannelTile"),
        ("threads", r"data race.*FusedInputCotangentKernel"),
    ),
    "dot products read before they are stored": (
        ("deform_conv_fused_offset.cu", "    __syncthreads();\n    if (!kManySamples) store_cotangents(",
         "    if (!kManySamples) store_cotangents("),
        ("threads", r"data race.*FusedOffsetCotangentKernel"),
    ),
    "corners read before they are located": (
        ("deform_conv_fused_offset.cu", "__syncthreads();  // all threads have located", "// all threads have located"),
        ("threads", r"data race.*FusedOffsetCotangentKernel"),
    ),
    "corners stored while they are read": (
        ("deform_conv_fused_weight.cu", "__syncthreads();\n      find_corners(slice + 1);", "find_corners(slice + 1);"),
        ("threads", r"data race.*FusedWeightCotangentKernel"),
    ),
    "feature of the weight past the end of a group": (
        ("deform_conv_fused_weight.cu", " || feature >= block_tile.first_feature + block_tile.features", ""),
        ("memory", r"heap-buffer-overflow.*FusedWeightCotangentKernel"),
    ),
    "no barrier between blocks, forward": (
        ("deform_conv_fused_forward.cu", "    __syncthreads();\n  }\n}", "  }\n}"),
        ("threads", r"data race.*FusedForwardKernel"),
    ),
    "no barrier between blocks, input": (
        ("deform_conv_fused_input.cu", "    __syncthreads();\n  }\n}", "  }\n}"),
        ("threads", r"data race.*FusedInputCotangentKernel"),
    ),
    "no barrier between blocks, offset": (
        ("deform_conv_fused_offset.cu", "    __syncthreads();\n  }\n}", "  }\n}"),
        ("threads", r"data race.*FusedOffsetCotangentKernel"),
    ),
    "no barrier between blocks, weight": (
        ("deform_conv_fused_weight.cu", "    __syncthreads();\n  }\n}", "  }\n}"),
        ("threads", r"data race.*FusedWeightCotangentKernel"),
    ),
    "tap past the end of a level": (
        ("aggregation.cu", "min(first + int32_t(threadIdx.x % kQuad), level.taps - 1)",
         "first + int32_t(threadIdx.x % kQuad)"),
        ("memory", r"heap-buffer-overflow.*AggregateKernel"),
    ),
    "cotangents of a tap stored by several lanes": (
        ("aggregation.cu", "if (!is_valid || lane >= count) return;", "if (!is_valid) return;"),
        ("threads", r"data race.*TapCotangentsKernel"),
    ),
    "pixel of the value past the end": (
        ("aggregation_value.cu", "pixel < int64_t{level.height} * level.width",
         "pixel <= int64_t{level.height} * level.width"),
        ("memory", r"heap-buffer-overflow.*GatherKernel"),
    ),
    "column of an argmax outside the image": (
        ("roi_pool.cu", "columns[index + v] = largest[v].column;",
         "if (largest[v].column >= 0) columns[index + v] = largest[v].column;"),
        ("memory", r"element \d+ of the argmax is not written"),
    ),
    "columns of the argmax over their rows": (
        ("roi_pool.cu", "StoreArgmax{argmax, argmax + count}", "StoreArgmax{argmax, argmax + count / 2}"),
        ("threads", r"data race.*MaxPoolKernel"),
    ),
    "unwritten result": (
        ("roi_pool.cu", "AsVector<N>(pooled + work", "if (f > 0) AsVector<N>(pooled + work"),
        ("memory", r"element \d+ of pooled is not written"),
    ),
}  # fmt: skip


def with_mistake(mistake, folder):
    """The kernels' sources with a line replaced. Files that include a mutated header are copied beside it."""
    file, right, wrong = mistake
    source = (build.LIB / "cuda" / file).read_text()
    assert source.count(right) == 1, f"{file} has changed: it must have the line {right!r} once"
    (folder / file).write_text(source.replace(right, wrong))
    kernels = dict(build.KERNELS)
    for kernel, path in build.KERNELS.items():
        if path.name == file:
            kernels[kernel] = folder / file
        elif f'#include "{file}"' in path.read_text():
            kernels[kernel] = folder / path.name
            shutil.copy(path, kernels[kernel])
    return kernels


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_in_the_source(name, tmp_path):
    """Most mistakes are compiled only by `make thorough`, or on a GPU."""
    assert with_mistake(MISTAKES[name][0], tmp_path) != build.KERNELS


@pytest.mark.parametrize("name", build.mistakes(MISTAKES, []))
def test_mistakes_in_kernels_are_found(name, run, tmp_path):
    _, (sanitizer, complaint) = MISTAKES[name]
    status, output = run("launches.cc", sanitizer, kernels=with_mistake(MISTAKES[name][0], tmp_path))
    assert status != 0
    assert re.search(complaint, output, re.DOTALL), output


PRODUCTS = {"product_f16": 16, "product_bf16": 16, "product_tf32": 8}  # and their K dimensions
RIGHT = ["rotate", "dynamic", "shuffle", "warp", "atomic", "separate_blocks", "copy", *PRODUCTS]
WRONG = [
    ("memory", "dynamic_beyond", "use-after-poison"),
    ("memory", "static_beyond", "index 64 out of bounds"),
    ("memory", "misaligned", "misaligned address"),
    ("memory", "divergent_barrier", "thread 0 waits at toys.cu:.* for thread 5, which has ended"),
    ("memory", "two_barriers", "thread 0 waits at toys.cu:.* for thread 32, which waits at toys.cu:"),
    ("memory", "divergent_shuffle", "thread 0 waits at toys.cu:.* for thread 5, which has ended"),
    ("memory", "divergent_match", "thread 0 waits at toys.cu:.* for thread 5, which has ended"),
    ("memory", "no_blocks", "invalid configuration argument"),
    ("memory", "too_much_shared_memory", "invalid configuration argument"),
    ("memory", "shared_memory_without_opt_in", "invalid configuration argument"),
    ("threads", "rotate_without_first_barrier", "data race"),
    ("threads", "rotate_without_second_barrier", "data race"),
    ("threads", "warp_without_barrier", "data race"),
    ("threads", "overlapping_blocks", "data race"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_toys_are_clean(name, sanitizer, run):
    status, output = run("toys.cu", sanitizer, name)
    assert status == 0, output


def by_default(sanitizer):
    return [] if sanitizer == "memory" else [pytest.mark.thorough]


@pytest.mark.parametrize(
    "sanitizer, name, complaint", [pytest.param(*wrong, marks=by_default(wrong[0])) for wrong in WRONG]
)
def test_wrong_toys_are_found(sanitizer, name, complaint, run):
    status, output = run("toys.cu", sanitizer, name)
    assert status != 0
    assert re.search(complaint, output), output


def test_what_toys_compute(run):
    def values(name):
        status, output = run("toys.cu", "none", name)
        assert status == 0, output
        return [int(value) for value in output.split()]

    lanes = range(64)
    assert values("rotate")[:64] == [100 + (i + 1) % 64 for i in lanes]
    assert values("dynamic")[:64] == [63 - i for i in lanes]
    assert values("shuffle")[:64] == [8 if i % 32 < 16 else 7 for i in lanes]
    assert values("atomic")[:2] == [64, 64]
    unknown = -1
    assert values("unwritten")[:64] == [1 if i < 10 else unknown for i in lanes]
    assert values("excluded_lane")[:64] == [unknown if i % 32 < 16 else 0 for i in lanes]
    assert values("copy")[:64] == [0 if i % 2 else 7 for i in lanes]
    assert values("copy_without_wait")[:64] == [unknown] * 64
    for name, depth in PRODUCTS.items():
        row, k = np.ogrid[:16, :depth]
        a, b = row - 2 * k, (row**2 % 7 + k % 5)[:8]
        assert values(name) == (1 + a @ b.T).ravel().tolist()
