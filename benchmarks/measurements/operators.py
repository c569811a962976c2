"""Each operator compared with its alternatives."""

from functools import partial

from benchmarks.measurements import attention, dcnv3, deform_conv, deform_psroi_pool, roi_align
from benchmarks.measurements.measure import measure

OPERATORS = {operator.NAME: operator for operator in (deform_conv, deform_psroi_pool, roi_align, attention, dcnv3)}


def shapes():
    """All shapes, the most important ones first, because a time limit cuts off the last ones."""
    first = [name for operator in OPERATORS.values() for name in list(operator.SHAPES)[:4]]
    return list(dict.fromkeys([*first, *(name for operator in OPERATORS.values() for name in operator.SHAPES)]))


def tasks(args):
    for name in args.shapes or shapes():
        for dtype in args.dtypes:
            operator = next(operator for operator in OPERATORS.values() if name in operator.SHAPES)
            yield f"{name} {dtype}", partial(rows_of, operator, name, dtype, args.repeats, args.contenders)


def contenders():
    """The names of all."""
    return list(dict.fromkeys(name for operator in OPERATORS.values() for name in operator.CONTENDERS))


def rows_of(operator, name, dtype, repeats, chosen):
    row = {"operator": operator.NAME, "shape": name, "dtype": dtype}
    problem = operator.problem(operator.SHAPES[name], dtype)
    compared = {name: contender for name, contender in operator.CONTENDERS.items() if name in ("jax_dcn", *chosen)}
    return [row | measured for measured in measure(problem, compared, repeats)]
