"""Operands of more than 2^32 elements: the last block or task writes the last elements of the results."""

import os
import re
import shutil
import subprocess

import pytest

from benchmarks.readers import executed_ptx

from . import build

pytestmark = pytest.mark.platforms("cpu")

CPU = {name: build.CPU / f"{name}.cc" for name in ("deform_conv", "roi_pool")}
OPTIONS = "only_last_block=1,checks_races=0"  # of the interpreter: the records of all accesses would take memory


@pytest.fixture(params=["cpu", "cuda"])
def backend(request):
    return request.param


def run(backend, folder, file=None, right="", wrong=""):
    """The exit status and output of large.cc, with `right` replaced by `wrong` in a kernel's source if given."""
    if backend == "cuda" and executed_ptx.missing():
        pytest.skip(executed_ptx.missing())
    sources = CPU if backend == "cpu" else executed_ptx.KERNELS
    if backend == "cpu":
        shutil.copy(build.HERE / "last_task" / "device.h", folder)
        for path in CPU.values():
            shutil.copy(path, folder)
    if file is not None:
        source = sources[file].read_text()
        assert source.count(right) == 1, f"{file} has changed: it must have the line {right!r} once"
        (folder / sources[file].name).write_text(source.replace(right, wrong))
    if backend == "cpu":
        program = build.last_task_program("large.cc", {name: folder / path.name for name, path in CPU.items()})
    else:
        kernels = executed_ptx.KERNELS | ({file: folder / executed_ptx.KERNELS[file].name} if file else {})
        program = executed_ptx.program(build.HERE / "large.cc", kernels=kernels)
    environment = os.environ | {"PTX_OPTIONS": OPTIONS}
    result = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if result.returncode == 2:
        pytest.skip(result.stdout)
    return result.returncode, result.stdout


def test_last_places(backend, tmp_path):
    assert run(backend, tmp_path) == (0, "all last places are right\n")


# Backend, file, an index, and its mutation, which computes it in int32.
MUTATIONS = {
    "columns": ("cpu", "deform_conv", "(p * taps + k) * sizes.channels", "int32_t((p * taps + k) * sizes.channels)"),
    "pixel of x": ("cuda", "deform_conv", "x + pixel * sizes.channels +", "x + int32_t(pixel * sizes.channels) +"),
    "fused output": (
        "cuda", "deform_conv_fused_forward", "out + p * call.features", "out + int32_t(p * call.features)"),
    "corners of a tap": (
        "cuda", "aggregation", "first_byte + pixel * steps.right", "first_byte + int32_t(pixel * steps.right)"),
    "query's result": (
        "cuda", "aggregation", "out + row * sizes.channels + channel", "out + int32_t(row * sizes.channels + channel)"),
    "cotangents of taps": (
        "cuda", "aggregation", "d_out + row * sizes.channels", "d_out + int32_t(row * sizes.channels)"),
    "channels of a head": (
        "cuda", "aggregation_value", "first_query.index(sizes) * sizes.channels + channel",
        "int32_t(first_query.index(sizes) * sizes.channels) + channel"),
    "vector of d_y": (
        "cuda", "deform_conv_fused_input", "words[n % kLoads], features, buffer[i][0]);",
        "words[n % kLoads], features + int64_t(int32_t(buffer[i][0])) * kChunkSize<T>, 0);"),
}  # fmt: skip


@pytest.mark.parametrize("name", build.mutations(MUTATIONS, ["columns", "fused output", "corners of a tap"]))
def test_an_index_of_32_bits_is_found(name, tmp_path):
    backend, file, right, wrong = MUTATIONS[name]
    status, output = run(backend, tmp_path, file, right, wrong)
    assert status < 0 or re.search("the last .* is .*, must be|out of bounds", output), output
