"""The table of what the aggregation's CUDA kernels are estimated to cost."""

from benchmarks.reports.formatting import digits, markdown

CORNERS = 4000  # wavefronts per thousand taps: one for each corner


def table(rows):
    """`rows` as `aggregation_costs.measure` yields them."""
    head = [
        "shape",
        "GPU",
        "kernel",
        "registers",
        "issue",
        "L1",
        "larger / 4,000",
        "shuffles",
        "L2 bytes per tap",
        "ms",
    ]
    body = []
    for row in rows:
        clocks = row["clocks per thousand taps"]
        body.append(
            [
                row["shape"],
                f"{row['gpu']} ({row['architecture']})",
                row["kernel"].partition("<")[0].removesuffix("Kernel"),
                str(row["registers"]),
                *(f"{clocks[key]:,.0f}" for key in ("issue", "L1")),
                digits(max(clocks.values()) / CORNERS),
                f"{row['shuffles per thousand taps']:,.0f}",
                f"{row['bytes of the L2 cache per tap']:,.0f}",
                digits(row["milliseconds"]),
            ]
        )
    return markdown([head, *body])
