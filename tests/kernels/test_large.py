"""Operands of more than 2^32 elements: the last block or task writes the last elements of the results."""

import re
import shutil
import subprocess

import pytest

from . import build

pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture(params=["cpu", "cuda"])
def backend(request):
    return request.param


def run(backend, folder, file=None, right="", wrong=""):
    """The exit status and output of large.cc, with `right` replaced by `wrong` in a kernel's source if given."""
    kernels = dict(build.KERNELS)
    if backend == "cpu":
        folder = shutil.copytree(build.CPU, folder / "cpu")
        kernels = {path.stem: path for path in (folder / "kernels").glob("*.cc")}
    if file is not None:
        source = kernels[file].read_text()
        assert source.count(right) == 1, f"{file} has changed: it must have the line {right!r} once"
        if backend == "cuda":
            kernels[file] = folder / kernels[file].name
        kernels[file].write_text(source.replace(right, wrong))
    if backend == "cpu":
        program = build.last_task_program("large.cc", folder)
    else:
        program = build.program("large.cc", "none", kernels)
    result = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode == 2:
        pytest.skip(result.stdout)
    return result.returncode, result.stdout


def test_last_places(backend, tmp_path):
    assert run(backend, tmp_path) == (0, "all last places are right\n")


# Backend, file, and an index that the mutation computes in int32, which is too narrow.
MISTAKES = {
    "columns": ("cpu", "deform_conv", "(p * taps + k) * sizes.channels", "int32_t((p * taps + k) * sizes.channels)"),
    "pixel of x": (
        "cuda",
        "deform_conv",
        "x + pixel * sizes.channels + sample.first_channel",
        "x + int32_t(pixel * sizes.channels) + sample.first_channel",
    ),
    "fused output": (
        "cuda",
        "deform_conv_fused_forward",
        "out + p * call.features",
        "out + int32_t(p * call.features)",
    ),
    "corners of a tap": (
        "cuda",
        "aggregation",
        "first_byte + pixel * steps.right",
        "first_byte + int32_t(pixel * steps.right)",
    ),
    "query's result": (
        "cuda",
        "aggregation",
        "out + row * sizes.channels + channel",
        "out + int32_t(row * sizes.channels + channel)",
    ),
    "cotangents of taps": (
        "cuda",
        "aggregation",
        "d_out + row * sizes.channels",
        "d_out + int32_t(row * sizes.channels)",
    ),
    "channels of a head": (
        "cuda",
        "aggregation_value",
        "first_query.index(sizes) * sizes.channels + channel",
        "int32_t(first_query.index(sizes) * sizes.channels) + channel",
    ),
    "vector of d_y": (
        "cuda",
        "deform_conv_fused_input",
        "words[n % kLoads], features, buffer[i][0]);",
        "words[n % kLoads], features + int64_t(int32_t(buffer[i][0])) * kChunkSize<T>, 0);",
    ),
}


@pytest.mark.parametrize("name", build.mistakes(MISTAKES, ["columns", "fused output", "corners of a tap"]))
def test_an_index_of_32_bits_is_found(name, tmp_path):
    backend, file, right, wrong = MISTAKES[name]
    status, output = run(backend, tmp_path, file, right, wrong)
    assert status < 0 or re.search("the last .* is .*, must be", output), output
