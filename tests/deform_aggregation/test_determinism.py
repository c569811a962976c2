"""The same bits on every run, whatever the number of threads."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import jax_dcn

# Many samples fall on few pixels, so the tests would notice a summation order that depends on the threads. The one head
# of ONE_HEAD is divided by channels.
SHAPES = ((9, 8), (4, 5))
CROWDED, ONE_HEAD = (2, 3, 8), (1, 1, 40)  # batch, heads, channels

PROGRAM = """
import os, sys
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:int(sys.argv[1])]))
import numpy as np
from tests.deform_aggregation.test_determinism import pull_back
with np.load(sys.argv[2]) as file:
    arrays = [file[name] for name in ("value", "locations", "weights", "cotangent")]
np.savez(sys.argv[3], *pull_back(*arrays))
"""


def make_arrays(batch, heads, channels):
    random = np.random.default_rng(0)
    queries, points = 500, (len(SHAPES), 3)
    sizes = {
        "value": (batch, sum(height * width for height, width in SHAPES), heads, channels),
        "locations": (batch, queries, heads, *points, 2),
        "weights": (batch, queries, heads, *points),
        "cotangent": (batch, queries, heads * channels),
    }
    return {name: random.uniform(-0.1, 1.1, size).astype(np.float32) for name, size in sizes.items()}


@jax.jit
def pull_back(value, locations, weights, cotangent):
    """The result and the gradients of value, locations and weights."""

    def attention(*operands):
        return jax_dcn.multi_scale_deformable_attention(*operands, spatial_shapes=SHAPES)

    out, differentiate = jax.vjp(attention, value, locations, weights)
    return out, *differentiate(cotangent)


@pytest.mark.optimized
def test_repeated_runs_agree_to_the_last_bit():
    arrays = make_arrays(*CROWDED)
    first = pull_back(**arrays)
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, pull_back(**arrays), first)


@pytest.mark.platforms("cpu")
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores to choose from"
)
@pytest.mark.parametrize("sizes", [CROWDED, ONE_HEAD], ids=["crowded", "one_head"])
def test_results_do_not_depend_on_the_number_of_threads(sizes, tmp_path):
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **make_arrays(*sizes))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    results = []
    for cores in (1, 2):
        output = tmp_path / f"{cores}.npz"
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(cores), str(inputs), str(output)], check=True, env=environment
        )
        with np.load(output) as file:
            results.append(dict(file))
    jax.tree.map(np.testing.assert_array_equal, *results)
