"""Each operator compared with its baselines."""

from functools import partial

from benchmarks.measurements.aggregation import ATTENTION, DCNV3
from benchmarks.measurements.deform_conv import CONVOLUTION
from benchmarks.measurements.measure import measure
from benchmarks.measurements.roi_pool import PSROI_POOL, ROI_ALIGN

OPERATORS = {operator.name: operator for operator in (CONVOLUTION, PSROI_POOL, ROI_ALIGN, ATTENTION, DCNV3)}


def shapes():
    """The names of all shapes, the most important ones first, because a time limit cuts off the last ones."""
    first = [name for operator in OPERATORS.values() for name in list(operator.shapes)[:4]]
    return list(dict.fromkeys([*first, *(name for operator in OPERATORS.values() for name in operator.shapes)]))


def baselines():
    """The names of all baselines."""
    names = dict.fromkeys(name for operator in OPERATORS.values() for name in operator.implementations)
    return [name for name in names if name != "jax_dcn"]


def tasks(args):
    for name in args.shapes or shapes():
        for dtype in args.dtypes:
            operator = next(operator for operator in OPERATORS.values() if name in operator.shapes)
            yield f"{name} {dtype}", partial(rows_of, operator, name, dtype, args.repeats, args.baselines)


def rows_of(operator, name, dtype, repeats, chosen):
    row = {"operator": operator.name, "shape": name, "dtype": dtype}
    problem = operator.problem(operator.shapes[name], dtype)
    compared = {key: one for key, one in operator.implementations.items() if key in ("jax_dcn", *chosen)}
    return [row | measured for measured in measure(problem, compared, repeats)]
