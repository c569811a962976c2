"""The exchanges between devices that are read from a compiled program."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.lowering.hlo import collectives
from tests.helpers.sharding import make_mesh

pytestmark = pytest.mark.platforms("cpu")


def test_a_loop_exchanges_whenever_it_runs():
    mesh = make_mesh(shape=(2,))

    def loop(x):
        def step(carry, _):
            return jax.lax.psum(jnp.cos(x * carry), "a"), None

        return jax.lax.scan(step, jnp.ones(x.shape), length=3)[0]

    function = jax.shard_map(loop, mesh=mesh, in_specs=P("a"), out_specs=P())
    assert len(collectives(jax.jit(function).lower(jnp.ones(4)).compile())) == 3


@pytest.mark.thorough
def test_a_step_of_a_detector_exchanges_little_more_than_its_gradients():
    command = [sys.executable, "-m", "benchmarks.exchanged", "--models", "small.json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    parameters, reduced, *others = map(float, done.stdout.splitlines()[2].split("|")[2:-1])
    assert parameters < reduced < 1.05 * parameters and sum(others) < 0.01 * parameters
