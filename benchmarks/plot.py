"""Plots of the results: the operators compared with their baselines, and growth."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks import growth, operators
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


def draw(results, stem):
    """Draws the plots that the results suffice for, to `stem` followed by a name, and returns their paths."""
    figures = {name: operator_figure(name, results.get("operators", [])) for name in operators.OPERATORS}
    figures["growth"] = growth_figure(results.get("growth", []))
    paths = []
    for name, figure in figures.items():
        if figure:
            paths.append(stem.with_name(f"{stem.name}-{name}.png"))
            figure.savefig(paths[-1], dpi=110)
    return paths


def operator_figure(operator, rows):
    """A panel for each type and pass: for each shape, the time of each implementation relative to jax_dcn."""
    rows = [row for row in rows if row["operator"] == operator and "jax_dcn" in row["seconds"]]
    if not rows:
        return None
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


def growth_figure(rows):
    """One column per axis: time above, memory below, both passes in each panel."""
    axes = [name for name in growth.AXES if growth.series(rows, name, PASSES[0])]
    if not axes:
        return None
    figure = Figure(figsize=(4.2 * len(axes), 7.6), layout="constrained")
    panels = figure.subplots(2, len(axes), squeeze=False)
    drawn = {}
    for name, (time, memory) in zip(axes, panels.T, strict=True):
        axis = growth.AXES[name]
        for pass_, style in zip(PASSES, ("-", "--"), strict=True):
            own = growth.series(rows, name, pass_)
            for one in axis.implementations:
                for panel, cost in ((time, in_milliseconds), (memory, in_mebibytes)):
                    points = [(row["value"], y) for row in own if (y := cost(row, one))]
                    (line,) = panel.plot(
                        *(zip(*points, strict=True) if points else ((), ())),
                        style,
                        color=COLOURS[one],
                        marker="o",
                        markersize=3.5,
                    )
                    drawn[f"{one}, {pass_}"] = line
        time.set_title(axis.label, fontsize=10)
        for panel, label in ((time, "time, ms"), (memory, "memory, MiB")):
            panel.set(xscale="log", yscale="log", ylabel=label)
            panel.set_xticks(axis.values, map(str, axis.values))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.grid(alpha=0.4)
    figure.legend(drawn.values(), drawn, loc="outside upper center", ncols=3, frameon=False)
    return figure


def in_milliseconds(row, name):
    return 1e3 * (median(row, name) or 0)


def in_mebibytes(row, name):
    return (row["bytes"].get(name) or 0) / 2**20
