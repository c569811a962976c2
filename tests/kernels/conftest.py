import pathlib
import shutil
import sys

import jax
import pytest
from jax._src.interpreters import mlir  # jax has no public function that returns the lowering of a platform

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


@pytest.fixture(scope="module")
def emulated_kernels(emulated_handlers):
    """Lowers all of jax_dcn on the CPU as for CUDA, to the emulated handlers."""
    real_call = jax.ffi.ffi_call

    def emulated_call(name, *args, **kwargs):
        return real_call(emulated_handlers[name], *args, **kwargs)

    lowerings = mlir._platform_specific_lowerings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", emulated_call)
        for primitive, rule in lowerings["cuda"].items():
            if primitive.name.startswith("deform"):
                patch.setitem(lowerings["cpu"], primitive, rule)
        jax.clear_caches()
        yield
    jax.clear_caches()


def pytest_collection_modifyitems(items):
    """Deselects the reference cases of tests that are imported from other folders, because they run no kernels."""
    imported = [item for item in items if item.path.parent == HERE and hasattr(item, "callspec")]
    without_kernels = {item for item in imported if item.callspec.params.get("backend") == "reference"}
    items[:] = [item for item in items if item not in without_kernels]
