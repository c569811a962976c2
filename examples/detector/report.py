"""The table of results."""

import numpy as np

from .evaluate import SIZE_LIMITS

LEGEND = (
    "Scores in percent on validation scenes; ms per step is the median wall time of the training step, data apart.\n"
    f"Objects by the square root of their area: small below {SIZE_LIMITS['medium'][0]} pixels, large from "
    f"{SIZE_LIMITS['large'][0]} on.\n"
    "Dilation is the mean distance of neighbouring samples at their centres, in cells of 8 pixels."
)
SCORES = ("AP", "AP50", *(f"AP {size}" for size in SIZE_LIMITS))


def markdown_table(results: list[dict]) -> str:
    """One row a variant, the mean over its seeds; with several seeds a score is followed by ± its standard deviation.

    Scores are in percent; the effective dilation is the mean over the last stage's layers, at the centres of objects.
    """
    columns = ["variant", *SCORES, "parameters", "ms per step", *(f"dilation {size}" for size in SIZE_LIMITS)]
    rows = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for variant in dict.fromkeys(result["variant"] for result in results):
        runs = [result for result in results if result["variant"] == variant]
        dilations = [[np.mean(run["dilations"][size]) for run in runs] for size in SIZE_LIMITS]
        rows.append(
            [
                variant,
                *(_spread([100 * run[score] for run in runs], 1) for score in SCORES),
                f"{runs[0]['parameters']:,}",
                f"{np.mean([run['ms per step'] for run in runs]):.0f}",
                *(_spread(values, 2) for values in dilations),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))} |\n" for row in rows)


def _spread(values, digits):
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"
