"""Properties of the compiled CUDA kernels, read from the SASS of the built module: registers, spills, vector loads."""

import functools
import json
import re

import pytest

from benchmarks.counting import estimates, machine_code
from benchmarks.counting.devices import DEVICES, RESERVED_SHARED, WARP, occupancy
from benchmarks.counting.machine_code import WARPS
from benchmarks.reports.report import RESULTS
from jax_dcn._primitive import extension

from . import build

pytestmark = [
    pytest.mark.skipif(machine_code.missing() is not None, reason=str(machine_code.missing())),
    pytest.mark.platforms("cpu"),
]

read_kernels = functools.cache(machine_code.kernels)
ARCHITECTURES = machine_code.architectures() if machine_code.missing() is None else ()
BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8}
MAX_REGISTERS = 128  # allows two resident blocks of 256 threads per SM; float64 kernels are exempt


# Each architecture takes 15 to 20 s to read.
READ = [pytest.param(name, marks=pytest.mark.thorough) for name in ARCHITECTURES]


@pytest.fixture(scope="module", params=READ)
def kernels(request):
    found = read_kernels(request.param)
    assert {kernel.source for kernel in found} == {path.name for path in (build.LIB / "cuda").glob("*.cu")}
    return found


@pytest.fixture(scope="module")
def embedded():
    code, ptx = machine_code.embedded()
    if len(code) == 1:
        pytest.skip(f"the module was built for sm_{min(code)} only")
    return code, ptx


# Jetson's GPUs do not run machine code of the others: CUDA C++ programming guide, "Binary Compatibility".
JETSON = (87, 110)


@pytest.mark.parametrize("target", [80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
def test_every_gpu_has_machine_code_or_ptx(target, embedded):
    code, ptx = embedded
    runs_code = target not in JETSON and any(c // 10 == target // 10 and c <= target for c in code)
    assert runs_code or any(p <= target for p in ptx)
    assert runs_code or target in JETSON  # the others do not wait for the driver's compiler


@pytest.mark.parametrize("architecture", READ)
def test_results_are_of_this_machine_code(architecture):
    """After a change to the instructions of a CUDA kernel, `python -m benchmarks.machine_code` must run again."""
    results = json.loads(estimates.newest(RESULTS).read_text())
    if results["compiler"] != extension.modules["cuda"].compiler:
        pytest.skip(f"the results are from {results['compiler']}")
    assert results["machine code"][architecture] == machine_code.digest(read_kernels(architecture))


def test_every_kernel_is_read(kernels):
    for kernel in kernels:
        assert kernel.instructions["EXIT"] >= 1, kernel.name
        assert kernel.accesses("global loads") or kernel.name.startswith("ZeroKernel"), kernel.name


def test_nothing_is_spilled(kernels):
    spilled = {k.name: k for k in kernels if k.stack or k.local or k.accesses("local accesses")}
    assert not spilled


def fused(kernels):
    """The fused kernels, which multiply on the tensor cores."""
    return [kernel for kernel in kernels if kernel.name.startswith("Fused")]


def test_registers_of_plain_kernels_leave_room_for_two_blocks(kernels):
    over_limit = {k.name: k.registers for k in kernels if k not in fused(kernels) and k.registers > MAX_REGISTERS}
    sixteen_taps = "Shape<2, 2>"  # of bicubic samples
    assert {name for name in over_limit if "double" not in name and sixteen_taps not in name} == set()


MIN_WARPS = 8  # two for each scheduler of an SM


@pytest.mark.thorough
@pytest.mark.parametrize("sm", DEVICES)
def test_an_sm_has_enough_warps_of_every_fused_kernel(sm):
    """One of the kernels of each tile has; they differ in warps. Not every SM has room for the widest tile."""
    number = int(sm.removeprefix("sm_"))
    runs = [name for name in ARCHITECTURES if number // 10 * 10 <= int(name.removeprefix("sm_")) <= number]
    if not runs:
        pytest.skip(f"jax_dcn was built without machine code for {sm}")
    most = {}
    for kernel in fused(read_kernels(runs[-1])):
        name, dtype, columns, warps, *variant = re.findall(r"\w+", kernel.name)
        blocks = [b for b in extension.modules["cuda"].fused_blocks[name] if b[:2] == (int(columns), int(warps))]
        *_, (_, block_warps, shared_bytes) = blocks if variant != ["1"] else blocks[:1]  # more samples take more memory
        assert shared_bytes <= DEVICES["sm_80"].shared_bytes - RESERVED_SHARED
        tile = name, dtype, int(columns), *variant
        found = occupancy(DEVICES[sm], kernel.registers, kernel.shared + shared_bytes, block_warps * WARP)
        most[tile] = max(most.get(tile, 0), found.warps)
    too_wide = [tile for tile in most if tile[2] == 256 and DEVICES[sm].shared_bytes < 132 << 10]
    assert {name for name, *_ in most} == set(extension.modules["cuda"].fused_blocks)
    assert {tile: n for tile, n in most.items() if n < MIN_WARPS} == dict.fromkeys(too_wide, 0)


def test_fused_kernels_multiply_on_tensor_cores(kernels):
    of_type = {"half": "HMMA.16816.F32", "bfloat16": "HMMA.16816.F32.BF16", "float": "HMMA.1688.F32.TF32"}
    assert {kernel.name.partition("<")[0] for kernel in fused(kernels)} == set(extension.modules["cuda"].fused_blocks)
    for kernel in fused(kernels):
        assert list(kernel.accesses("matrix instructions")) == [of_type[re.search(r"<(\w+)", kernel.name)[1]]]
        assert all(".128" in opcode for opcode in kernel.accesses("asynchronous copies"))
        assert kernel.accesses("asynchronous copies") and 16 in kernel.widths("global loads")


def has_split_stores(kernel):
    """Whether the compiler splits the vector stores, one per pixel at the kernel's end, on some architectures."""
    return kernel.source == "roi_pool.cu" and kernel.name.startswith("InputCotangentKernel")


def stores_no_channels(kernel):
    """Whether the results are those of sampling locations, offsets or weights."""
    return "Offset" in kernel.name or kernel.name.startswith("TapCotangentsKernel")


def test_vectors_of_channels_are_loaded_at_once(kernels):
    vectors = [(kernel, found) for kernel in kernels if (found := re.search(r"<([a-z]\w*), ([248])>", kernel.name))]
    assert len(vectors) >= 10
    for kernel, found in vectors:
        loaded = int(found[2]) * BYTES[found[1]]
        assert loaded in kernel.widths("global loads"), kernel.name
        if not stores_no_channels(kernel) and not has_split_stores(kernel):
            assert 16 in kernel.widths("global stores"), kernel.name


def test_instructions_are_told_apart():
    code = """
        /*0110*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;  /* 0x1 */
        /*0120*/                   LDG.E.U16 R8, desc[UR4][R2.64] ;
        /*0130*/              @UP1 LDG.E R9, desc[UR4][R2.64] ;
        /*0140*/                   STL.64 [R1], R8 ;
        /*0150*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0160*/                   LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64] ;
    """
    kernel = machine_code.Kernel("a.cu", "k", 32, 0, 0, 0, machine_code.Counter(machine_code.opcodes(code)))
    assert kernel.widths("global loads") == {16: 1, 4: 1, 2: 1}
    assert list(kernel.accesses("local accesses")) == ["STL.64"]
    assert list(kernel.accesses("matrix instructions")) == ["HMMA.16816.F32"]
    assert list(kernel.accesses("asynchronous copies")) == ["LDGSTS.E.BYPASS.128"]
    assert kernel.resident_warps == WARPS
    assert kernel._replace(registers=65).resident_warps == 28
    digest = machine_code.digest([kernel])
    assert machine_code.digest([kernel._replace(name="renamed", source="b.cu")]) == digest
    assert machine_code.digest([kernel._replace(registers=33)]) != digest
    assert (
        machine_code.digest([kernel._replace(instructions=kernel.instructions + machine_code.Counter(["NOP"]))])
        != digest
    )
