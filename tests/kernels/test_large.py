"""Operands of more than 2^32 elements: the last block of each launch writes the last elements of the results."""

import re

import pytest

from benchmarks.lowering import executed_ptx

from . import build

pytestmark = pytest.mark.platforms("cpu")


def run(kernels=executed_ptx.KERNELS):
    """The exit status and output of large.cc with the CUDA kernels."""
    if executed_ptx.missing():
        pytest.skip(executed_ptx.missing())
    program = executed_ptx.program(build.HERE / "large.cc", kernels=kernels)
    # The interpreter's records of all accesses would take memory.
    status, output = executed_ptx.run(program, only_last_block=1, checks_races=0)
    if status == 2:
        pytest.skip(output)
    return status, output


def test_last_places():
    assert run() == (0, "all last places are right\n")


WRONG_PLACE = "the last .* is .*, must be|out of bounds"


# An index, computed in int32: the file of lib/, its change, and the file of kernels that is compiled with a header.
MUTATIONS = {
    "pixel of a large image": (
        "deform_conv/cuda_sample_rounds.h",
        "pixel = ({~~int64_t{y.first}~>y.first~~} * {~~sizes.width~>int32_t(sizes.width)~~} + x.first)",
        "deform_conv/cuda",
    ),
    "query's result": ("aggregation/cuda.cu", "out + {~~~>int32_t(~~}row * sizes.channels + channel{~~~>)~~}"),
    "channels of a head": (
        "aggregation/cuda_value.cu",
        "d_out + {~~~>int32_t(~~}first_query.index(sizes) * sizes.channels{~~~>)~~} + channel",
    ),
}


@pytest.mark.parametrize("name", build.mutations(MUTATIONS, always=["pixel of a large image"]))
def test_an_index_of_32_bits_is_found(name, tmp_path):
    file, change, *kernel = MUTATIONS[name]
    folder = build.mutated(build.LIB, file, change, tmp_path)
    kernel = kernel[0] if kernel else file.removesuffix(".cu")
    status, output = run(executed_ptx.KERNELS | {kernel: folder / f"{kernel}.cu"})
    assert status < 0 or re.search(WRONG_PLACE, output), output
