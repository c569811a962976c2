"""Train plain and deformable R-FCN, compare them in tables and draw the sampling locations of their bins.

python -m examples.rfcn                  # plain and deformable, one seed
python -m examples.rfcn --seeds 3 --variants plain deformable-convolution deformable-pooling deformable
python -m examples.rfcn --resume         # continue a run that was interrupted
"""

from collections.abc import Sequence
from pathlib import Path

import jax

from examples.digits_library import compare, report, scenes
from examples.digits_library.pictures import draw_detections

from .losses import loss
from .model import RFCN, detect
from .pictures import draw_bins
from .sampling import moves

# Whether the convolutions of the last stage, and the pooling, are deformable.
VARIANTS = {
    "plain": (False, False),
    "deformable-convolution": (True, False),
    "deformable-pooling": (False, True),
    "deformable": (True, True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    defaults = {"steps": 1600, "out": Path("out/rfcn"), "variants": ["plain", "deformable"]}
    options = compare.parse(__doc__, tuple(VARIANTS), defaults, arguments)
    models = {name: RFCN(len(scenes.CLASSES), *VARIANTS[name]) for name in options.variants}
    results, params, found, pictured = compare.compare(models, compare.Method(loss, detect), options)
    if jax.process_index() > 0:
        return
    compare.write_results(results, f"{report.markdown_table(results)}\n{two_by_two(results)}", options)
    draw_detections(options.out / "detections.png", pictured, found)
    if "deformable" in params:
        bins = jax.device_get(moves(models["deformable"], params["deformable"], pictured.images))
        draw_bins(options.out / "bins.png", pictured, bins)
    print(f"Tables and pictures are in {options.out}.")


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
