import pathlib
import shutil
import sys

import pytest

from benchmarks.lowering import executed_ptx
from benchmarks.lowering.substituted_kernels import substituted
from tests.wheels import cuda12

from . import build

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def compiler():
    if sys.platform != "linux" or shutil.which(build.COMPILER) is None:
        pytest.skip(f"these tests need Linux and {build.COMPILER}")


def thorough(*parameters):
    return [pytest.param(parameter, marks=pytest.mark.thorough) for parameter in parameters]


# One SM takes rounds of more samples, and one block iterates over several of them. Another seed is another order of the
# blocks and warps.
SMALL_GPU = {"sms": 1, "max_grid_blocks": 1, "seed": 2}


@pytest.fixture(scope="module", params=["sm_80", *thorough("sm_90", "cuda12", "small_gpu")])
def interpreter(request):
    """The interpreter of the CUDA handlers, whose kernels are the PTX for an architecture.

    cuda12 is that for sm_80 by CUDA 12, which compiles the wheels.
    """
    if reason := executed_ptx.missing() or (cuda12.missing() if request.param == "cuda12" else None):
        pytest.skip(reason)
    nvcc = cuda12.variables()["CUDACXX"] if request.param == "cuda12" else None
    found = executed_ptx.interpreter(90 if request.param == "sm_90" else executed_ptx.ARCHITECTURE, nvcc)
    before = found.set(**(SMALL_GPU if request.param == "small_gpu" else {}))
    yield found
    found.set(**before)


@pytest.fixture(scope="module")
def executed_kernels(interpreter):
    """Lowers all of jax_dcn on the CPU as for CUDA, to handlers that run the kernels on the CPU."""
    with substituted(interpreter.handlers):
        yield


def pytest_collection_modifyitems(items):
    """Deselects tests of the reference, which run no kernels, among those that are imported from other folders.

    float16 has the instructions of bfloat16, and the golden files in float32 those of the other tests, so they run in
    `make thorough` only.
    """
    imported = [item for item in items if item.path.parent == HERE and hasattr(item, "callspec")]
    without_kernels = {item for item in imported if item.callspec.params.get("backend") == "reference"}
    items[:] = [item for item in items if item not in without_kernels]
    for item in imported:
        dtype = item.callspec.params.get("dtype", item.callspec.params.get("types", (None,))[0])
        if dtype == "float16" or (item.originalname == "test_golden_files" and dtype == "float32"):
            item.add_marker(pytest.mark.thorough)
