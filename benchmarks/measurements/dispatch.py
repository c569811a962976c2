"""The overhead of a call, eager and jitted, and what importing jax_dcn adds to importing jax.

Calls are timed on the CPU, each kind in its own process. There jax executes calls in the calling thread. By default it
wakes up another thread, which takes either 10 or 60 µs and hides the overhead.
"""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

import jax_dcn
from benchmarks.contenders import PASSES
from benchmarks.measurements.timing import summary

CALLS = {"jitted": 3000, "eager": 20}
IMPORTS = 7
BACKENDS = {"jax_dcn": None, "reference": "reference"}
IMPORT = {
    "jax": "import time; t = time.perf_counter(); import jax; print(time.perf_counter() - t)",
    "jax_dcn": "import time, jax; t = time.perf_counter(); import jax_dcn; print(time.perf_counter() - t)",
}
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0"}
KINDS = [(operator, pass_) for operator in ("deform_conv2d", "deform_psroi_pool") for pass_ in PASSES]


def tasks(args):
    for operator, pass_ in KINDS:
        yield f"calls of {operator}, {pass_}", partial(call_rows, operator, pass_)
    yield "import", import_rows


def call_rows(operator, pass_):
    return json.loads(child("-m", "benchmarks.measurements.dispatch", json.dumps([operator, pass_, CALLS])))


def import_rows():
    seconds = {name: [] for name in IMPORT}
    for _ in range(IMPORTS):
        for name, program in IMPORT.items():
            seconds[name].append(float(child("-c", program)))
    return [{"import": {name: summary(values) for name, values in seconds.items()}}]


def child(*arguments):
    root, environment = Path(__file__).parents[2], os.environ | ENVIRONMENT
    return subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True, cwd=root, env=environment
    ).stdout


def in_child(operator, pass_, repeats):
    """The rows of the calls of one operator, measured in this process."""
    function, operands, varied = tiny(operator)

    def prepare(backend, how):
        call = partial(function, backend=backend)
        if pass_ != PASSES[0]:
            call = jax.value_and_grad(lambda *operands: function(*operands, backend=backend).sum(), varied)
        call = jax.jit(call) if how == "jitted" else call
        return lambda: jax.block_until_ready(call(*operands))

    def row(how):
        seconds = in_turns({name: prepare(backend, how) for name, backend in BACKENDS.items()}, repeats[how])
        over = [ours - reference for ours, reference in zip(*seconds.values(), strict=True)]
        times = {name: summary(values) for name, values in seconds.items()}
        return {"call": operator, "pass": pass_, "how": how, "seconds": times, "over reference": summary(over)}

    return [row(how) for how in repeats]


def tiny(operator):
    """The operator, tiny operands, and the indices of the operands whose gradients are computed."""
    x = jnp.ones((1, 4, 4, 4))
    if operator == "deform_conv2d":
        operands = x, jnp.full((1, 4, 4, 18), 0.25), jnp.ones((3, 3, 4, 4)), None, jnp.ones((1, 4, 4, 9))
        return jax_dcn.deform_conv2d, operands, (0, 1, 2, 4)
    pool = partial(jax_dcn.deform_psroi_pool, output_size=2)
    return pool, (x, jnp.array([[0.0, 0, 0, 3, 3]]), jnp.full((1, 2, 2, 2), 0.25)), (0, 2)


def in_turns(calls, repeats):
    seconds = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:  # the first call compiles
                seconds[name].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    print(json.dumps(in_child(*json.loads(sys.argv[1]))))
