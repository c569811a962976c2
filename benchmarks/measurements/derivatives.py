"""Forward mode and second derivatives of the deformable convolution, next to the forward: time and temporary memory."""

import time
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.baselines import Call
from benchmarks.measurements import deform_conv
from benchmarks.measurements.timing import interleaved

SHAPES = {name: deform_conv.SHAPES[name] for name in "AB"}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
BATCHES = (1, 2, 8, 16)
BACKENDS = {"jax_dcn": None, "reference": "reference"}
ALL = deform_conv.VARIED


def forward(function, operands, tangents, cotangent):
    return function(operands)


def gradients(function, operands, tangents, cotangent):
    return jax.vjp(function, operands)[1](cotangent)[0]


def jvp(active, function, operands, tangents, cotangent):
    """The value and its tangent, where the operands in `active` have tangents."""

    def of_active(some):
        return function(operands | some)

    return jax.jvp(of_active, *(({name: arrays[name] for name in active},) for arrays in (operands, tangents)))


def tangent(*arguments):
    return jvp(ALL, *arguments)[1]


def hessian_product(function, operands, tangents, cotangent):
    """The product with the tangents of the Hessian of the sum of result times cotangent."""

    def of_operands(operands):
        return gradients(function, operands, tangents, cotangent)

    return jax.jvp(of_operands, (operands,), (tangents,))[1]


PROGRAMS = {
    "forward": forward,
    "jvp": partial(jvp, ALL),
    "jvp, tangent only": tangent,
    "jvp of x": partial(jvp, ("x",)),
    "jvp of offset and mask": partial(jvp, ("offset", "mask")),
    "gradients": gradients,
    "Hessian-vector product": hessian_product,
}
HELD = ("forward", "jvp", "gradients", "Hessian-vector product")
BY_REFERENCE = ("jvp",)


def times(shape, repeats):
    """The seconds of each program by the kernels, and of those in `BY_REFERENCE` by the reference, by clock.

    The programs take turns.
    """
    problem = deform_conv.problem(shape, "float32")
    # Any other numbers than the operands themselves will do.
    arguments = problem.operands, {name: jnp.cos(a) for name, a in problem.operands.items()}, problem.cotangent
    names = {name: (name, None) for name in PROGRAMS} | {
        f"{name}, reference": (name, "reference") for name in BY_REFERENCE
    }
    calls = {label: Call(partial(compiled(*named, problem, arguments), *arguments)) for label, named in names.items()}
    for call in calls.values():
        call()
    return {name: interleaved(calls, repeats, clock) for name, clock in CLOCKS.items()}


def memory(shape):
    """The MiB of temporary arrays, and of arguments and results, by backend, program and number in `BATCHES`."""
    problem = deform_conv.problem(shape._replace(batch=1), "float32")

    def mebibytes(name, backend, batch):
        def struct(array):
            size = (batch, *array.shape[1:]) if len(array) == 1 else array.shape
            return jax.ShapeDtypeStruct(size, array.dtype)

        operands = jax.tree.map(struct, problem.operands)
        held = compiled(name, backend, problem, (operands, operands, struct(problem.cotangent))).memory_analysis()
        others = held.argument_size_in_bytes + held.output_size_in_bytes
        return [round(size / 2**20, 1) for size in (held.temp_size_in_bytes, others)]

    return {
        label: {name: [mebibytes(name, backend, batch) for batch in BATCHES] for name in HELD}
        for label, backend in BACKENDS.items()
    }


def compiled(name, backend, problem, arguments):
    function = partial(deform_conv.deformable, backend=backend, **problem.options)

    def run(operands, tangents, cotangent):
        return PROGRAMS[name](lambda operands: function(**operands), operands, tangents, cotangent)

    return jax.jit(run).lower(*arguments).compile()
