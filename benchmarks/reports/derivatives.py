"""Tables of the time and memory of derivatives of the deformable convolution."""

from benchmarks.measurements.derivatives import BATCHES, CLOCKS, SHAPES
from benchmarks.reports.formatting import digits, markdown, paragraph


def sections(memory, times):
    yield "\n".join(f"- {name}: {shape}" for name, shape in SHAPES.items())
    yield "## Time\n\n" + paragraph(
        "Milliseconds: the median of calls that take turns, with the smallest and the largest; and the ratio of the "
        "medians to that of the forward. Processor: of all threads together, which other work on the machine slows "
        "down less than the wall clock. Tangents are those of x, offset, weight and mask unless said otherwise; jvp "
        "includes the value. float32."
    )
    columns = [(name, clock) for name in times for clock in CLOCKS]
    programs = next(iter(times.values()))["wall"]
    yield markdown(
        [
            ["program", *(f"{name}, {clock}" for name, clock in columns)],
            *([program, *(time_cell(times[name][clock], program) for name, clock in columns)] for program in programs),
        ]
    )
    yield "## Memory\n\n" + paragraph(
        "MiB of temporary arrays, as XLA plans them; and of arguments and results of the Hessian-vector product, which "
        "takes operands, tangents and a cotangent."
    )
    yield markdown([["shape", "program", "by", *(f"batch {batch}" for batch in BATCHES)], *memory_rows(memory)])


def time_cell(seconds, program):
    middle, low, high = (digits(seconds[program][key] * 1e3) for key in ("median", "min", "max"))
    return f"{middle} ({low} to {high}), **{seconds[program]['median'] / seconds['forward']['median']:.2f}**"


def memory_rows(memory):
    for shape, by_backend in memory.items():
        for backend, programs in by_backend.items():
            for name, held in programs.items():
                yield [shape, name, backend, *(digits(temporary) for temporary, _ in held)]
        yield [shape, "Hessian-vector product", "its arguments and results", *(digits(others) for _, others in held)]
