"""Curves of a training: its losses, and the average precision that evaluations found."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .loop import Run

SMOOTHED = 50  # steps of the moving mean


def draw(path: Path, run: Run, names: Sequence[str]) -> None:
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
    right.legend()
    figure.savefig(path, dpi=110)
