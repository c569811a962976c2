"""Pictures of the sampling locations of deformable layers.

The axes of a picture are in pixels of the given image, as in `imshow`. Without an image they are in pixels of the
layer's input.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._types import Pair
from jax_dcn.viz.drawing import TROUBLE, axes, canvas, cross, highlight, in_picture, make_room, mark, outline
from jax_dcn.viz.locations import Floats, Layer, bin_locations, sampling_locations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ARROWS, FEWEST_ARROWS = 24, 6  # along an axis
WEIGHTS = {"cmap": "plasma", "edgecolors": "black", "linewidths": 0.7, "zorder": 3}


def plot_sampling(
    layers: Layer | Sequence[Layer],
    position: tuple[int, int],
    *,
    image: ArrayLike | None = None,
    offset_group: int | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws the sampling locations of one layer, or of several stacked layers, for one output position.

    Dots are samples. Their colour is their weight, the product of the masks on the way, from 0 to 1 or to the largest
    weight. Squares are the locations that a plain convolution samples, and the cross is the output position. Samples
    outside the image, which read nothing, are red crosses: the legend counts all of them, and those within half an
    image of it are drawn.

    Args:
      layers, position, offset_group: as `sampling_locations` takes them.
      image: [height, width] or [height, width, 3 or 4], of any size: the image that the first layer's input was
        computed from. Floats outside [0, 1] are scaled to that range.
      ax: the Axes to draw on. None creates a figure with a legend and a colour bar. Otherwise add them with
        ``ax.legend()`` and ``ax.figure.colorbar(ax.collections[0], ax=ax)``; if several Axes share a bar, pass the same
        range to ``ax.collections[0].set_clim`` of each.

    Returns:
      The Axes.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: as `sampling_locations`.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import Layer, plot_sampling
      >>> layer = Layer(np.random.default_rng(0).normal(size=(16, 16, 18)), image_size=(16, 16), kernel_size=3)
      >>> ax = plot_sampling([layer, layer], (8, 8))
      >>> len(ax.collections[0].get_offsets())
      81
    """
    stack = [layers] if isinstance(layers, Layer) else list(layers)
    samples = sampling_locations(stack, position, offset_group=offset_group)
    plain = sampling_locations([layer.undeformed() for layer in stack], position, offset_group=0).locations
    centre: Floats = np.asarray(position, np.float64)
    for layer in reversed(stack):
        centre = layer.centre(centre)

    new, ax = ax is None, axes(ax)
    scale = canvas(ax, image, stack[0].image_size)
    lost = samples.locations[~samples.inside]
    make_room(ax, lost, scale)
    cross(ax, centre, scale, "output position")
    plain = np.unique(plain[np.isfinite(plain).all(1)], axis=0)
    mark(ax, plain, scale, "s", color="white", markerfacecolor="none", markersize=6, label="plain convolution")
    x, y = in_picture(samples.locations[samples.inside], scale)
    size = 46 if len(samples.weights) <= 9 else 20
    weights = samples.weights[samples.inside]
    colours: dict[str, Any] = {"c": weights, "vmin": 0, "vmax": np.fmax.reduce(weights, initial=1), **WEIGHTS}
    dots = ax.scatter(x, y, s=size, label="deformable convolution", **colours)
    if len(lost):
        mark(ax, lost, scale, "x", color=TROUBLE, markersize=6, label=f"outside: {len(lost)} of {len(samples.inside)}")
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
    """Draws the offsets of a layer as arrows, from all output positions, or from some if arrows would overlap.

    An arrow shows the offset, or the mean offset if several taps or groups are drawn. The colour of the arrow and its
    dot is the length of the offset, or the mean length. Where taps move apart in all directions, dots are therefore
    bright and arrows short. Positions with offsets that are not finite are red crosses.

    Args:
      layer: a layer for one image.
      tap: the index of a kernel tap, row by row; None means all.
      offset_group: None means all.
      image, ax: as in `plot_sampling`.

    Returns:
      The Axes.

    Raises:
      ImportError: matplotlib is not installed.
      TypeError, ValueError: the layer has several images, or no such tap or group.

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
    # An arrow for several taps starts at the centre of the kernel.
    start = layer.undeformed().locations[:, :, 0, taps][every].mean(-2)
    offset, finite = offset[every], finite[every]
    start, offset, broken = start[finite], offset[finite], start[~finite]

    new, ax = ax is None, axes(ax)
    scale = canvas(ax, image, layer.image_size)
    x, y = in_picture(start, scale)
    arrow = offset.mean(1) * scale
    style: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "cmap": "viridis", "width": 0.004}
    length = np.linalg.norm(offset, axis=-1).mean(-1)
    arrows = ax.quiver(x, y, arrow[:, 1], arrow[:, 0], length, **style)
    ax.scatter(x, y, c=length, s=9, cmap="viridis")
    if len(broken):
        mark(ax, broken, scale, "x", color=TROUBLE, markersize=6, label="not finite")
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
    """Draws how offsets shift the bins of a region.

    The points of a bin have the same colour. Dotted outlines are the bins without offsets, and arrows show how each bin
    is shifted.

    Args:
      roi: [5]: image index, x1, y1, x2, y2, as `deform_psroi_pool` takes it.
      offset: [part_size, part_size, 2·classes], or None.
      output_size, spatial_scale, sample_per_part, trans_std: as for the operator.
      class_index: the class whose offsets are drawn; 0 without offsets.
      image: the input image; the region is in its pixels.
      ax: as in `plot_sampling`.

    Returns:
      The Axes, in pixels of the input image.

    Raises:
      ImportError: matplotlib is not installed.
      TypeError, ValueError: as `bin_locations`; also for several regions or an unknown class.

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
    spatial_scale = _validation.scale("spatial_scale", spatial_scale)
    offsets = None if offset is None else np.asarray(offset)[None]

    def of_bins(offset: ArrayLike | None, sample_per_part: Pair) -> Floats:
        scaled = {"spatial_scale": spatial_scale, "trans_std": trans_std}
        return bin_locations(roi[None], offset, output_size=output_size, sample_per_part=sample_per_part, **scaled)[0]

    moved, still = of_bins(offsets, sample_per_part), of_bins(None, sample_per_part)[:, :, 0]
    moved = moved[:, :, _validation.index("class_index", class_index, moved.shape[2])]
    halves = of_bins(None, 2)[:, :, 0]  # the second point of a bin is half a bin from the first
    first, side = halves[:, :, 0, 0], 2 * (halves[0, 0, 1, 1] - halves[0, 0, 0, 0])
    scale = np.full(2, 1 / spatial_scale)

    ax = axes(ax)
    canvas(ax, image)
    highlight(ax, first[0, 0], side * moved.shape[:2], scale)
    for number, (row, column) in enumerate(np.ndindex(*moved.shape[:2])):
        colour = f"C{number % 10}"
        ax.plot(*outline(first[row, column], side, scale), color=colour, linewidth=1.2, linestyle=":")
        points = moved[row, column].reshape(-1, 2)
        x, y = in_picture(np.stack([still[row, column].mean((0, 1)), points.mean(0)]), scale)
        if np.isfinite([x, y]).all():
            ax.annotate("", (x[1], y[1]), (x[0], y[0]), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.8})
        ax.scatter(*in_picture(points, scale), color=colour, s=16, edgecolors="black", linewidths=0.5, zorder=3)
    return ax


def plot_dilation(table: Mapping[str, Mapping[str, ArrayLike]], *, ax: "Axes | None" = None) -> "Axes":
    """Draws the effective dilation by layer and object size: means, and bars of one standard deviation.

    Args:
      table: for each layer and size class, one number or several, as `dilation_table` returns them.
      ax: as in `plot_sampling`, but always with a legend.

    Returns:
      The Axes.

    Raises:
      ImportError: matplotlib is not installed.

    Example:
      >>> from jax_dcn.viz import plot_dilation
      >>> ax = plot_dilation({"conv1": {"small": [1.0, 1.2], "large": 1.9}, "conv2": {"small": 0.9, "large": 2.4}})
      >>> [text.get_text() for text in ax.get_legend().get_texts()]
      ['small', 'large']
    """
    ax = axes(ax)
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
    """Draws the lengths of the offsets of each layer, and how many samples are outside the image: why a model diverges.

    A line spans the 1st to the 99th percentile of the lengths and a bar the 25th to the 75th; a dot is the median and a
    cross the maximum. A black tick marks the longer side of the layer's input: longer offsets always leave the image.
    The text on the right is the fraction outside from `offset_statistics`, in red if it is too large.

    Args:
      layers: layers for any number of images, under any names.
      most_outside: larger fractions of samples outside the image are red.
      ax: as in `plot_sampling`.

    Returns:
      The Axes.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: ``layers`` is empty.

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
    new, ax = ax is None, axes(ax)
    for row, layer in enumerate(layers.values()):
        statistics = layer.statistics()
        lengths = np.linalg.norm(layer.offset, axis=-1)
        if (lengths := lengths[np.isfinite(lengths)]).size:
            low, first, middle, third, high, longest = np.percentile(lengths, [1, 25, 50, 75, 99, 100])
            ax.plot([low, high], [row, row], color="C0", linewidth=1.5)
            ax.plot([first, third], [row, row], color="C0", linewidth=8, alpha=0.6, solid_capstyle="butt")
            ax.plot(middle, row, "o", color="C0", markeredgecolor="white")
            ax.plot(longest, row, "x", color="C0")
        label = f"{statistics['outside']:.1%} outside"
        if statistics["not_finite"]:
            label += f",\n{statistics['not_finite']} not finite"
        colour = TROUBLE if statistics["not_finite"] or statistics["outside"] > most_outside else "black"
        ax.text(1.02, row, label, color=colour, va="center", transform=ax.get_yaxis_transform())
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


def _spaced(layer: Layer, arrows: Floats) -> slice:
    """The output positions along an axis whose arrows [n, 2] do not overlap."""
    room = np.quantile(np.linalg.norm(arrows, axis=-1), 0.9) / 2 / min(layer.geometry.strides) if len(arrows) else 0
    fewest, most = (-(-max(layer.output_size) // number) for number in (MOST_ARROWS, FEWEST_ARROWS))
    step = int(np.clip(np.ceil(room), fewest, most))
    return slice(step // 2, None, step)
