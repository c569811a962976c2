"""Plots of the operators compared with their baselines."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks import operators
from benchmarks.baselines import PASSES
from benchmarks.reports.formatting import median

COLOURS = {
    "jax_dcn": "#d62728",
    "im2col path": "#8c564b",
    "XLA convolution": "black",
    "oneDNN convolution": "#e377c2",
    "bare loop": "#bcbd22",
    "pure JAX": "#1f77b4",
    "torchvision": "#ff7f0e",
    "PyTorch": "#ff7f0e",
    "onnxruntime": "#2ca02c",
    "reference": "#9467bd",
}
MARKERS = dict(zip(COLOURS, "|*DPhs^^vo", strict=True))


def draw(rows, stem):
    """Draws a plot for each operator that has rows, to `stem` followed by its name."""
    for name in operators.OPERATORS:
        if own := [row for row in rows if row["operator"] == name and "jax_dcn" in row["seconds"]]:
            figure_of(own).savefig(stem.with_name(f"{stem.name}-{name}.png"), dpi=110)


def figure_of(rows):
    """A panel for each type and pass: for each shape, the time of each implementation relative to jax_dcn."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    counts = [len({row["shape"] for row in rows if row["dtype"] == dtype}) for dtype in dtypes]
    figure = Figure(figsize=(11, 1.6 + sum(0.8 + 0.27 * count for count in counts)), layout="constrained")
    panels = figure.subplots(
        len(dtypes),
        2,
        sharex="col",
        sharey="row",
        squeeze=False,
        gridspec_kw={"height_ratios": [1 + n for n in counts]},
    )
    drawn = {}
    for line, dtype in zip(panels, dtypes, strict=True):
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        names = [shape for shape in shapes if any(row["shape"] == shape for row in of_dtype)]
        for panel, pass_ in zip(line, PASSES, strict=True):
            for row in of_dtype:
                if row["pass"] == pass_:
                    drawn |= mark(panel, names.index(row["shape"]), row)
            panel.axvline(1, color=COLOURS["jax_dcn"], linewidth=1.5, zorder=1)
            panel.set(xscale="log", title=f"{pass_}, {dtype}", ylim=(len(names) - 0.5, -0.5))
            panel.set_yticks(range(len(names)), names)
            panel.grid(alpha=0.4)
            panel.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.tick_params(labelbottom=True)
    for panel in panels[-1]:
        panel.set_xlabel("time relative to jax_dcn (right: slower)")
    order = [name for name in COLOURS if name in drawn]
    columns = -(-len(order) // 2) if len(order) > 6 else len(order)
    figure.legend([drawn[name] for name in order], order, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def mark(panel, height, row):
    """Draws the implementations of a row, and returns the marks by name."""
    return {
        name: panel.scatter(
            *(median(row, name) / median(row, "jax_dcn"), height),
            s=40,
            color=COLOURS[name],
            marker=MARKERS[name],
            zorder=3,
        )
        for name in row["seconds"]
    }
