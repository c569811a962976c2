"""What all pictures share: axes, the image behind, and markers in its pixels."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jax_dcn.viz.locations import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TROUBLE = "#d62728"


def axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('drawing needs matplotlib: pip install "jax_dcn[viz]"') from error
    return pyplot.subplots(layout="constrained")[1]


def canvas(ax: "Axes", image: ArrayLike | None, input_size: tuple[int, int] | None = None) -> Floats:
    """Draws the image, or an outline of the input's size, and returns the size of an input pixel in it."""
    scale = np.ones(2)
    ax.set_aspect("equal")
    ax.set_facecolor("dimgray")
    if image is not None:
        image = np.asarray(image)
        if image.dtype.kind == "f" and (image.min() < 0 or image.max() > 1):  # because imshow clips colours
            image = np.interp(image, (image.min(), image.max()), (0, 1))
        ax.imshow(image, cmap="gray" if image.ndim == 2 else None, interpolation="nearest")
        scale = np.divide(image.shape[:2], input_size or image.shape[:2])
    elif input_size is not None:
        height, width = input_size
        ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
        highlight(ax, np.full(2, -0.5), np.array(input_size), scale)
    else:
        ax.yaxis.set_inverted(True)
        return scale
    ax.autoscale(False)
    return scale


def make_room(ax: "Axes", locations: Floats, scale: Floats) -> None:
    """Widens the axes for locations up to half a picture outside."""
    limits = np.sort([ax.get_xlim(), ax.get_ylim()])  # [x and y, low and high]
    points = np.stack(in_picture(locations, scale), -1)
    reach = np.diff(limits)[:, 0] / 2
    near = points[((points > limits[:, 0] - reach) & (points < limits[:, 1] + reach)).all(-1)]
    if len(near):
        low, high = np.minimum(limits[:, 0], near.min(0) - 1), np.maximum(limits[:, 1], near.max(0) + 1)
        ax.set(xlim=(low[0], high[0]), ylim=(high[1], low[1]))


def mark(ax: "Axes", locations: Floats, scale: Floats, marker: str, **style: Any) -> None:
    ax.plot(*in_picture(locations, scale), marker, **style)


def cross(ax: "Axes", location: Floats, scale: Floats, label: str, **style: Any) -> None:
    mark(ax, location, scale, "+", color="black", markersize=15, markeredgewidth=4.5, **style)
    mark(ax, location, scale, "+", color="white", markersize=14, markeredgewidth=2.5, label=label, **style)


def highlight(ax: "Axes", corner: Floats, side: Floats, scale: Floats) -> None:
    for colour, width in (("black", 3.5), ("white", 1.8)):
        ax.plot(*outline(corner, side, scale), color=colour, linewidth=width)


def outline(corner: Floats, side: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """x and y of a closed line around a rectangle; corner and side as (y, x) in pixels of the input."""
    return in_picture(corner + side * np.array([[0, 0], [0, 1], [1, 1], [1, 0], [0, 0]]), scale)


def in_picture(locations: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """x and y of locations [..., 2] in a picture, where a pixel of the input is `scale` pixels."""
    y, x = np.moveaxis((locations + 0.5) * scale - 0.5, -1, 0)
    return x, y
