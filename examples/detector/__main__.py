"""Train anchor-free detectors with plain and deformable layers, compare them in a table and draw what they detect.

python -m examples.detector                            # all variants, one seed
python -m examples.detector --seeds 3 --steps 2400     # a longer comparison
python -m examples.detector --resume                   # continue a run that was interrupted
"""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from examples.digits_library import compare, report, scenes
from examples.digits_library.backbone import Operator
from examples.digits_library.evaluate import SIZE_LIMITS

from .losses import loss
from .model import Detector, detect
from .sampling import draw_sampling, mean_dilations


def table(results: list[dict]) -> str:
    """Scores and dilations of the variants."""
    return (
        f"{report.markdown_table(results, tuple(f'dilation {size}' for size in SIZE_LIMITS))}\n"
        "Dilation is the mean distance of neighbouring samples at their centres, in cells of 8 pixels."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    example = compare.Example(
        __doc__,
        variants=get_args(Operator),
        defaults={"steps": 1600, "out": Path("out/detector")},
        make=lambda variant: Detector(len(scenes.CLASSES), operator=variant),
        loss=loss,
        detect=detect,
        table=table,
        draw=draw_sampling,
        measure=mean_dilations,
    )
    compare.run(example, arguments)


if __name__ == "__main__":
    main()
