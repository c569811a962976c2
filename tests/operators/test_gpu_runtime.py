"""What only the runtime of a GPU does with the kernels: CUDA graphs, and allocations that fail."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import cast
from tests.helpers.operators import pull_back
from tests.operators.test_determinism import CASES

pytestmark = pytest.mark.platforms("cuda")
BLOCK = 2**19  # float32 numbers, of the memory that is held


@pytest.mark.parametrize("name", ["convolution", "attention", "mean of regions", "maximum of regions"])
def test_cuda_graphs_give_the_same_bits(name):
    case = CASES[name]
    operands = [cast((case.operands(seed=seed), case.cotangent()), np.float32) for seed in range(3)]
    lowered = jax.jit(functools.partial(pull_back, case.with_backend())).lower(*reversed(operands[0]))
    without, graphs = (
        lowered.compile(compiler_options={"xla_gpu_graph_min_graph_size": size}) for size in (1_000_000, 1)
    )
    for _ in range(2):  # a graph is recorded once, and then run with other operands
        for of_seed, cotangent in operands:
            expected, found = without(cotangent, of_seed), graphs(cotangent, of_seed)
            jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_failed_allocation_harms_no_later_call():
    limits = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.01"}
    script = "from tests.operators import test_gpu_runtime as test; test.main()"
    environment = os.environ | limits | {"JAX_PLATFORMS": "cuda,cpu"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def main():
    """Calls kernels before all memory is taken, meanwhile and afterwards. XLA waits for memory for 10 s."""
    case = CASES["convolution"]
    operands, cotangent = cast((case.operands(), case.cotangent()), np.float32)
    call = functools.partial(jax.jit(functools.partial(pull_back, case.with_backend())), cotangent, operands)
    expected, held = jax.device_get(call()), []
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        while True:
            held.append(jnp.zeros(BLOCK).block_until_ready())
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        jax.block_until_ready(call())
    held.clear()
    jax.tree.map(np.testing.assert_array_equal, call(), expected)
