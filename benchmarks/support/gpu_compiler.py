"""XLA's compiler for GPUs, which needs no GPU: this environment's, or that of `make .venv/gpu-compiler`."""

import functools
import os
import sys
from pathlib import Path

import jax
from jax._src import xla_bridge
from jax.experimental import topologies

from jax_dcn._primitive import extension

H100 = Path(__file__).with_name("h100.txtpb").read_text()


class Missing(Exception):
    """There is no compiler for GPUs."""


@functools.cache
def initialise():
    """Makes the compiler known to jax, once, for programs that are only compiled here. Raises Missing."""
    try:
        gpus()
    except NotImplementedError:
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # cuDNN and the like are needed to run only
        folder = str(Path(sys.prefix) / "gpu-compiler")
        sys.path.insert(0, folder)
        try:
            import jax_plugins.xla_cuda13 as plugin

            plugin.initialize()
        except ImportError:
            raise Missing("no jax-cuda13-plugin to compile for GPUs: run `make .venv/gpu-compiler`") from None
        finally:
            sys.path.remove(folder)
        # jax does this for plugins that it finds at startup. It registers the partitioner's callbacks, for example.
        for callback in xla_bridge._plugin_callbacks:
            callback(c_api=xla_bridge._backend_factories["cuda"].c_api)
    if "cuda" not in extension.modules:  # the compiler asks for handlers, whatever they are
        handler = next(iter(extension.modules["cpu"].handlers.values()))["execute"]
        for name in extension.cuda_custom_calls:
            jax.ffi.register_ffi_target(name, handler, platform="CUDA")


def gpus(count=1, major=9):
    """So many of a compute capability."""
    assert H100.count("major: 9 }") == 1
    target = H100.replace("major: 9 }", f"major: {major} }}")
    return topologies.get_topology_desc(platform="cuda", target_config=target, topology=f"1x1x{count}").devices


def on_gpu(arguments, major=9):
    """The shapes and types of arrays, on one GPU."""
    (device,) = gpus(1, major)
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments)
