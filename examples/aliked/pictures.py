"""Draws the matches of two photographs, the score maps, and where the network samples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from examples.library.files import replaced
from jax_dcn import viz

from .images import Picture
from .lightglue import Matches
from .model import STRIDE, Found

SHOWN = 300  # matches
DESCRIBED = 12  # keypoints whose sampling locations are drawn


def draw(
    path: Path, pictures: Sequence[Picture], found: Sequence[Found], matches: Matches, offsets: Sequence[np.ndarray]
) -> None:
    """Writes the picture to a file.

    found: of each photograph, as a batch of one image. offsets: those of the last block's convolutions for the first
    photograph, [rows, columns, 18] each.
    """
    figure = Figure(figsize=(12, 14), layout="constrained")
    axes = figure.subplot_mosaic([["matches"] * 2, ["first", "second"], ["block", "descriptors"]])
    chosen = np.flatnonzero(matches.indices >= 0)
    chosen = chosen[np.argsort(-matches.scores[chosen])]
    draw_matches(axes["matches"], pictures, found, matches, chosen[:SHOWN])
    axes["matches"].set_title(f"{len(chosen)} matches")
    for name, one in zip(("first", "second"), found, strict=True):
        axes[name].imshow(np.sqrt(one.score_map[0]), "magma")  # most scores are close to zero
        axes[name].set_title(f"scores of the {name} photograph")
    valid = np.flatnonzero(found[0].points.valid[0])
    best = chosen[:DESCRIBED] if len(chosen) else valid[:DESCRIBED]
    positions = found[0].points.positions[0, best]
    size = np.array(pictures[0].pixels.shape[1::-1])
    x, y = ((positions[0] if len(best) else size / 2) // STRIDE).astype(int)
    layers = [viz.Layer(one, image_size=one.shape[:2], kernel_size=3) for one in offsets]
    viz.plot_sampling(layers, (y, x), image=pictures[0].pixels, ax=axes["block"])
    axes["block"].set_title(f"samples of the last block at {'the best keypoint' if len(best) else 'the centre'}")
    draw_samples(axes["descriptors"], pictures[0].pixels, positions, found[0].offsets[0, best])
    for one in axes.values():
        one.set(xticks=[], yticks=[])
    with replaced(path) as file:
        figure.savefig(file, dpi=100)


def draw_matches(
    axes: Axes, pictures: Sequence[Picture], found: Sequence[Found], matches: Matches, chosen: np.ndarray
) -> None:
    """Both photographs, side by side, and lines between the chosen keypoints of the first and their partners."""
    height = max(len(one.pixels) for one in pictures)
    sides = [np.pad(one.pixels, ((0, height - len(one.pixels)), (0, 0), (0, 0))) for one in pictures]
    axes.imshow(np.concatenate(sides, 1))
    ends = [found[0].points.positions[0, chosen], found[1].points.positions[0, matches.indices[chosen]]]
    ends[1] = ends[1] + [pictures[0].pixels.shape[1], 0]
    lines = LineCollection(list(np.stack(ends, 1)), cmap="viridis", linewidths=0.7)
    lines.set_array(matches.scores[chosen])
    axes.add_collection(lines)


def draw_samples(axes: Axes, pixels: np.ndarray, positions: np.ndarray, offsets: np.ndarray) -> None:
    """The sampling locations of descriptors at positions [n, 2], with offsets [n, samples, 2]."""
    samples = positions[:, None] + offsets
    starts = np.broadcast_to(positions[:, None], samples.shape)
    axes.imshow(pixels)
    axes.add_collection(
        LineCollection(list(np.stack([starts, samples], 2).reshape(-1, 2, 2)), colors="w", linewidths=0.5)
    )
    axes.scatter(*samples.reshape(-1, 2).T, s=4, color="tab:orange", label="samples")
    axes.scatter(*positions.T, s=20, marker="+", color="tab:red", label="keypoints")
    axes.set(xlim=(-0.5, pixels.shape[1] - 0.5), ylim=(pixels.shape[0] - 0.5, -0.5))
    axes.set_title(f"samples of the descriptors of the best {len(positions)} keypoints")
    axes.legend(loc="lower right")
