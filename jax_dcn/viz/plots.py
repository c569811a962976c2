"""Where deformable layers sample, as pictures.

A picture's axes are in pixels of the image given, as `imshow` has them, or without one in pixels of the layer's input.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._types import Pair
from jax_dcn.viz.positions import Floats, Layer, bin_positions, sampling_positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ARROWS, FEWEST_ARROWS = 24, 6  # along an axis
TROUBLE = "#d62728"
WEIGHTS = {"cmap": "plasma", "edgecolors": "black", "linewidths": 0.7, "zorder": 3}


def plot_sampling(
    layers: Layer | Sequence[Layer],
    position: tuple[int, int],
    *,
    image: ArrayLike | None = None,
    offset_group: int | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws where one layer, or several stacked ones, look from one output position.

    Dots are samples, in the colour of their weights (the product of the masks on the way, from 0 to 1 or to the
    largest), squares where a plain convolution would sample, the cross where the output position lies. Samples that
    read nothing, as they lie outside the image, are red crosses, as far as they lie within half an image of it, and are
    counted in the legend.

    Args:
      layers, position, offset_group: as `sampling_positions` takes them.
      image: [height, width] or [height, width, 3 or 4], of any size: what the first layer's input was made from. If
        floats leave [0, 1], their range is drawn.
      ax: where to draw; None makes a new figure, with a legend and a colour bar. Otherwise ``ax.legend()`` and
        ``ax.figure.colorbar(ax.collections[0], ax=ax)`` make them; for one bar of several Axes give all
        ``ax.collections[0].set_clim`` the same range.

    Returns:
      The Axes.

    Raises:
      ImportError: there is no matplotlib.
      ValueError: as `sampling_positions`.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer, plot_sampling
      >>> layer = Layer(np.random.default_rng(0).normal(size=(16, 16, 18)), image_size=(16, 16), kernel_size=3)
      >>> ax = plot_sampling([layer, layer], (8, 8))
      >>> len(ax.collections[0].get_offsets())
      81
    """
    stack = [layers] if isinstance(layers, Layer) else list(layers)
    samples = sampling_positions(stack, position, offset_group=offset_group)
    plain = sampling_positions([layer.undeformed() for layer in stack], position, offset_group=0).positions
    centre: Floats = np.asarray(position, np.float64)
    for layer in reversed(stack):
        centre = layer.centre(centre)

    new, ax = ax is None, _axes(ax)
    scale = _canvas(ax, image, stack[0].image_size)
    lost = samples.positions[~samples.inside]
    _make_room(ax, lost, scale)
    _mark(ax, centre, scale, "+", color="black", markersize=15, markeredgewidth=4.5)
    _mark(ax, centre, scale, "+", color="white", markersize=14, markeredgewidth=2.5, label="output position")
    plain = np.unique(plain[np.isfinite(plain).all(1)], axis=0)
    _mark(ax, plain, scale, "s", color="white", markerfacecolor="none", markersize=6, label="plain convolution")
    x, y = _in_picture(samples.positions[samples.inside], scale)
    size = 46 if len(samples.weights) <= 9 else 20
    weights = samples.weights[samples.inside]
    colours: dict[str, Any] = {"c": weights, "vmin": 0, "vmax": np.fmax.reduce(weights, initial=1), **WEIGHTS}
    dots = ax.scatter(x, y, s=size, label="deformable convolution", **colours)
    if len(lost):
        _mark(ax, lost, scale, "x", color=TROUBLE, markersize=6, label=f"outside: {len(lost)} of {len(samples.inside)}")
    if new:
        dark: dict[str, Any] = {"facecolor": "dimgray", "labelcolor": "white"}
        ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, **dark)
        ax.figure.colorbar(dots, ax=ax, shrink=0.8, label="weight: product of the masks")
    return ax


def plot_offsets(
    layer: Layer,
    *,
    tap: int | None = None,
    offset_group: int | None = None,
    image: ArrayLike | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws the field of a layer's offsets: an arrow from every output position, or every n-th if many or long.

    An arrow leads from a dot as far as the offset, the mean of taps and groups if several are drawn; the colour of both
    is the length, the mean of their lengths. So where taps move apart, in all directions, dots are bright and arrows
    short. Positions with offsets that are not finite are red crosses.

    Args:
      layer: of one image.
      tap: number of a kernel tap, row by row; None means all.
      offset_group: None means all.
      image, ax: as in `plot_sampling`.

    Returns:
      The Axes.

    Raises:
      ImportError: there is no matplotlib.
      TypeError, ValueError: the layer has several images, or the tap or group is not its.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer, plot_offsets
      >>> layer = Layer(np.ones((16, 16, 18)), image_size=(16, 16), kernel_size=3)
      >>> ax = plot_offsets(layer, tap=0)
      >>> ax.collections[0].U.size
      256
    """
    if layer.offset.ndim != 5:
        raise ValueError(f"layer must be of one image, layer[i], got one of images {layer.offset.shape[:-5]}")
    groups, taps = (
        slice(None) if number is None else [_validation.index(name, number, count)]
        for name, number, count in zip(
            ("offset_group", "tap"), (offset_group, tap), layer.offset.shape[2:], strict=False
        )
    )
    offset = layer.offset[:, :, groups][:, :, :, taps].reshape(*layer.output_size, -1, 2)
    finite = np.asarray(np.isfinite(offset).all((-1, -2)))
    every = (_spaced(layer, offset[finite].mean(1)),) * 2
    # Without a tap of its own an arrow starts where the kernel's middle lies.
    start = layer.undeformed().positions[:, :, 0, taps][every].mean(-2)
    offset, finite = offset[every], finite[every]
    start, offset, broken = start[finite], offset[finite], start[~finite]

    new, ax = ax is None, _axes(ax)
    scale = _canvas(ax, image, layer.image_size)
    x, y = _in_picture(start, scale)
    arrow = offset.mean(1) * scale
    style: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "cmap": "viridis", "width": 0.004}
    length = np.linalg.norm(offset, axis=-1).mean(-1)
    arrows = ax.quiver(x, y, arrow[:, 1], arrow[:, 0], length, **style)
    ax.scatter(x, y, c=length, s=9, cmap="viridis")
    if len(broken):
        _mark(ax, broken, scale, "x", color=TROUBLE, markersize=6, label="not finite")
    if new:
        ax.figure.colorbar(arrows, ax=ax, shrink=0.8, label="mean length of offsets in pixels of the input")
    return ax


def plot_bins(
    roi: ArrayLike,
    offset: ArrayLike | None = None,
    *,
    output_size: Pair,
    spatial_scale: float = 1.0,
    sample_per_part: Pair = 4,
    trans_std: float = 0.1,
    class_index: int = 0,
    image: ArrayLike | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws where the bins of a region went.

    Each bin's points have its colour; dotted outlines are the bins without offsets, arrows lead from these to where
    they are.

    Args:
      roi: [5]: image index, x1, y1, x2, y2, as `deform_psroi_pool` takes it.
      offset: [part_size, part_size, 2·classes], or None.
      output_size, spatial_scale, sample_per_part, trans_std: the operator's.
      class_index: whose offsets to draw; 0 without offsets.
      image: the input image, in whose pixels the region is.
      ax: as in `plot_sampling`.

    Returns:
      The Axes, in pixels of the input image.

    Raises:
      ImportError: there is no matplotlib.
      TypeError, ValueError: as `bin_positions`, of several regions, of no such class, or of a scale of zero.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import plot_bins
      >>> ax = plot_bins(np.array([0, 0, 0, 63, 31]), np.ones((3, 3, 2)), output_size=3, spatial_scale=1 / 8)
      >>> len(ax.collections)  # the points of nine bins
      9
    """
    roi = np.asarray(roi)
    if roi.shape != (5,):
        raise ValueError(f"roi must be one region of shape (5,), got {roi.shape}")
    if _validation.number("spatial_scale", spatial_scale) == 0:
        raise ValueError("spatial_scale must not be zero, which leaves the picture no scale")
    offsets = None if offset is None else np.asarray(offset)[None]

    def of_bins(offset: ArrayLike | None, sample_per_part: Pair) -> Floats:
        scaled = {"spatial_scale": spatial_scale, "trans_std": trans_std}
        return bin_positions(roi[None], offset, output_size=output_size, sample_per_part=sample_per_part, **scaled)[0]

    moved, still = of_bins(offsets, sample_per_part), of_bins(None, sample_per_part)[:, :, 0]
    moved = moved[:, :, _validation.index("class_index", class_index, moved.shape[2])]
    halves = of_bins(None, 2)[:, :, 0]  # a bin's second point lies half the bin from the first
    first, side = halves[:, :, 0, 0], 2 * (halves[0, 0, 1, 1] - halves[0, 0, 0, 0])
    scale = np.full(2, 1 / spatial_scale)

    ax = _axes(ax)
    _canvas(ax, image)
    _highlight(ax, first[0, 0], side * moved.shape[:2], scale)
    for number, (row, column) in enumerate(np.ndindex(*moved.shape[:2])):
        colour = f"C{number % 10}"
        ax.plot(*_outline(first[row, column], side, scale), color=colour, linewidth=1.2, linestyle=":")
        points = moved[row, column].reshape(-1, 2)
        x, y = _in_picture(np.stack([still[row, column].mean((0, 1)), points.mean(0)]), scale)
        if np.isfinite([x, y]).all():
            ax.annotate("", (x[1], y[1]), (x[0], y[0]), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.8})
        ax.scatter(*_in_picture(points, scale), color=colour, s=16, edgecolors="black", linewidths=0.5, zorder=3)
    return ax


def plot_dilation(table: Mapping[str, Mapping[str, ArrayLike]], *, ax: "Axes | None" = None) -> "Axes":
    """Draws effective dilation by layer and by the size of objects: means, and bars of one standard deviation.

    Args:
      table: for every layer and class of sizes one number or several, as `dilation_table` has them.
      ax: as in `plot_sampling`, but with a legend in any case.

    Returns:
      The Axes.

    Raises:
      ImportError: there is no matplotlib.

    Example:
      >>> from jax_dcn.viz import plot_dilation
      >>> ax = plot_dilation({"conv1": {"small": [1.0, 1.2], "large": 1.9}, "conv2": {"small": 0.9, "large": 2.4}})
      >>> [text.get_text() for text in ax.get_legend().get_texts()]
      ['small', 'large']
    """
    ax = _axes(ax)
    sizes = list(dict.fromkeys(size for of_layer in table.values() for size in of_layer))
    for i, size in enumerate(sizes):
        values = {n: np.ravel(of_layer.get(size, ())) for n, of_layer in enumerate(table.values())}
        known = {n: several for n, several in values.items() if len(several)}
        x = np.array(list(known), float) + 0.12 * (i - (len(sizes) - 1) / 2)
        means, spreads = ([float(f(several)) for several in known.values()] for f in (np.mean, np.std))
        ax.errorbar(x, means, spreads, marker="o", capsize=3, elinewidth=1, label=size)
    ax.set_xticks(range(len(table)), list(table))
    ax.set_ylabel("effective dilation (pixels of the input)")
    ax.grid(axis="y", alpha=0.3)
    ax.legend(title="objects")
    return ax


def plot_offset_lengths(layers: Mapping[str, Layer], *, most_outside: float = 0.1, ax: "Axes | None" = None) -> "Axes":
    """Draws how long the offsets of every layer are, and says how many samples they have lost: why a model diverges.

    A line reaches from the 1st to the 99th percentile of the lengths, a bar from the 25th to the 75th, a dot lies at
    the median, a cross at the longest; a black tick marks the longer side of the layer's input, beyond which a sample
    is surely lost. To the right stands what `offset_statistics` says of the samples, red where they are too many.

    Args:
      layers: of any number of images, by any names.
      most_outside: more than this fraction of samples outside the image is red.
      ax: as in `plot_sampling`.

    Returns:
      The Axes.

    Raises:
      ImportError: there is no matplotlib.
      ValueError: there is no layer.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer, plot_offset_lengths
      >>> offset = np.random.default_rng(0).normal(size=(8, 8, 18))
      >>> layers = {f"conv{k}": Layer(10**k * offset, image_size=(8, 8), kernel_size=3) for k in range(3)}
      >>> ax = plot_offset_lengths(layers)
      >>> [text.get_text() for text in ax.texts]
      ['4.8% outside', '88.6% outside', '99.8% outside']
    """
    if not layers:
        raise ValueError("layers must be one or more, got none")
    new, ax = ax is None, _axes(ax)
    for row, layer in enumerate(layers.values()):
        statistics = layer.statistics()
        lengths = np.linalg.norm(layer.offset, axis=-1)
        if (lengths := lengths[np.isfinite(lengths)]).size:
            low, first, middle, third, high, longest = np.percentile(lengths, [1, 25, 50, 75, 99, 100])
            ax.plot([low, high], [row, row], color="C0", linewidth=1.5)
            ax.plot([first, third], [row, row], color="C0", linewidth=8, alpha=0.6, solid_capstyle="butt")
            ax.plot(middle, row, "o", color="C0", markeredgecolor="white")
            ax.plot(longest, row, "x", color="C0")
        told = f"{statistics['outside']:.1%} outside"
        if statistics["not_finite"]:
            told += f",\n{statistics['not_finite']} not finite"
        colour = TROUBLE if statistics["not_finite"] or statistics["outside"] > most_outside else "black"
        ax.text(1.02, row, told, color=colour, va="center", transform=ax.get_yaxis_transform())
    sides = [max(layer.image_size) for layer in layers.values()]
    style: dict[str, Any] = {"color": "black", "markersize": 16, "markeredgewidth": 2}
    ax.plot(sides, range(len(layers)), "|", label="side of the input", **style)
    ax.set_yticks(range(len(layers)), list(layers))
    ax.set_ylim(len(layers) - 0.5, -0.5)
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(left=0)
    ax.set_xlabel("length of offsets (pixels of the layer's input; linear up to 1)")
    ax.grid(axis="x", alpha=0.3)
    if new:
        ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside upper right", frameon=False)
    return ax


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('drawing needs matplotlib: pip install "jax_dcn[viz]"') from error
    return pyplot.subplots(layout="constrained")[1]


def _canvas(ax: "Axes", image: ArrayLike | None, input_size: tuple[int, int] | None = None) -> Floats:
    """Draws the image, or the outline of one of the input's size; returns its pixel's (height, width)."""
    scale = np.ones(2)
    ax.set_aspect("equal")
    ax.set_facecolor("dimgray")
    if image is not None:
        image = np.asarray(image)
        if image.dtype.kind == "f" and (image.min() < 0 or image.max() > 1):  # imshow would clip colours
            image = np.interp(image, (image.min(), image.max()), (0, 1))
        ax.imshow(image, cmap="gray" if image.ndim == 2 else None, interpolation="nearest")
        scale = np.divide(image.shape[:2], input_size or image.shape[:2])
    elif input_size is not None:
        height, width = input_size
        ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
        _highlight(ax, np.full(2, -0.5), np.array(input_size), scale)
    else:
        ax.yaxis.set_inverted(True)
        return scale
    ax.autoscale(False)
    return scale


def _spaced(layer: Layer, arrows: Floats) -> slice:
    """Which output positions along an axis leave room for arrows [n, 2] of such lengths."""
    room = np.quantile(np.linalg.norm(arrows, axis=-1), 0.9) / 2 / min(layer.geometry.strides) if len(arrows) else 0
    fewest, most = (-(-max(layer.output_size) // number) for number in (MOST_ARROWS, FEWEST_ARROWS))
    step = int(np.clip(np.ceil(room), fewest, most))
    return slice(step // 2, None, step)


def _make_room(ax: "Axes", positions: Floats, scale: Floats) -> None:
    """Widens the axes for positions that lie within half a picture of it."""
    limits = np.sort([ax.get_xlim(), ax.get_ylim()])  # [x and y, low and high]
    points = np.stack(_in_picture(positions, scale), -1)
    reach = np.diff(limits)[:, 0] / 2
    near = points[((points > limits[:, 0] - reach) & (points < limits[:, 1] + reach)).all(-1)]
    if len(near):
        low, high = np.minimum(limits[:, 0], near.min(0) - 1), np.maximum(limits[:, 1], near.max(0) + 1)
        ax.set(xlim=(low[0], high[0]), ylim=(high[1], low[1]))


def _mark(ax: "Axes", positions: Floats, scale: Floats, marker: str, **style: Any) -> None:
    ax.plot(*_in_picture(positions, scale), marker, **style)


def _highlight(ax: "Axes", corner: Floats, side: Floats, scale: Floats) -> None:
    for colour, width in (("black", 3.5), ("white", 1.8)):
        ax.plot(*_outline(corner, side, scale), color=colour, linewidth=width)


def _outline(corner: Floats, side: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """x and y of a closed line around a rectangle; corner and side as (y, x) in pixels of the input."""
    return _in_picture(corner + side * np.array([[0, 0], [0, 1], [1, 1], [1, 0], [0, 0]]), scale)


def _in_picture(positions: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """x and y of positions [..., 2] in a picture, where a pixel of the input is `scale` pixels."""
    y, x = np.moveaxis((positions + 0.5) * scale - 0.5, -1, 0)
    return x, y
