"""Operands of more than 2^32 elements: the last block or task writes the last elements of the results."""

import re
import shutil

import pytest

from benchmarks.lowering import executed_ptx

from . import build
from .mutations import Mutation

pytestmark = pytest.mark.platforms("cpu")


def run(program):
    # The interpreter's records of all accesses would take memory.
    status, output = executed_ptx.run(program, only_last_block=1, checks_races=0)
    if status == 2:
        pytest.skip(output)
    return status, output


def on_cuda(kernels=executed_ptx.KERNELS):
    """The exit status and output of large.cc with the CUDA kernels."""
    if executed_ptx.missing():
        pytest.skip(executed_ptx.missing())
    return run(executed_ptx.program(build.HERE / "large.cc", kernels=kernels))


def on_cpu(folder, right="", wrong=""):
    """The same with the CPU's kernels, `right` in deform_conv.cc replaced by `wrong`."""
    folder = shutil.copytree(build.CPU, folder / "cpu")
    path = folder / "kernels" / "deform_conv.cc"
    source = path.read_text()
    assert not right or source.count(right) == 1, f"deform_conv.cc has changed: it must have the line {right!r} once"
    path.write_text(source.replace(right, wrong) if right else source)
    return run(build.last_task_program("large.cc", folder))


def test_last_places_on_cuda():
    assert on_cuda() == (0, "all last places are right\n")


def test_last_places_on_cpu(tmp_path):
    assert on_cpu(tmp_path) == (0, "all last places are right\n")


WRONG_PLACE = "the last .* is .*, must be|out of bounds"


def narrow(file, index, wrong):
    return Mutation(file, index, wrong, WRONG_PLACE)


# An index, computed in int32.
MUTATIONS = {
    "pixel of x": narrow("deform_conv.cu", "x + pixel * sizes.channels +", "x + int32_t(pixel * sizes.channels) +"),
    "fused output": narrow(
        "deform_conv_fused_forward.cu", "out + p * call.features", "out + int32_t(p * call.features)"),
    "corners of a tap": narrow(
        "aggregation.cu", "first_byte + pixel * steps.right", "first_byte + int32_t(pixel * steps.right)"),
    "query's result": narrow(
        "aggregation.cu", "out + row * sizes.channels + channel", "out + int32_t(row * sizes.channels + channel)"),
    "cotangents of taps": narrow(
        "aggregation.cu", "d_out + row * sizes.channels", "d_out + int32_t(row * sizes.channels)"),
    "channels of a head": narrow(
        "aggregation_value.cu", "first_query.index(sizes) * sizes.channels + channel",
        "int32_t(first_query.index(sizes) * sizes.channels) + channel"),
    "vector of d_y": narrow(
        "deform_conv_fused_input.cu", "words[n % kLoads], features, buffer[i][0]);",
        "words[n % kLoads], features + int64_t(int32_t(buffer[i][0])) * kChunkSize<T>, 0);"),
}  # fmt: skip


@pytest.mark.parametrize("name", build.mutations(MUTATIONS, ["corners of a tap"]))
def test_an_index_of_32_bits_is_found_on_cuda(name, tmp_path):
    status, output = on_cuda(MUTATIONS[name].kernels(tmp_path / "mutated"))
    assert status < 0 or re.search(MUTATIONS[name].report, output), output


def test_an_index_of_32_bits_is_found_on_cpu(tmp_path):
    columns = "(p * taps + k) * sizes.channels"
    status, output = on_cpu(tmp_path, columns, f"int32_t({columns})")
    assert status < 0 or re.search(WRONG_PLACE, output), output
