"""Each operator beside its baselines: speed, time and memory."""

from functools import partial

from benchmarks.baselines import PASSES
from benchmarks.measurements.aggregation import ATTENTION, DCNV3
from benchmarks.measurements.convolution import ORDINARY_CONVOLUTION
from benchmarks.measurements.deform_conv import CONVOLUTION
from benchmarks.measurements.deform_conv3d import CONVOLUTION_OF_VOLUMES
from benchmarks.measurements.measure import measure
from benchmarks.measurements.roi_pool import PSROI_POOL, ROI_ALIGN
from benchmarks.measurements.sampling import FIELDS, SAMPLING
from benchmarks.reports.formatting import list_named, list_reasons, markdown, mebibytes, milliseconds, paragraph, ratio

OPERATORS = {
    operator.name: operator
    for operator in (
        CONVOLUTION,
        PSROI_POOL,
        ROI_ALIGN,
        ATTENTION,
        DCNV3,
        SAMPLING,
        FIELDS,
        CONVOLUTION_OF_VOLUMES,
        ORDINARY_CONVOLUTION,
    )
}

RATIOS = (
    "jax_dcn compared with the others: ratios of the medians of calls that took turns. {lower_bounds}Speed: how many "
    "times faster jax_dcn is. A baseline was timed only after its results agreed with those of jax_dcn."
)
LOWER_BOUNDS = "Time: the time of jax_dcn divided by that of an ordinary convolution, which samples nothing. "
TIMES = "Milliseconds, median (min to max). Once: too slow to be timed more than once."
MEMORY = (
    "Peak memory of a call in MiB, with its results and without its operands. JAX: temporary arrays and results in "
    "XLA's plan, without what custom calls and libraries allocate themselves, such as the buffers of each thread in "
    "the CPU kernels of jax_dcn. "
)
MEMORY_OF_OTHERS = {
    "torchvision": "torchvision on a GPU: the peak of its allocator. torchvision and oneDNN on a CPU: how "
    "much the process grew during the first call.",
    "PyTorch": "PyTorch: the peak of its allocator on a GPU; on a CPU, how much the process grew in the first call.",
}


def shapes():
    """The names of all shapes, the most important ones first, because a run may be stopped."""
    first = [name for operator in OPERATORS.values() for name in list(operator.shapes)[:4]]
    return list(dict.fromkeys([*first, *(name for operator in OPERATORS.values() for name in operator.shapes)]))


def baselines():
    """The names of all baselines."""
    names = dict.fromkeys(name for operator in OPERATORS.values() for name in operator.implementations)
    return [name for name in names if name != "jax_dcn"]


def operator_of(name):
    """The operator that has a shape of this name."""
    return next(operator for operator in OPERATORS.values() if name in operator.shapes)


def tasks(args):
    for name in args.shapes or shapes():
        for dtype in args.dtypes:
            yield f"{name} {dtype}", partial(rows_of, operator_of(name), name, dtype, args.repeats, args.baselines)


def rows_of(operator, name, dtype, repeats, chosen):
    row = {"operator": operator.name, "shape": name, "dtype": dtype}
    problem = operator.problem(operator.shapes[name], dtype)
    return [row | measured for measured in measure(problem, operator.compared_with(chosen), repeats)]


def tables(rows):
    for name, operator in OPERATORS.items():
        if own := [row for row in rows if row["operator"] == name]:
            dtypes = list(dict.fromkeys(row["dtype"] for row in own))
            own.sort(key=lambda row: (dtypes.index(row["dtype"]), PASSES.index(row["pass"])))
            yield f"## {name}\n\n{table_set(operator, own)}"


def table_set(operator, rows):
    everyone = list(operator.implementations)

    def table(names, cell, title=str):
        head = ["shape", "type", "pass", *map(title, names)]
        body = ([row["shape"], row["dtype"], row["pass"], *(cell(row, name) for name in names)] for row in rows)
        return markdown([head, *body])

    def to_jax_dcn(row, name):
        return ratio(row, "jax_dcn", name) if name in operator.lower_bounds else ratio(row, name, "jax_dcn")

    def titled(name):
        return f"{'time' if name in operator.lower_bounds else 'speed'} / {name}"

    named = dict.fromkeys(row["shape"] for row in rows)
    return "\n\n".join(
        [
            list_named({name: operator.shapes[name] for name in named}),
            paragraph(RATIOS.format(lower_bounds=LOWER_BOUNDS if operator.lower_bounds else "")),
            table(everyone[1:], to_jax_dcn, titled),
            *list_reasons(rows, everyone),
            TIMES,
            table(everyone, milliseconds),
            paragraph(MEMORY + "".join(text for name, text in MEMORY_OF_OTHERS.items() if name in everyone)),
            table(everyone, mebibytes),
        ]
    )
