"""Train plain and deformable R-FCN, compare them in tables and draw the sampling locations of their bins.

python -m examples.rfcn                  # plain and deformable, one seed
python -m examples.rfcn --seeds 3 --variants plain deformable-convolution deformable-pooling deformable
python -m examples.rfcn --resume         # continue a run that was interrupted
"""

from collections.abc import Sequence
from pathlib import Path

from examples.digits_library import compare, report, scenes

from .losses import loss
from .model import RFCN, detect
from .sampling import draw_bins

# Whether the convolutions of the last stage, and the pooling, are deformable.
VARIANTS = {
    "plain": (False, False),
    "deformable-convolution": (True, False),
    "deformable-pooling": (False, True),
    "deformable": (True, True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    example = compare.Example(
        __doc__,
        variants=tuple(VARIANTS),
        defaults={"steps": 1600, "out": Path("out/rfcn"), "variants": ["plain", "deformable"]},
        make=lambda variant: RFCN(len(scenes.CLASSES), *VARIANTS[variant]),
        loss=loss,
        detect=detect,
        table=lambda results: f"{report.markdown_table(results)}\n{two_by_two(results)}",
        draw=draw_bins,
    )
    compare.run(example, arguments)


def two_by_two(results: list[dict]) -> str:
    """AP for plain or deformable convolution and pooling: the mean over seeds ± its standard deviation, if several."""

    def cell(kinds):
        scores = [100 * result["AP"] for result in results if VARIANTS[result["variant"]] == kinds]
        return report.spread(scores, 1) if scores else ""

    rows = [["AP", "plain pooling", "deformable pooling"]]
    for kind in (False, True):
        name = "deformable convolution" if kind else "plain convolution"
        rows.append([name, cell((kind, False)), cell((kind, True))])
    return report.markdown(rows)


if __name__ == "__main__":
    main()
