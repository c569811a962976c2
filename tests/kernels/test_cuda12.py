"""The compiler of the wheels, tests/wheels/cuda12.py, also makes machine code for GPUs that its nvcc does not know."""

import subprocess

import pytest

from benchmarks.support import cuda_tools
from tests.wheels import cuda12, newer_architectures

from . import build

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.thorough]
SPILLS = """
__global__ void __launch_bounds__(1024) Kernel(double* x) {
  double values[64];
  for (int i = 0; i < 64; ++i) values[i] = x[i];
  __syncthreads();
  for (int i = 0; i < 64; ++i) x[i] = values[63 - i];
}
"""


@pytest.fixture(scope="module")
def nvcc():
    if reason := cuda12.missing() or cuda_tools.absent("cuobjdump"):
        pytest.skip(reason)
    return cuda12.variables()["CUDACXX"]


def compiled(nvcc, source, output, code, *options):
    command = [nvcc, f"--generate-code=arch=compute_80,code=[{code},compute_80]", *options, "-c", source, "-o", output]
    return subprocess.run(command, capture_output=True, text=True)


def test_code_for_newer_architectures(nvcc, tmp_path):
    names = [f"sm_{name}" for name in ("80", *newer_architectures.ARCHITECTURES)]
    options = "-std=c++17", f"-I{build.LIB}", f"-I{build.LIB / 'cuda'}", "-Xfatbin=-compress-all"
    result = compiled(nvcc, build.HERE / "toys.cu", tmp_path / "toys.o", ",".join(names), *options)
    assert result.returncode == 0, result.stderr
    listed = cuda_tools.read("cuobjdump", "--list-elf", "--list-ptx", tmp_path / "toys.o").split()
    assert [word.split(".")[-2:] for word in listed if word.endswith(("cubin", "ptx"))] == [
        ["sm_80", "cubin"],
        ["sm_80", "ptx"],
        *([name, "cubin"] for name in names[1:]),
    ]


@pytest.mark.parametrize("architecture", newer_architectures.ARCHITECTURES)
def test_options_of_ptxas_apply_to_them(architecture, nvcc, tmp_path):
    source = tmp_path / "spills.cu"
    source.write_text(SPILLS)
    strict = "-Xptxas=--warn-on-spills,--warning-as-error"
    result = compiled(nvcc, source, tmp_path / "spills.o", f"sm_{architecture}", strict)
    assert result.returncode and "Registers are spilled" in result.stderr
