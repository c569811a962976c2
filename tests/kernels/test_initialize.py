"""The handler of the initialize stage: it loads all kernels, or says why this machine cannot run them.

That all kernels are loaded is tested by every test that runs the kernels on the CPU, where no others can be launched.
"""

import re

import jax
import pytest

from jax_dcn._primitive import extension
from tests.wheels import cuda12

pytestmark = pytest.mark.platforms("cpu")


STAGES = {"cpu": {"execute"}, "cuda": {"execute", "initialize"}}


@pytest.mark.parametrize("module", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_all_custom_calls_have_their_stages(module):
    if module not in extension.modules:
        pytest.skip(f"jax_dcn was built without its module for {module}")
    handlers = extension.modules[module].handlers
    assert handlers and all(set(stages) == STAGES[module] for stages in handlers.values())


REBUILD = extension.BUILD_CUDA.removeprefix("JAX_DCN_CUDA=WHEELS ")
NVCC = re.search(r"=(\d+\.\d+)\.", cuda12.PACKAGE)[1]
WITH_CUDA_12 = (
    f"or build the kernels with CUDA {NVCC}. In a checkout of jax_dcn:\n  python -m {cuda12.__name__} {REBUILD}"
)
MACHINES = {
    "driver of an older major version": (
        {"driver_version": 12000, "device": 3},
        ["(nvcc) need a driver that supports CUDA 13.0", "supports only CUDA 12.0", WITH_CUDA_12],
    ),
    "driver that is older than CUDA 12": (
        {"driver_version": 11080, "device": 2},
        ["need a driver that supports CUDA 13.0", "supports only CUDA 11.8. Update the driver."],
    ),
    "driver that cannot compile the PTX": (
        {"driver_version": 13000, "device": 4, "has_machine_code": 0},
        ["need a driver that supports CUDA 13.1", "supports only CUDA 13.0", WITH_CUDA_12],
    ),
    "GPU that is not in the build": (
        {"device": 5, "compute_capability": 110, "has_machine_code": 0, "has_ptx": 0},
        ["compute capability 11.0", "(nvcc) have no code", f"\n  CUDAARCHS=110 {extension.BUILD_CUDA}"],
    ),
    "GPU that is too old": (
        {"device": 6, "compute_capability": 75, "has_machine_code": 0, "has_ptx": 0},
        ["compute capability 7.5", "need 8.0 or newer", "backend='reference'"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_that_cannot_run_the_kernels(name, interpreter):
    machine, parts = MACHINES[name]
    for _ in range(2):  # the second call reports what the first one found
        with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION") as raised:
            interpreter.initialize(**machine)
        assert [part for part in parts if part not in str(raised.value)] == []
    interpreter.initialize()


def test_a_lack_of_memory_may_be_temporary(interpreter):
    with pytest.raises(jax.errors.JaxRuntimeError, match="kernels cannot be loaded"):
        interpreter.initialize(device=9, has_memory=0)
    interpreter.initialize(device=9)
    interpreter.initialize(device=9, has_memory=0)  # the kernels are not loaded again


@pytest.mark.parametrize("driver, has_machine_code", [(13000, 1), (13010, 0)])
def test_a_machine_that_runs_the_kernels(driver, has_machine_code, interpreter):
    """Any driver of the major version runs machine code; PTX needs the runtime's version, which is 13.1 here."""
    interpreter.initialize(driver_version=driver, device=7 + has_machine_code, has_machine_code=has_machine_code)


# The interpreter's module has machine code for 8.0 and 9.0. Of the GPUs of 8.x, only Jetson Orin, 8.7, cannot run it.
@pytest.mark.parametrize(
    "capability, compiles", [(75, False), (80, False), (89, False), (87, True), (90, False), (110, True)]
)
def test_a_user_is_told_that_the_driver_compiles_the_kernels(capability, compiles, interpreter, capfd):
    for _ in range(2):  # only the first call compiles them
        interpreter.initialize(device=capability, compute_capability=capability)
    message = f"no machine code for this GPU (compute capability {capability // 10}.{capability % 10})"
    assert capfd.readouterr().err.count(message) == int(compiles)
