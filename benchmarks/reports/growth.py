"""Tables of how time and memory grow with the work."""

from benchmarks.baselines import PASSES
from benchmarks.measurements import growth
from benchmarks.measurements.growth import series, slopes
from benchmarks.reports.formatting import list_reasons, markdown, mebibytes, median, milliseconds


def tables(rows):
    yield (
        "## Growth\n\nSlopes of time and memory on a log-log plot: 1 if the cost grows in proportion. "
        f"In brackets: the slope over the larger half of the values.\n\n{slope_table(rows)}"
    )
    for name, axis in growth.AXES.items():
        own = [row for pass_ in PASSES for row in series(rows, name, pass_)]
        if own:
            reasons = [*list_reasons(own, list(axis.implementations))]
            yield "\n\n".join([f"### {axis.label[0].upper()}{axis.label[1:]}", detail(own, axis), *reasons])


def slope_table(rows):
    table = [["growing", "pass", "implementation", "range", "time", "memory"]]
    for name, axis in growth.AXES.items():
        for pass_ in PASSES:
            own = series(rows, name, pass_)
            for one in axis.implementations if own else ():
                values = [row["value"] for row in own]
                time = slopes((row["value"], median(row, one)) for row in own)
                memory = slopes((row["value"], row["bytes"].get(one)) for row in own)
                span = f"{values[0]} to {values[-1]}"
                table.append([name, pass_, one, span, shown(time), shown(memory)])
    return markdown(table)


def shown(slopes):
    everything, half = ("-" if s is None else f"{round(s, 2) + 0:.2f}" for s in slopes)
    return f"{everything} ({half})"


def detail(rows, axis):
    head = [rows[0]["axis"], "pass", *(f"{name}, {unit}" for unit in ("ms", "MiB") for name in axis.implementations)]
    body = (
        [
            str(row["value"]),
            row["pass"],
            *(cell(row, n) for cell in (milliseconds, mebibytes) for n in axis.implementations),
        ]
        for row in rows
    )
    return markdown([head, *body])
