"""The table of results."""

import numpy as np

from .evaluate import SIZE_LIMITS

LEGEND = (
    "Scores in percent on validation scenes; ms per step is the median wall time of the training step, data apart.\n"
    f"Objects by the square root of their area: small below {SIZE_LIMITS['medium'][0]} pixels, large from "
    f"{SIZE_LIMITS['large'][0]} on."
)
SCORES = ("AP", "AP50", "AP75", *(f"AP {size}" for size in SIZE_LIMITS))


def markdown_table(results: list[dict], measures: tuple[str, ...] = ()) -> str:
    """One row per variant: the mean over its seeds and, with several seeds, ± the standard deviation of the scores.

    A result has the keys "variant", "parameters" and "ms per step", those of `SCORES`, in [0, 1] and shown in percent,
    and the given `measures`.
    """
    rows = [["variant", *SCORES, "parameters", "ms per step", *measures]]
    for variant in dict.fromkeys(result["variant"] for result in results):
        runs = [result for result in results if result["variant"] == variant]
        rows.append(
            [
                variant,
                *(spread([100 * run[score] for run in runs], 1) for score in SCORES),
                f"{runs[0]['parameters']:,}",
                f"{np.mean([run['ms per step'] for run in runs]):.0f}",
                *(spread([run[measure] for run in runs], 2) for measure in measures),
            ]
        )
    return markdown(rows)


def markdown(rows: list[list[str]]) -> str:
    """A table whose first row is its head; all columns but the first contain numbers."""
    rows = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))} |\n" for row in rows)


def spread(values: list[float], digits: int) -> str:
    """The mean, and for several values ± their standard deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"
