"""The errors that docs/troubleshooting.md quotes as text, because no example can raise them, are raised.

Those of other libraries that this package has no part in are not.
"""

import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import jax_dcn
from benchmarks.lowering import executed_ptx
from jax_dcn._primitive import extension, jax_internals
from tests.helpers.pages import ERRORS, blocks

pytestmark = pytest.mark.platforms("cpu")
CMAKE = pathlib.Path(__file__).parents[1] / "cmake"
OPERANDS = jnp.ones((2, 8, 8, 4)), jnp.zeros((2, 8, 8, 18)), jnp.ones((3, 3, 4, 6))


def without_kernels(patch, folder):
    patch.setattr(extension, "modules", {})
    patch.setattr(jax, "devices", lambda platform: ["a GPU"])
    jax.jit(jax_dcn.deform_conv2d).trace(*OPERANDS).lower(lowering_platforms=("cuda",))


def with_old_driver(patch, folder):
    initialize(driver_version=12040, device=1)


def with_unknown_instructions(patch, folder):
    patch.setenv("JAX_DCN_CPU_INSTRUCTIONS", "sse9")
    return errors_of(sys.executable, "-c", "import jax_dcn")


def with_unknown_gpu(patch, folder):
    initialize(device=2, compute_capability=110, has_machine_code=0, has_ptx=0)


def initialize(**differences):
    if executed_ptx.missing():
        pytest.skip(executed_ptx.missing())
    executed_ptx.interpreter(executed_ptx.ARCHITECTURE).initialize(**differences)


def without_compiler(patch, folder):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    lines = ["cmake_minimum_required(VERSION 3.25)", "project(any LANGUAGES NONE)", "set(JAX_DCN_CUDA ON)"]
    (folder / "CMakeLists.txt").write_text("\n".join([*lines, f"include({CMAKE / 'FindCudaCompiler.cmake'})"]))
    patch.setenv("CUDACXX", str(folder / "nvcc"))
    return errors_of("cmake", "-S", folder, "-B", folder / "build")


def errors_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode != 0
    return done.stderr


def without_handler(patch, folder):
    jax.ffi.ffi_call("dcn_of_nobody", jax.ShapeDtypeStruct((), jnp.float32))()


def of_other_version(patch, folder):
    x, offset, _ = OPERANDS
    jax.ffi.ffi_call("dcn_sample", jax.ShapeDtypeStruct((2, 8, 8, 9, 4), x.dtype))(x, offset, jnp.zeros(4, jnp.int32))


def with_moved_name(patch, folder):
    patch.delattr("jax.interpreters.ad.Zero")
    patch.delitem(sys.modules, jax_internals.__name__)
    importlib.import_module(jax_internals.__name__)


def with_checks(patch, folder):
    export.export(jax.jit(jax_dcn.deform_conv2d))(*OPERANDS)


def over_devices(patch, folder):
    split = NamedSharding(jax.make_mesh((2,), ("a",), devices=jax.devices()[:2]), PartitionSpec("a"))
    x, offset, weight = OPERANDS
    checks = jax_dcn.export.disabled_checks()
    function = export.export(jax.jit(jax_dcn.deform_conv2d, in_shardings=(split, split, None)), disabled_checks=checks)
    function(x, offset, weight).serialize()


RAISED = [
    without_kernels,
    with_old_driver,
    with_unknown_instructions,
    with_unknown_gpu,
    without_compiler,
    None,  # of XLA, for a handler of a newer API
    without_handler,
    of_other_version,
    with_moved_name,
    with_checks,
    None,  # of jax, without flatbuffers
    over_devices,
]


QUOTED = [(function, shown) for function, shown in zip(RAISED, blocks(ERRORS, "text"), strict=True) if function]


@pytest.mark.parametrize("function, shown", QUOTED)
def test_messages(function, shown, monkeypatch, tmp_path):
    try:
        message = function(monkeypatch, tmp_path) or "no error"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    parts = (re.escape(part.strip()) for part in shown.text.split("…"))
    assert re.search(".*".join(parts), " ".join(message.split()))
