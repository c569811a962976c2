"""The compiled PTX of all kernels runs without a fault, and computes what their source does in the emulation.

The other tests check that mistakes would be found: in small kernels (toys.cu), and in the package's kernels, above all
in their inline assembly, which the emulation does not run.
"""

import json
import os
import re
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.readers import executed_ptx

from . import build
from .test_sanitizers import MISTAKES as SOURCE_MISTAKES
from .test_sanitizers import PRODUCTS, with_mistake

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(executed_ptx.missing() is not None, reason=str(executed_ptx.missing())),
]

TYPES = (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)  # in the order of DType in lib/dtype.h
RESOLUTION = (2**-10, 2**-7, 2**-10, 2**-40)  # of what is multiplied: the tensor cores take float32 as tf32


def run(program, *arguments, **options):
    environment = os.environ | {"PTX_OPTIONS": ",".join(f"{name}={value}" for name, value in options.items())}
    command = [program, *arguments]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    return result.returncode, result.stdout


def launches(architecture=executed_ptx.ARCHITECTURE, **mistake):
    return executed_ptx.program(build.HERE / "launches.cc", architecture, **mistake)


def read_results(path):
    """Name, type and values of each result that launches.cc has written."""
    data, start = path.read_bytes(), 0
    while start < len(data):
        end = data.index(b"\n", start)
        name, dtype, count = data[start:end].rsplit(maxsplit=2)
        start = end + 1 + int(count)
        values = np.frombuffer(data[end + 1 : start], TYPES[int(dtype)]).astype(np.float64)
        yield name.decode(), int(dtype), values


def differences(path, expected):
    """The results that differ from the expected ones by more than the inexactness of their type allows."""
    found = []
    for number, (result, reference) in enumerate(zip(read_results(path), read_results(expected), strict=True)):
        name, dtype, values = result
        assert (name, dtype, values.size) == (*reference[:2], reference[2].size)
        same = (values == reference[2]) | (np.isnan(values) & np.isnan(reference[2]))
        cancelled = 2**-7  # differences of equal numbers are nearly 0
        largest = np.abs(reference[2][np.isfinite(reference[2])]).max(initial=cancelled)
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0, np.abs(values - reference[2])).max(initial=0)
        if not error <= 4 * RESOLUTION[dtype] * largest:
            found.append(f"result {number}, {name}, differs by {error}")
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The results of launches.cc in the emulation."""
    path = tmp_path_factory.mktemp("results") / "emulated"
    sanitizer = "memory" if build.has("memory") else "none"  # the program of test_sanitizers.py
    subprocess.run([build.program("launches.cc", sanitizer, build.KERNELS), path], check=True, capture_output=True)
    return path


# The package's machine code is compiled from the PTX for compute_80, unless a user builds it for other architectures.
@pytest.mark.parametrize("architecture", [80, pytest.param(90, marks=pytest.mark.thorough)])
def test_kernels_are_clean_and_right(architecture, expected, tmp_path):
    assert run(launches(architecture), tmp_path / "results", seed=1) == (0, "every launch is done\n")
    assert differences(tmp_path / "results", expected) == []


SMALL_GPU = {
    "max_shared_bytes": 99 << 10
}  # as on sm_86, sm_89 and sm_120: too little for wide tiles and for two blocks


def test_every_kernel_is_launched():
    unused = []
    for options in ({}, SMALL_GPU):
        status, output = run(launches(), lists_unused=1, max_grid_blocks=1, seed=2, **options)
        first, *names = output.splitlines()
        assert (status, first) == (0, "every launch is done")
        unused.append(set(names))
    assert unused[0] and unused[0].isdisjoint(unused[1])


FORWARD, INPUT, OFFSET, WEIGHT = (f"deform_conv_fused_{name}" for name in ("forward", "input", "offset", "weight"))
VALUES = "values"  # the results differ

# File, line and replacement; the kernels that are compiled with it; what is reported. One kernel is enough for a
# mistake in matrix.h and gemm.h: they have no host functions, which the linker would share with the other kernels.
MISTAKES = {
    "operands of the packing cvt swapped, bfloat16": (
        ("matrix.h", 'bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0])',
         'bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[0]), "f"(values[1])'), [FORWARD], VALUES),
    "operands of the packing cvt swapped, float16": (
        ("matrix.h", '.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0])',
         '.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[0]), "f"(values[1])'), [WEIGHT], VALUES),
    "no wait for copies": (
        ("matrix.h", '{ asm volatile("cp.async.wait_all;" ::: "memory"); }', "{}"), [FORWARD], "not waited for"),
    "copies committed instead of waited for": (
        ("matrix.h", "cp.async.wait_all;", "cp.async.commit_group;"), [OFFSET], "not waited for"),
    "wait for all copies but the last": (
        ("matrix.h", "cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 1;"), [INPUT], "not waited for"),
    "matrices transposed": (
        ("matrix.h", "m8n8.x4.shared.b16", "m8n8.x4.trans.shared.b16"), [INPUT], VALUES),
    "matrices not transposed": (
        ("matrix.h", "m8n8.x4.trans.shared.b16", "m8n8.x4.shared.b16"), [WEIGHT], VALUES),
    "words of a fragment swapped": (
        ("matrix.h", '"r"(a[0]), "r"(a[1]), "r"(a[2])', '"r"(a[0]), "r"(a[2]), "r"(a[1])'), [FORWARD], VALUES),
    "bfloat16 multiplied as float16": (
        ("matrix.h", "m16n8k16.row.col.f32.bf16.bf16.f32", "m16n8k16.row.col.f32.f16.f16.f32"), [FORWARD], VALUES),
    "an input of mma overwritten, which the constraint excludes": (
        ("matrix.h", "{%8, %9}, {%0, %1, %2, %3};", "{%8, %9}, {%0, %1, %2, %3}; mov.b32 %4, 0;"), [OFFSET], VALUES),
    "zeros copied in place of the data": (
        ("matrix.h", "zeros ? 0 : 16", "zeros ? 16 : 0"), [FORWARD], "out of bounds"),
    "a load that ignores its predicate": (
        ("matrix.h", "@valid ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];",
         "ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"), [FORWARD], "out of bounds"),
    "pixels moved by 8 bytes": (
        ("gather.h", "address[0] = static_cast<const char*>(x) +", "address[0] = static_cast<const char*>(x) + 8 +"),
        [FORWARD], "is misaligned"),
    "targets of copies moved by 8 bytes": (
        ("matrix.h", "(AddressInShared(shared)), ", "(AddressInShared(shared) + 8), "), [WEIGHT], "is misaligned"),
    "no barrier after a stage": (
        ("deform_conv_fused_forward.cu", "wait_async_copies();\n      __syncthreads();", "wait_async_copies();"),
        [FORWARD], "was not written"),
    "no barrier of the warp before ldmatrix": (
        ("gemm.h", "    __syncwarp();\n#pragma unroll", "#pragma unroll"), [INPUT], "needs a warp that has converged"),
    "products by some lanes": (
        ("gemm.h", "mma<T>(accumulators[i][j], a[i]", "if (lane() < 31) mma<T>(accumulators[i][j], a[i]"), [INPUT],
        "waits for lanes 0x80000000 of its warp"),
    "an instruction that the interpreter does not have": (
        ("matrix.h", "cvt.rna.tf32.f32", "cvt.rn.tf32.f32"), [FORWARD], "the interpreter has no cvt.rn.tf32.f32"),
    "carve-out for fewer resident blocks": (
        ("deform_conv_fused_forward.cu", "kSharedBytes, kResidentBlocks}, call,", "kSharedBytes, 1}, call,"), [FORWARD],
        "has a carve-out of 65536 bytes, but its 3 resident blocks need 200704"),
    "dot products of another tap": (
        ("aggregation.cu", "is_upper = threadIdx.x & 2", "is_upper = threadIdx.x & 1"), ["aggregation"], VALUES),
    "corners by the far flag of the other axis": (
        ("aggregation.cu", "flags & kIsFarRight ? 0", "flags & kIsFarDown ? 0"), ["aggregation"],
        "out of bounds"),
    "left pixels with the weights of the right ones": (
        ("aggregation_value.cu", "index < cells.middle ? sample.x", "index > cells.middle ? sample.x"),
        ["aggregation_value"], VALUES),
    "row and column of an argmax swapped": (
        ("roi_pool.cu", "i = rows[index + v], j = columns[index + v]", "i = columns[index + v], j = rows[index + v]"),
        ["roi_pool"], VALUES),
    "a maximum of other weights": (
        ("roi_pool.cu", "weight = point_y.weight(k / 2) * point_x.weight(k % 2)",
         "weight = point_y.weight(k / 2) * point_x.weight(k / 2)"),
        ["roi_pool"], VALUES),
    "a result read as constant": (
        ("deform_conv.cu", "      AsVector<N>(out + c) = vector;\n    }",
         "      AsVector<N>(out + c) = vector; if (__ldg((const short*)columns) == 77) return;\n    }"),
        ["deform_conv"], "through ld.global.nc"),
}  # fmt: skip
ALWAYS = ["no wait for copies", "matrices not transposed"]


def report_of(mistaken, recompiled, expected, folder):
    """What is reported about the kernels, of which those in the folder `mistaken` are compiled from there."""
    status, output = run(launches(changed=mistaken, recompiled=recompiled), folder / "results")
    return output if status else f"{VALUES} {differences(folder / 'results', expected)}"


@pytest.mark.parametrize("name", build.mistakes(MISTAKES, ALWAYS))
def test_mistakes_in_kernels_are_found(name, expected, tmp_path):
    mistake, recompiled, report = MISTAKES[name]
    folder = tmp_path / "mistaken"
    folder.mkdir()
    with_mistake(mistake, folder)
    found = report_of(folder, recompiled, expected, tmp_path)
    assert re.search(report, found), found
    assert found != f"{VALUES} []"


@pytest.mark.parametrize("name", build.mistakes(SOURCE_MISTAKES, []))
def test_mistakes_in_the_source_are_found(name, expected, tmp_path):
    """Those of the sanitizers' test, each with some report."""
    folder = tmp_path / "mistaken"
    folder.mkdir()
    kernels = with_mistake(SOURCE_MISTAKES[name][0], folder)
    recompiled = [kernel for kernel, path in kernels.items() if path.parent == folder]
    output = report_of(folder, recompiled, expected, tmp_path)
    for options in ({"max_grid_blocks": 1}, {"seed": 3}):
        if output == f"{VALUES} []":
            status, output = run(launches(changed=folder, recompiled=recompiled), **options)
            output = output if status else f"{VALUES} []"
    assert output != f"{VALUES} []"


RIGHT = ["rotate", "dynamic", "shuffle", "warp", "atomic", "separate_blocks", "copy", *PRODUCTS]
WRONG = {
    "unwritten": "reads memory that was not written",
    "dynamic_beyond": "out of bounds of shared memory",
    "static_beyond": "out of bounds of shared memory",
    "no_carve_out": "was launched without a carve-out",
    "misaligned": "is misaligned",
    "sum_read_too_early": "is a race: it reads what another thread writes",
    "divergent_barrier": r"waits for lanes 0x00000020 of its warp, .* have ended",
    "divergent_shuffle": r"waits for lanes 0x00000020 of its warp, .* have ended",
    "divergent_match": r"waits for lanes 0x00000020 of its warp, .* have ended",
    "excluded_lane": "shuffles from a lane that does not take part",
    "rotate_without_first_barrier": "is a race: it .* what another thread",
    "rotate_without_second_barrier": "is a race: it .* what another thread",
    "warp_without_barrier": "is a race: it reads what another thread writes",
    "overlapping_blocks": "is a race: it writes what another block writes",
    "copy_without_wait": "not waited for",
    "no_blocks": "invalid configuration argument",
    "too_much_shared_memory": "invalid configuration argument",
    "shared_memory_without_opt_in": "invalid configuration argument",
}


def toy(name, **options):
    return run(executed_ptx.program(build.HERE / "toys.cu", kernels=()), name, **options)


@pytest.mark.parametrize("name", RIGHT)
def test_right_toys_are_clean(name):
    status, output = toy(name)
    assert status == 0, output


@pytest.mark.parametrize("name", WRONG)
def test_wrong_toys_are_found(name):
    status, output = toy(name)
    assert status != 0
    assert re.search(WRONG[name], output), output


def test_what_toys_compute():
    def values(name):
        return [int(value) for value in toy(name)[1].split()]

    lanes = range(64)
    assert values("rotate")[:64] == [100 + (i + 1) % 64 for i in lanes]
    assert values("shuffle")[:64] == [8 if i % 32 < 16 else 7 for i in lanes]
    assert values("atomic")[:2] == [64, 64]
    assert values("copy")[:64] == [0 if i % 2 else 7 for i in lanes]
    for name, depth in PRODUCTS.items():
        row, k = np.ogrid[:16, :depth]
        a, b = row - 2 * k, (row**2 % 7 + k % 5)[:8]
        assert values(name) == (1 + a @ b.T).ravel().tolist()


def counted(name):
    status, output = toy(name, counts=1)
    assert status == 0
    (record,) = json.loads(output[output.index("[{") :])
    return record["counters"], {(line, opcode): times for _, line, _, opcode, times, _ in record["lines"]}


def test_what_is_counted():
    counters, _ = counted("conflict")
    # A load and a store of 8 words in one bank; a load of 8 sectors in 2 lines, and a store of one sector.
    assert (counters["shared_wavefronts"], counters["bank_conflicts"]) == (16, 14)
    assert (counters["l1_wavefronts"], counters["sectors"], counters["l2_bytes"]) == (2 + 1, 8 + 1, 32 * 9)

    counters, _ = counted("copy")
    # Each of 64 lanes writes 16 bytes, 128 at a time; every other one reads the same 16 bytes.
    assert (counters["async_wavefronts"], counters["mma"]) == (8, {})
    # Those who copy read one sector in each group of 8 lanes; 64 words are written in 8 sectors.
    assert counters["sectors"] == 8 + 8

    counters, executions = counted("rotate")
    assert counters["barriers"] == 2 * 2 * 2  # of two warps, in two rounds
    assert counters["divergent_branches"] == 0
    assert counters["by_class"]["barrier"] == counters["barriers"]
    assert sum(executions.values()) <= counters["warp_instructions"] == sum(counters["by_class"].values())

    counters, _ = counted("diverge")
    assert counters["divergent_branches"] == 2  # one of each warp

    counters, _ = counted("product_bf16")
    assert (counters["mma"], counters["by_class"]["ldmatrix"]) == ({"bf16": 1}, 2)
