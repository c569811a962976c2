"""JAX stays usable after interrupts, when memory is exhausted, and with calls from many threads."""

import functools
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import cast
from tests.helpers.operators import OPERATORS, pull_back

pytestmark = pytest.mark.platforms("cpu")


def test_many_threads_at_once():
    """Calls from many threads have bitwise the results of calls from one thread."""
    work = []
    for operator in OPERATORS.values():
        call = jax.jit(functools.partial(pull_back, operator.case.with_backend()))
        work += [(call, cast((operator.case.cotangent(i), operator.case.operands(i)), np.float32)) for i in range(8)]
    expected = [jax.device_get(call(*arguments)) for call, arguments in work]
    with ThreadPoolExecutor(24) as pool:
        results = list(pool.map(lambda item: jax.device_get(item[0](*item[1])), work * 4))
    for pair in zip(results, expected * 4, strict=True):
        jax.tree.map(np.testing.assert_array_equal, *pair)


def run(program):
    """The words that `program` prints in a separate process, which then checks that JAX is usable."""
    start = """
        import jax, jax.numpy as jnp, jax_dcn

        def convolve(x, offset, weight):
            return jax_dcn.deform_conv2d(x, offset, weight)

        operands = jnp.ones((1, 16, 16, 4)), jnp.zeros((1, 16, 16, 18)), jnp.ones((3, 3, 4, 4))
        expected = jax.jit(convolve)(*operands)
    """
    end = """
        assert (jax.jit(convolve)(*operands) == expected).all()
        print("usable")
    """
    command = [sys.executable, "-c", "\n".join(map(textwrap.dedent, (start, program, end)))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.slow
def test_an_interrupt_arrives_after_the_call():
    program = """
        import os, signal, threading, time
        x, offset, weight = jnp.ones((4, 128, 128, 64)), jnp.zeros((4, 128, 128, 18)), jnp.ones((3, 3, 64, 64))
        compiled = jax.jit(lambda *a: jax.lax.fori_loop(0, 30, lambda i, x: convolve(x, *a[1:]) / 600, a[0]))
        compiled = compiled.lower(x, offset, weight).compile()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background lack it
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            for _ in range(20):
                jax.block_until_ready(compiled(x, offset, weight))
            print("never")
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert run(program) == ["interrupted", "usable"]


@pytest.mark.slow
def test_without_memory_a_call_raises():
    """Cases: XLA cannot allocate the result; a kernel cannot allocate memory before its tasks, or in one of them.

    The last case is a second call of a jitted function, whose errors have another type in jax.
    """
    program = """
        import resource

        def large(scale):
            offset = jnp.zeros((1, 2**13, 2**13, 2))
            return jax_dcn.deform_conv2d(jnp.ones((1, 2**13, 2**13, 1)) * scale, offset, jnp.ones((1, 1, 1, 4)))

        def pool(scale):
            return jax_dcn.psroi_pool(jnp.ones((1, 4, 4, 1)) * scale, jnp.ones((1, 5)), output_size=(2**24, 1))

        def pool_gradient(scale):
            def total(x):
                return jax_dcn.deform_psroi_pool(x, jnp.ones((1, 5)), jnp.ones((1, 1, 1, 2)), output_size=1).sum()

            return jax.grad(total)(scale * jnp.ones((1, 2**13, 2**13, 1)))

        scale = jnp.ones(())
        compiled = [jax.jit(f).lower(scale).compile() for f in (large, pool, pool_gradient)]
        jitted = jax.jit(pool)
        jitted(scale)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        for call, room in zip([*compiled, jitted], (2**28, 2**28, 2**29 + 2**28 - 2**26, 2**28)):
            resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
            try:
                jax.block_until_ready(call(scale))
                print("enough")
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                print(type(error).__name__, str(error)[:35].replace(" ", "_"))
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    """
    compiled, xla, ours = (
        "JaxRuntimeError",
        "RESOURCE_EXHAUSTED:_Out_of_memory_a",
        "RESOURCE_EXHAUSTED:_jax_dcn:_out_of",
    )
    assert run(program) == [compiled, xla, compiled, ours, compiled, ours, "ValueError", ours, "usable"]
