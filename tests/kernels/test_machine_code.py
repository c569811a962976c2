"""Properties of the compiled CUDA kernels, read from the SASS of the built module: registers, spills, vector loads."""

import re

import pytest

from benchmarks.lowering import executed_ptx

from . import machine_code
from .machine_code import LOADS, SPILLS, STORES

pytestmark = [
    pytest.mark.skipif(machine_code.missing() is not None, reason=str(machine_code.missing())),
    pytest.mark.platforms("cpu"),
    pytest.mark.slow,
]

ARCHITECTURES = machine_code.architectures() if machine_code.missing() is None else ()
MAX_REGISTERS = 128  # allows two resident blocks of 256 threads per SM; float64 kernels are exempt


# Each architecture takes 15 to 20 s to read.
@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.thorough) for name in ARCHITECTURES])
def kernels(request):
    found = machine_code.kernels(request.param)
    assert {kernel.source for kernel in found} == {path.name for path in executed_ptx.KERNELS.values()}
    for kernel in found:
        assert kernel.counts(LOADS) or kernel.name.startswith("ZeroKernel"), kernel.name
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


def test_nothing_is_spilled(kernels):
    assert {kernel.name for kernel in kernels if kernel.local_bytes or kernel.counts(SPILLS)} == set()


def test_registers_leave_room_for_two_blocks(kernels):
    over_limit = {kernel.name for kernel in kernels if kernel.registers > MAX_REGISTERS}
    sixteen_taps = "Shape<2, 2>"  # of bicubic samples
    assert {name for name in over_limit if "double" not in name and sixteen_taps not in name} == set()


def has_split_stores(kernel):
    """Whether the compiler splits the vector stores, one per pixel at the kernel's end, on some architectures."""
    return kernel.name.startswith("XCotangentKernel")


def stores_no_channels(kernel):
    """Whether the results are those of sampling locations, offsets or weights."""
    return "Offset" in kernel.name or kernel.name.startswith("TapCotangentsKernel")


def test_vectors_of_channels_are_loaded_at_once(kernels):
    vectors = [kernel for kernel in kernels if re.search(r"<[a-z]\w*, [248]>", kernel.name)]
    assert len(vectors) >= 10
    for kernel in vectors:
        assert kernel.counts(LOADS)[16], kernel.name
        if not stores_no_channels(kernel) and not has_split_stores(kernel):
            assert kernel.counts(STORES)[16], kernel.name


def test_instructions_are_told_apart():
    code = """
        /*0110*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;  /* 0x1 */
        /*0120*/                   LDG.E.U16 R8, desc[UR4][R2.64] ;
        /*0130*/              @UP1 LDG.E R9, desc[UR4][R2.64] ;
        /*0140*/                   STL.64 [R1], R8 ;
    """
    kernel = machine_code.Kernel("a.cu", "k", 32, 0, machine_code.Counter(machine_code.opcodes(code)))
    assert kernel.counts(LOADS) == {16: 1, 4: 1, 2: 1}
    assert kernel.counts(SPILLS) == {8: 1}
    assert kernel.counts(STORES) == {}
