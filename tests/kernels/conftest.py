import pathlib
import shutil
import sys

import pytest

from benchmarks.lowering import executed_ptx
from benchmarks.lowering.substituted_kernels import substituted

from . import build, emulation

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def compiler():
    if sys.platform != "linux" or shutil.which(build.COMPILER) is None:
        pytest.skip(f"kernels are emulated on Linux, with {build.COMPILER}")


@pytest.fixture(scope="session")
def emulated_handlers(compiler):
    """Maps custom call names to the names of the emulated CUDA handlers."""
    return emulation.registered_handlers()


# The compiled PTX is what a GPU runs, so it is tested by default, and the emulated source in `make thorough`.
EXECUTIONS = [
    "sm_80",
    pytest.param("sm_90", marks=pytest.mark.thorough),
    pytest.param("emulated", marks=pytest.mark.thorough),
]


@pytest.fixture(scope="module", params=EXECUTIONS)
def execution(request):
    """How the CUDA kernels run on the CPU."""
    if request.param != "emulated" and executed_ptx.missing():
        pytest.skip(executed_ptx.missing())
    return request.param


@pytest.fixture(scope="module")
def executed_handlers(execution, request):
    """The names of the handlers that run the CUDA kernels on the CPU, by those of the custom calls."""
    if execution == "emulated":
        return request.getfixturevalue("emulated_handlers")
    return executed_ptx.interpreter(architecture(execution)).handlers


@pytest.fixture(scope="module")
def set_max_shared_bytes(execution, executed_handlers):
    """Sets the shared memory that a block can have."""
    if execution == "emulated":
        return emulation.library().SetMaxSharedBytes
    return lambda count: executed_ptx.interpreter(architecture(execution)).set(max_shared_bytes=count)


def architecture(execution):
    return int(execution.removeprefix("sm_"))


@pytest.fixture(scope="module")
def executed_kernels(executed_handlers):
    """Lowers all of jax_dcn on the CPU as for CUDA, to these handlers."""
    with substituted(executed_handlers):
        yield


def pytest_collection_modifyitems(items):
    """Deselects the reference cases of tests that are imported from other folders, because they run no kernels."""
    imported = [item for item in items if item.path.parent == HERE and hasattr(item, "callspec")]
    without_kernels = {item for item in imported if item.callspec.params.get("backend") == "reference"}
    items[:] = [item for item in items if item not in without_kernels]
