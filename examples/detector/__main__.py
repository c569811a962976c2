"""Train anchor-free detectors with plain and deformable layers, compare them in a table and draw what they detect.

python -m examples.detector                            # all variants, one seed
python -m examples.detector --seeds 3 --steps 2400     # a longer comparison
python -m examples.detector --resume                   # continue a run that was interrupted
"""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import jax

from examples.digits_library import compare, report, scenes
from examples.digits_library.backbone import Operator
from examples.digits_library.evaluate import SIZE_LIMITS
from examples.digits_library.pictures import draw_detections

from . import sampling
from .losses import loss
from .model import Detector, detect
from .pictures import draw_sampling

VARIANTS = get_args(Operator)
DILATIONS = tuple(f"dilation {size}" for size in SIZE_LIMITS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    options = compare.parse(__doc__, VARIANTS, {"steps": 1600, "out": Path("out/detector")}, arguments)
    models = {name: Detector(len(scenes.CLASSES), operator=name) for name in options.variants}
    method = compare.Method(loss, detect, sampling.mean_dilations)
    results, params, found, pictured = compare.compare(models, method, options)
    if jax.process_index() > 0:
        return
    text = (
        f"{report.markdown_table(results, DILATIONS)}\n"
        "Dilation is the mean distance of neighbouring samples at their centres, in cells of 8 pixels."
    )
    compare.write_results(results, text, options)
    draw_detections(options.out / "detections.png", pictured, found)
    if "deformable" in params:
        layers = sampling.deformable_layers(models["deformable"], params["deformable"], pictured.images)
        draw_sampling(options.out / "sampling.png", pictured, list(layers.values()))
    print(f"Table and pictures are in {options.out}.")


if __name__ == "__main__":
    main()
