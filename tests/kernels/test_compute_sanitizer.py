"""The kernels on a GPU, without and with NVIDIA's compute-sanitizer."""

import subprocess

import pytest

from benchmarks.lowering import executed_ptx
from benchmarks.support import cuda_tools

from . import build
from .mutations import MUTATIONS

pytestmark = pytest.mark.platforms("cuda")

CLEAN = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "synccheck": "ERROR SUMMARY: 0 errors",
    "initcheck": "ERROR SUMMARY: 0 errors",
}
# initcheck takes memory that was filled in advance to be written.
OPTIONS = {"initcheck": ["--leave-unwritten"]}

# Tool, mutation, and what the tool reports.
FOUND = [
    ("memcheck", "off by one in global memory", "SortBinsKernel"),
    ("racecheck", "missing barrier", "PartitionKernel"),
    ("initcheck", "entry that is not stored", "SortBinsKernel"),
    ("initcheck", "unwritten result", "on access by cudaMemcpy source"),
]


@pytest.fixture(autouse=True)
def nvcc(platform):
    if cuda_tools.find("nvcc") is None:
        pytest.skip("nvcc not found")


def run(*command):
    """The exit status and output of a command. The timeout ends kernels that deadlock."""
    seconds = 90
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
    return result.returncode, result.stdout


def check(tool, program):
    sanitizer = cuda_tools.find("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer not found")
    options = OPTIONS.get(tool, [])
    status, output = run(sanitizer, "--tool", tool, "--error-exitcode", "1", program, *options)
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer does not support this device")
    return status, output


def test_launches():
    assert run(build.device_program("launches.cc", executed_ptx.KERNELS)) == (0, "every launch is done\n")


@pytest.mark.parametrize("tool", CLEAN)
def test_kernels_are_clean(tool):
    status, output = check(tool, build.device_program("launches.cc", executed_ptx.KERNELS))
    assert status == 0, output
    assert "every launch is done" in output
    assert CLEAN[tool] in output


@pytest.mark.parametrize("tool, name, complaint", FOUND)
def test_mutations_are_found(tool, name, complaint, tmp_path):
    status, output = check(tool, build.device_program("launches.cc", MUTATIONS[name].kernels(tmp_path)))
    assert status != 0
    assert complaint in output
