"""Pictures of a training: the curves of its losses and scores, and the images with most mistakes."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .coco import Dataset, open_image
from .loop import Run
from .objects import draw_box
from .precision import mistakes

SMOOTHED = 50  # steps of the moving mean
LOWEST_SCORE = 0.4  # of objects that are drawn, or count as wrong
ROWS, COLUMNS = 2, 4
FOUND, WRONG, MISSED = "lime", "red", "orange"


def draw_curves(path: Path, run: Run, names: Sequence[str]) -> None:
    """Writes a picture of the loss of each step, with its moving mean, and of these scores by the number of steps."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps, losses = run.log.column("step"), run.losses
    left.plot(steps, losses, linewidth=0.4, alpha=0.4, color="tab:blue")
    if width := min(SMOOTHED, len(losses)):  # none if the log is lost
        mean = np.convolve(losses, np.ones(width) / width, mode="valid")
        left.plot(steps[width - 1 :], mean, color="tab:blue")
    left.set(xlabel="step", ylabel="loss", yscale="log")
    for name in names:
        steps = [int(step) for step in run.scores]
        right.plot(steps, [100 * scores[name] for scores in run.scores.values()], marker="o", label=name)
    right.set(xlabel="step", ylabel="AP in percent", ylim=(0, 100))
    if names:
        right.legend()
    figure.savefig(path, dpi=110)


def draw_mistakes(path: Path, dataset: Dataset, results: list[dict[str, Any]]) -> None:
    """Writes a picture of the images with the most mistakes; without one, deletes it.

    results: as of `average_precision`, with "bbox".
    """
    worst = mistakes(dataset.annotations, results, LOWEST_SCORE)
    path.unlink(missing_ok=True)
    if not worst:
        return
    figure = Figure(figsize=(4 * COLUMNS, 4.2 * ROWS))
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.92, wspace=0.03, hspace=0.08)
    axes = figure.subplots(ROWS, COLUMNS, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, (image, (missed, wrong)) in zip(axes, islice(worst.items(), ROWS * COLUMNS), strict=False):
        pixels = np.asarray(open_image(dataset, image))
        ax.imshow(pixels)
        found = [one for one in results if one["image_id"] == image and one["score"] >= LOWEST_SCORE]
        of_colours = ((FOUND, found), (MISSED, missed), (WRONG, wrong))  # the last ones on top
        for colour, one in ((colour, one) for colour, listed in of_colours for one in listed):
            x, y, width, height = one["bbox"]
            score = f" {one['score']:.2f}" if "score" in one else ""
            name = dataset.annotations.cats[one["category_id"]]["name"]
            draw_box(ax, np.array([x, y, x + width, y + height]) - 0.5, colour, name + score, size=7)
        ax.set(xlim=(-0.5, pixels.shape[1] - 0.5), ylim=(pixels.shape[0] - 0.5, -0.5))
        name = dataset.annotations.imgs[image]["file_name"][-40:]
        ax.set_title(f"{name}: {len(missed)} missed, {len(wrong)} wrong", fontsize=9, parse_math=False)
    figure.suptitle(
        f"The images with the most mistakes: {MISSED} objects are missed, {WRONG} ones are wrong, and {FOUND} ones are "
        f"right (score from {LOWEST_SCORE}, IoU from 0.5)"
    )
    figure.savefig(path, dpi=80)
