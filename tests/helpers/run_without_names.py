"""Uses jax_dcn without one name of jax after the other: python run_without_names.py '{"NAME": ["PROGRAM", ...], ...}'

Prints a line of JSON for each name: what its programs computed, compared with the reference, and what they warned of.
"""

import json
import sys
import types
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from unittest import mock

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

SPECS = {"x": P("images"), "offset": P("images"), "weight": P()}
RNG = np.random.default_rng(0)
OPERANDS = {
    name: RNG.normal(size=shape).astype(np.float32)
    for name, shape in {"x": (2, 3, 4, 2), "offset": (2, 3, 4, 8), "weight": (2, 2, 2, 3)}.items()
}


class Without(types.ModuleType):
    """A module that lacks a name."""

    def __init__(self, module, name):
        super().__init__(module.__name__)
        self.__dict__.update({key: value for key, value in vars(module).items() if key != name})


@contextmanager
def package_without(entry):
    """jax_dcn, imported anew as if jax did not have this name, attribute or option; compiled modules stay loaded."""
    for name in [name for name in sys.modules if name.split(".")[0] == "jax_dcn"]:
        if name not in ("jax_dcn._cpu", "jax_dcn._cuda"):
            del sys.modules[name]
    real = {}
    for path in entry.split(" or ") if entry.startswith("jax.") else ():
        module, _, name = path.rpartition(".")
        with suppress(ImportError):  # this jax may have only one of several modules
            real = {module: import_module(module), path: sys.modules.get(path)} | real
            sys.modules |= {module: Without(sys.modules[module], name), path: None}
    package = import_module("jax_dcn")
    for hidden, found in real.items():
        del sys.modules[hidden]
        if found is not None:
            sys.modules[hidden] = found
    jax_internals = sys.modules["jax_dcn._primitive.jax_internals"]
    attribute, config = jax_internals.attribute, jax_internals.config
    with (
        mock.patch.object(jax_internals, "attribute", lambda owner, p: None if p == entry else attribute(owner, p)),
        mock.patch.object(jax_internals, "config", lambda option: None if option == entry else config(option)),
    ):
        yield package


def programs(package):
    """Functions and their arguments."""

    def convolve(x, offset, weight):
        return package.deform_conv2d(x, offset, weight, padding=((0, 1), (1, 0)))

    def gradients(*operands):
        return jax.grad(lambda *operands: convolve(*operands).sum(), (0, 1, 2))(*operands)

    def gradients_and_transpose(x, offset, weight):
        transpose = jax.linear_transpose(lambda x: convolve(x, offset, weight), x)
        return gradients(x, offset, weight), transpose(convolve(x, offset, weight))

    split, whole = sharded("Auto"), list(OPERANDS.values())
    specs = tuple(SPECS.values())
    of_shards = jax.shard_map(gradients, mesh=split[0].sharding.mesh, in_specs=specs, out_specs=specs)
    return {
        "eager": (convolve, whole),
        "one device": (jax.jit(gradients_and_transpose), whole),
        "shard_map": (jax.jit(of_shards), split),
        "several devices": (jax.jit(gradients), split),
        "Explicit mesh": (jax.jit(convolve), sharded("Explicit")),
    }


def sharded(axis_type):
    mesh = jax.make_mesh((2,), ("images",), axis_types=(AxisType[axis_type],))
    return [jax.device_put(array, NamedSharding(mesh, SPECS[name])) for name, array in OPERANDS.items()]


def run(function, arguments):
    """The result, and the facts about the program."""
    result, text, error = None, "", None
    ffi_call = mock.Mock(wraps=jax.ffi.ffi_call)  # eager computation has no text of a compiled program
    with mock.patch.object(jax.ffi, "ffi_call", ffi_call), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if hasattr(function, "lower"):
                function = function.lower(*arguments).compile()
                text = function.as_text()
            result = jax.tree.map(np.asarray, function(*arguments))
        except (NotImplementedError, RuntimeError) as raised:
            error = str(raised)
    facts = {
        "error": error,
        "warnings": sorted({str(warning.message) for warning in caught}),
        "warns here": all(warning.filename == __file__ for warning in caught),
        "kernels": "dcn_" in text if text else ffi_call.called,
        "gathered": "all-gather" in text,
    }
    return result, facts


def by_reference():
    package = import_module("jax_dcn")
    convolve = package.deform_conv2d
    with mock.patch.object(package, "deform_conv2d", partial(convolve, backend="reference")):
        reference = programs(package)
    reference["Explicit mesh"] = reference["eager"]
    return {name: run(function, arguments)[0] for name, (function, arguments) in reference.items()}


def report(entry, chosen, expected):
    facts = {}
    with package_without(entry) as package:
        names = sys.modules["jax_dcn._primitive.jax_internals"]
        facts["missing"] = [*names.PRIMITIVES.missing, *names.PARTITIONING.missing, *names.REPLACEABLE.missing]
        available = programs(package)
        for name in chosen:
            result, facts[name] = run(*available[name])
            leaves = zip(jax.tree.leaves(result), jax.tree.leaves(expected[name]), strict=result is not None)
            facts[name]["right"] = all(np.allclose(ours, theirs, 1e-4, 1e-4) for ours, theirs in leaves)
        shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in OPERANDS.items()}
        facts["platform"] = package.kernel_plan(package.deform_conv2d, **shapes, padding=((0, 1), (1, 0))).platform
        if entry == "jax.extend.mlir.ir":
            # Cache keys depend on the annotations of calls, which cannot be written.
            jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
            _, facts["cache keys"] = run(*programs(package)["several devices"])
            jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", False)
    return facts


if __name__ == "__main__":
    expected = by_reference()
    for entry, chosen in json.loads(sys.argv[1]).items():
        print(json.dumps(report(entry, chosen, expected)), flush=True)
