"""Compiles programs with jax's persistent cache, and prints which were in it: python compile_cached.py FOLDER."""

import json
import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn


def gradients(x, offset, weight, padding=1):
    def loss(*operands):
        return jax_dcn.deform_conv2d(*operands, padding=padding).sum()

    return jax.grad(loss, (0, 1, 2))(x, offset, weight)


def gradients_of_another_padding(*operands):
    return gradients(*operands, padding=((0, 2), (2, 0)))


def programs():
    """The programs by name: a function and its arguments."""
    operands = jnp.ones((8, 4, 4, 2)), jnp.zeros((8, 4, 4, 18)), jnp.ones((3, 3, 2, 2))
    mesh = jax.make_mesh((8,), ("images",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = P("images"), P("images"), P()
    split = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(operands, specs, strict=True)]
    export = jax.export.export(jax.jit(gradients), disabled_checks=jax_dcn.export.disabled_checks())
    return {
        "jit": (gradients, operands),
        "exported": (jax.export.deserialize(export(*operands).serialize()).call, operands),
        "shard_map": (jax.shard_map(gradients, mesh=mesh, in_specs=specs, out_specs=specs), split),
        "split": (gradients, split),
        "split_with_another_padding": (gradients_of_another_padding, split),
    }


def main(folder):
    jax.config.update("jax_enable_compilation_cache", True)  # which tests turn off
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    made = programs()
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    hits = {}
    for name, (function, arguments) in made.items():
        events.clear()
        jax.jit(function).lower(*arguments).compile()
        hits[name] = "/jax/compilation_cache/cache_hits" in events
    print(json.dumps(hits))


if __name__ == "__main__":
    main(sys.argv[1])
