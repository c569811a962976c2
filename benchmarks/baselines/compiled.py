"""Implementations that are JAX functions, compiled."""

from functools import partial

import jax
import numpy as np

from benchmarks.baselines import Call, Implementation, Unavailable
from benchmarks.support import memory


def implementation(function, takes, agrees_at=None):
    """Calls `function(**operands, **options)` with the operands named in `takes`."""
    return Implementation(partial(prepare, function, takes), agrees_at)


def in_jax(function, takes):
    """An operator and its form in `jax.numpy`."""
    forms = {"jax_dcn": function, "reference": partial(function, backend="reference")}
    return {name: implementation(form, takes) for name, form in forms.items()}


def prepare(function, takes, problem, backward):
    operands = {name: problem.operands[name] for name in takes}
    executable = compile_for(partial(function, **problem.options), operands, problem, backward)
    held, most = memory.of_compiled(executable), memory.most_bytes()
    if held > most:
        raise Unavailable(f"would hold more than {most / 2**30:.1f} GiB")

    def at(problem):
        return to_numpy(executable({name: problem.operands[name] for name in takes}, problem.cotangent))

    return Call(
        start=partial(executable, operands, problem.cotangent),
        arrays=to_numpy,
        held=lambda call: (call(), held),
        queued=jax.default_backend() != "cpu",
        at=at,
    )


def compile_for(function, operands, problem, backward):
    varied = [name for name in problem.varied if name in operands]

    def run(operands, cotangent):
        def of_varied(changed):
            return function(**{**operands, **changed})

        if not backward:
            return {"y": of_varied({})}
        y, pull_back = jax.vjp(of_varied, {name: operands[name] for name in varied})
        return {"y": y, **pull_back(cotangent)[0]}

    return jax.jit(run).lower(operands, problem.cotangent).compile()


def to_numpy(result):
    return {name: np.asarray(array, np.float32) for name, array in result.items()}
