"""Tables of what a call costs besides its work."""

from benchmarks.measurements.dispatch import BACKENDS
from benchmarks.reports.formatting import markdown


def tables(rows):
    table = [["operator", "pass", "", "over the reference, µs", "jax_dcn, µs", "reference, µs"]]
    lines = []
    for row in rows:
        if "call" in row:
            over = f"**{round(row['over reference']['median'] * 1e6):+d}**"
            times = (microseconds(row["seconds"][name]) for name in BACKENDS)
            table.append([row["call"], row["pass"], row["how"], over, *times])
        else:
            ours, jax_ = row["import"]["jax_dcn"], row["import"]["jax"]
            lines.append(
                f"Importing jax_dcn takes {ours['median']:.2f} s ({ours['min']:.2f} to {ours['max']:.2f}) once jax is "
                f"imported, which takes {jax_['median']:.2f} s ({jax_['min']:.2f} to {jax_['max']:.2f})."
            )
    text = [
        "Calls with tiny operands on the CPU, which take turns and run in the calling thread: median (min to max).\n"
        "Over the reference: the median difference between successive calls of the two.",
        markdown(table),
    ]
    yield "\n\n".join(["## Dispatch", *(text if len(table) > 1 else []), *lines])


def microseconds(summary):
    return f"{summary['median'] * 1e6:.0f} ({summary['min'] * 1e6:.0f} to {summary['max'] * 1e6:.0f})"
