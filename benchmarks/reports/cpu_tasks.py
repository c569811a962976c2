"""Tables of how well the tasks of the fused CPU kernels occupy threads."""

from benchmarks.measurements.cpu_tasks import BATCHES, DTYPES, FORWARD, MEASURED, NAMES, PASSES, THREADS, simulate
from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.reports.formatting import markdown, paragraph

ABOUT = (
    "**The figures for more than two threads are simulated.** They are speedups over one thread, with the tiles and "
    "the tasks into which the package divides a call. The simulation gives the next tile, or the next task of the "
    "gradients, to the thread that is free first. The cost is the number of pixels times the channels of "
    "the task. A task waits where it adds to the gradient of an offset after another "
    "task. All threads are equally fast: memory bandwidth, shared caches, clock rates, packing the weight and adding "
    "up the parts of its gradient are left out. So the figures show what the division of the work allows, and not "
    "what a processor reaches."
)
ABOUT_MEASURED = (
    "Programs of the public functions, in one process with one processor and one with two, which take turns. The "
    "speedup is the median of the ratios of their times. It includes packing and adding up."
)
NOTATION = (
    '"Tasks": how many there are, and after a slash how many of them may run at a time if that is fewer. "im2col": the '
    "fused kernels do not run, and XLA divides most of the work."
)


def sections(measured):
    """`measured`: by shape, type and pass."""
    yield paragraph(ABOUT)
    yield "\n".join(f"- {name}: {SHAPES[name]._replace(batch='batch')!s}" for name in NAMES)
    for pass_ in PASSES:
        tasks = "tiles" if pass_ == FORWARD else "tasks"
        yield f"## {pass_.capitalize()}, simulated\n\n{table(pass_, tasks)}"
    yield paragraph(NOTATION)
    if measured:
        yield f"## Two threads, measured\n\n{paragraph(ABOUT_MEASURED)}\n\n{measured_table(measured)}"


def table(pass_, tasks):
    rows = [["shape", "type", "batch", tasks, *(f"{n} threads" for n in THREADS[1:])]]
    for name in NAMES:
        for dtype in DTYPES:
            for batch in BATCHES:
                simulated = simulate(SHAPES[name]._replace(batch=batch), dtype, pass_)
                rows.append([name, dtype, str(batch), *cells(simulated)])
    return markdown(rows)


def cells(simulated):
    if simulated is None:
        return ["im2col", *["-"] * len(THREADS[1:])]
    limit = f" / {simulated.slots}" if simulated.slots < simulated.tasks else ""
    speedups = zip(THREADS, simulated.speedups, strict=True)
    return [f"{simulated.tasks}{limit}", *(f"{speedup:.2f}" for threads, speedup in speedups if threads > 1)]


def measured_table(measured):
    rows = [["shape", "type", "batch", "pass", "one thread, ms", "speedup measured", "simulated"]]
    for (name, dtype, pass_), result in measured.items():
        shape = MEASURED[name]
        (simulated,) = simulate(shape, dtype, pass_, [2]).speedups
        figures = [f"{result.seconds * 1e3:.1f}", f"{result.speedup:.2f}", f"{simulated:.2f}"]
        rows.append([name, dtype, str(shape.batch), pass_, *figures])
    return markdown(rows)
