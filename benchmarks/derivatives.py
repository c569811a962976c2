"""`python -m benchmarks.derivatives`: forward mode and second derivatives of the deformable convolution.

It measures their time and temporary memory, next to those of the forward.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.baselines import Call
from benchmarks.measurements import deform_conv
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import digits, list_named, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import load, machine

SHAPES = {name: deform_conv.SHAPES[name] for name in "AB"}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
BATCHES = (1, 2, 8, 16)
BACKENDS = {"jax_dcn": None, "reference": "reference"}
ALL = deform_conv.VARIED
ABOUT_TIME = (
    "Milliseconds: the median of calls that take turns, with the smallest and the largest; and the ratio of the "
    "medians to that of the forward. Processor: of all threads together, which other work on the machine slows "
    "down less than the wall clock. Tangents are those of x, offset, weight and mask unless said otherwise; jvp "
    "includes the value. float32."
)
ABOUT_MEMORY = (
    "MiB of temporary arrays, as XLA plans them; and of arguments and results of the Hessian-vector product, which "
    "takes operands, tangents and a cotangent."
)


def gradients(function, operands, tangents, cotangent):
    return jax.vjp(function, operands)[1](cotangent)[0]


def jvp(active, function, operands, tangents, cotangent):
    """The value and its tangent, where the operands in `active` have tangents."""

    def of_active(some):
        return function(operands | some)

    return jax.jvp(of_active, *(({name: arrays[name] for name in active},) for arrays in (operands, tangents)))


def hessian_product(function, operands, tangents, cotangent):
    """The product with the tangents of the Hessian of the sum of result times cotangent."""
    return jax.jvp(lambda operands: gradients(function, operands, tangents, cotangent), (operands,), (tangents,))[1]


PROGRAMS = {
    "forward": lambda function, operands, tangents, cotangent: function(operands),
    "jvp": partial(jvp, ALL),
    "jvp, tangent only": lambda *arguments: jvp(ALL, *arguments)[1],
    "jvp of x": partial(jvp, ("x",)),
    "jvp of offset and mask": partial(jvp, ("offset", "mask")),
    "gradients": gradients,
    "Hessian-vector product": hessian_product,
}
HELD = ("forward", "jvp", "gradients", "Hessian-vector product")
BY_REFERENCE = "jvp"  # also measured with backend="reference"


def compiled(name, backend, problem, arguments):
    function = partial(deform_conv.deformable, backend=backend, **problem.options)

    def run(operands, tangents, cotangent):
        return PROGRAMS[name](lambda operands: function(**operands), operands, tangents, cotangent)

    return jax.jit(run).lower(*arguments).compile()


def prepared(name, backend, problem):
    """The call of a program that takes no tangents, which has been compiled and has run once."""
    arguments = problem.operands, {}, problem.cotangent
    call = Call(partial(compiled(name, backend, problem, arguments), *arguments))
    call()
    return call


def times(shape, repeats):
    """The seconds of the programs, which take turns, by clock."""
    problem = deform_conv.problem(shape, "float32")
    # Any other numbers than the operands themselves will do.
    arguments = problem.operands, {name: jnp.cos(a) for name, a in problem.operands.items()}, problem.cotangent
    names = {name: (name, None) for name in PROGRAMS} | {f"{BY_REFERENCE}, reference": (BY_REFERENCE, "reference")}
    calls = {label: Call(partial(compiled(*named, problem, arguments), *arguments)) for label, named in names.items()}
    for call in calls.values():
        call()
    return {name: interleaved(calls, repeats, clock) for name, clock in CLOCKS.items()}


def memory_rows(name, shape):
    problem = deform_conv.problem(shape._replace(batch=1), "float32")

    def analysis(program, backend, batch):
        def struct(array):
            size = (batch, *array.shape[1:]) if len(array) == 1 else array.shape
            return jax.ShapeDtypeStruct(size, array.dtype)

        operands = jax.tree.map(struct, problem.operands)
        return compiled(program, backend, problem, (operands, operands, struct(problem.cotangent))).memory_analysis()

    for label, backend in BACKENDS.items():
        for program in HELD:
            held = [analysis(program, backend, batch) for batch in BATCHES]
            yield [name, program, label, *(mebibytes(one.temp_size_in_bytes) for one in held)]
    others = (mebibytes(one.argument_size_in_bytes + one.output_size_in_bytes) for one in held)
    yield [name, program, "its arguments and results", *others]


def mebibytes(size):
    return digits(round(size / 2**20, 1))


def time_table(times):
    columns = [(name, clock) for name in times for clock in CLOCKS]
    programs = next(iter(times.values()))["wall"]
    rows = ([program, *(time_cell(times[name][clock], program) for name, clock in columns)] for program in programs)
    return markdown([["program", *(f"{name}, {clock}" for name, clock in columns)], *rows])


def time_cell(seconds, program):
    middle, low, high = (digits(seconds[program][key] * 1e3) for key in ("median", "min", "max"))
    return f"{middle} ({low} to {high}), **{seconds[program]['median'] / seconds['forward']['median']:.2f}**"


def main(arguments=None):
    options = parser("derivatives", __doc__)
    options.add_argument("--repeats", type=int, default=15, help="how often each program is timed")
    args = options.parse_args(arguments)
    about = machine() | {"load average before": load()}
    held = [row for name, shape in SHAPES.items() for row in memory_rows(name, shape)]
    seconds = {name: times(shape, args.repeats) for name, shape in SHAPES.items()}
    about["load average after"] = load()
    sections = [
        facts(about),
        list_named(SHAPES),
        f"## Time\n\n{paragraph(ABOUT_TIME)}",
        time_table(seconds),
        f"## Memory\n\n{paragraph(ABOUT_MEMORY)}",
        markdown([["shape", "program", "by", *(f"batch {batch}" for batch in BATCHES)], *held]),
    ]
    write_page(args.out, f"{jax.default_backend()}-derivatives", "Derivatives of the deformable convolution", sections)


if __name__ == "__main__":
    main()
