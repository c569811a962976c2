"""Runs exported functions in a process that has not traced them: python run_exported.py FOLDER PLATFORM."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn  # noqa: F401, it registers the kernels


def with_gradients(function):
    """A function that returns (value, gradients in all arguments), with the cosine of the value as cotangent."""

    def run(*arrays):
        value, pull_back = jax.vjp(function, *arrays)
        return value, *pull_back(jnp.cos(value))

    return run


def main(folder, platform):
    value, exported = (jax.export.deserialize((folder / name).read_bytes()).call for name in ("value", "gradients"))
    with np.load(folder / "arguments.npz") as file:
        arguments = list(file.values())
    with jax.default_device(jax.devices(platform)[0]):
        results = jax.jit(lambda *arrays: (*with_gradients(value)(*arrays), *exported(*arrays)))(*arguments)
    np.savez(folder / "results.npz", *results)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
