"""Where the queries of a multi-scale deformable attention look, as numbers and as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from jax_dcn import _validation
from jax_dcn._operators.aggregation.arguments import canonicalize_attention
from jax_dcn._operators.aggregation.geometry import Pyramid, discrete_pixels, tap_levels
from jax_dcn.viz.drawing import TROUBLE, axes, canvas, cross, highlight, in_picture, make_room, mark
from jax_dcn.viz.locations import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The heads take these colours in turn: bright, as images are often dark, and none like the red of crosses.
COLOURS = ("#56b4e9", "#e69f00", "#2cbf8b", "#f0e442", "#e38ac0", "#5b7cff", "#a5e65a", "#cdb4ff")
MARKERS = "os^Dvp*hX"  # the levels take them in turn
LARGEST, SMALLEST = 160, 4  # areas of dots, in square points, for a query of up to CROWD samples
CROWD = 32


class AttentionSamples(NamedTuple):
    """The samples that a query reads, head by head.

    fractions: [n, 2] as (y, x), the sampling locations as fractions of the map; locations: [n, 2] as (y, x), in pixels
    of their level; weights, heads, levels: [n]; inside: [n], whether a sample reads its level, at least partly. With
    the method "discrete", locations are those of the pixels that are read; all are inside, as samples outside read the
    border.
    """

    fractions: Floats
    locations: Floats
    weights: Floats
    heads: NDArray[np.int_]
    levels: NDArray[np.int_]
    inside: NDArray[np.bool_]


def attention_samples(
    sampling_locations: ArrayLike,
    attention_weights: ArrayLike,
    query: int,
    *,
    spatial_shapes: Sequence[Sequence[int]],
    points: Sequence[int] | None = None,
    method: Literal["bilinear", "discrete"] = "bilinear",
) -> AttentionSamples:
    """The samples that one query of one image reads.

    Args:
      sampling_locations: [Q, M, L, P, 2], or with ``points`` [Q, M, sum(points), 2], as
        `multi_scale_deformable_attention` takes them, and as the layer returns them with ``return_sampling=True``.
      attention_weights: the same shape without the last dimension.
      query: the index of the query.
      spatial_shapes: the (H, W) of each level.
      points: how many of the taps sample each level. None means P on each.
      method: as for `multi_scale_deformable_attention`.

    Returns:
      `AttentionSamples`.

    Raises:
      TypeError, ValueError: the arguments do not fit together, are traced, or are those of several images.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import attention_samples
      >>> locations, weights = np.full((5, 8, 2, 4, 2), 0.5), np.full((5, 8, 2, 4), 1 / 8)
      >>> samples = attention_samples(locations, weights, 0, spatial_shapes=((8, 12), (4, 6)))
      >>> samples.locations.shape, samples.locations[0].tolist(), samples.locations[4].tolist()
      ((64, 2), [3.5, 5.5], [1.5, 2.5])
    """
    for name, array in (("sampling_locations", sampling_locations), ("attention_weights", attention_weights)):
        if isinstance(array, jax.core.Tracer):
            raise TypeError(f"{name} must be known, got traced: pass what the jitted function returns")
    dimensions = 5 if points is None else 4
    if np.ndim(sampling_locations) != dimensions:
        layout = "L, P" if points is None else "sum(points)"
        raise ValueError(
            f"sampling_locations must be of one image, [Q, M, {layout}, 2], got shape {np.shape(sampling_locations)}"
        )
    query = _validation.index("query", query, np.shape(sampling_locations)[0])
    one_location, one_weight = (
        np.asarray(array)[query : query + 1] for array in (sampling_locations, attention_weights)
    )
    pixels = sum(int(height) * int(width) for height, width in spatial_shapes)
    value = np.zeros((pixels, one_location.shape[1], 1), np.float32)
    operands, spec = canonicalize_attention(
        value, one_location, one_weight, spatial_shapes=spatial_shapes, points=points, method=method
    )
    assert isinstance(spec, Pyramid)
    heads, taps = one_location.shape[1], spec.taps

    of_level = np.repeat(np.arange(len(spec.levels)), [level.points for level in spec.levels])
    sizes = np.array([level[:2] for level in spec.levels])[np.tile(of_level, heads)]
    fractions = np.asarray(operands.locations, np.float64).reshape(heads * taps, 2)[:, ::-1]
    locations = fractions * sizes - 0.5
    if spec.discrete:
        levels = tap_levels(spec, operands.value)
        pixels_read = np.stack(discrete_pixels(operands.locations, levels), -1)
        locations = pixels_read.astype(np.float64).reshape(-1, 2)
    return AttentionSamples(
        fractions,
        locations,
        np.asarray(operands.weights, np.float64).ravel(),
        np.repeat(np.arange(heads), taps),
        np.tile(of_level, heads),
        ((locations > -1) & (locations < sizes)).all(-1),
    )


def plot_attention(
    sampling_locations: ArrayLike,
    attention_weights: ArrayLike,
    query: int,
    *,
    spatial_shapes: Sequence[Sequence[int]],
    points: Sequence[int] | None = None,
    method: Literal["bilinear", "discrete"] = "bilinear",
    reference_point: ArrayLike | None = None,
    head: int | None = None,
    level: int | None = None,
    image: ArrayLike | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws where a query looks: each head in its colour, each level with its marker, and each weight as an area.

    The largest dot is the largest weight of the query, also if only one head or level is drawn, so that pictures of one
    query can be compared. Samples outside their level, which read nothing, are red crosses: the legend counts all of
    them, and those within half an image of it are drawn.

    Args:
      sampling_locations, attention_weights, query, spatial_shapes, points, method: as `attention_samples` takes them.
      reference_point: (x, y), or a box (x and y of the centre, width, height), as fractions of the map; drawn in white.
      head, level: the index of one of them; None draws all.
      image: [height, width] or [height, width, 3 or 4], of any size: the image that the pyramid was computed from.
        Without it, the axes are in pixels of the first level.
      ax: the Axes to draw on. None creates a figure with a legend. Otherwise add one with ``ax.legend()``.

    Returns:
      The Axes.

    Raises:
      ImportError: matplotlib is not installed.
      TypeError, ValueError: as `attention_samples`; also for an unknown head or level.

    Example:
      >>> import numpy as np
      >>> from jax_dcn.viz import plot_attention
      >>> locations, weights = np.random.default_rng(0).uniform(size=(5, 8, 2, 4, 2)), np.full((5, 8, 2, 4), 1 / 8)
      >>> ax = plot_attention(locations, weights, 0, spatial_shapes=((8, 12), (4, 6)), reference_point=(0.5, 0.5))
      >>> [text.get_text() for text in ax.figure.legends[0].get_texts()][-3:]
      ['level 0', 'level 1', 'reference point']
    """
    samples = attention_samples(
        sampling_locations, attention_weights, query, spatial_shapes=spatial_shapes, points=points, method=method
    )
    heads, levels = (int(of.max()) + 1 for of in (samples.heads, samples.levels))
    shown = np.ones(len(samples.weights), bool)
    for name, number, of_samples, count in (
        ("head", head, samples.heads, heads),
        ("level", level, samples.levels, levels),
    ):
        if number is not None:
            shown &= of_samples == _validation.index(name, number, count)
    share = samples.weights / max(samples.weights.max(), np.finfo(float).tiny)
    largest = LARGEST * min(CROWD / len(share), 1) ** 0.5
    areas = SMALLEST + (largest - SMALLEST) * np.clip(share, 0, 1)

    new, ax = ax is None, axes(ax)
    first = np.array(spatial_shapes[0])
    scale = canvas(ax, image, (int(first[0]), int(first[1])))
    places = (samples.locations + 0.5) * (first / np.array(spatial_shapes)[samples.levels]) - 0.5
    lost = places[shown & ~samples.inside]
    make_room(ax, lost, scale)
    style: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.7, "zorder": 3}
    colours, markers = _in_turn(COLOURS, heads), _in_turn(MARKERS, levels)
    for one in np.unique(samples.levels[shown]):
        drawn = np.flatnonzero(shown & samples.inside & (samples.levels == one))
        drawn = drawn[np.argsort(-areas[drawn], kind="stable")]  # the largest first, so that they hide no others
        x, y = in_picture(places[drawn], scale)
        ax.scatter(x, y, s=areas[drawn], c=colours[samples.heads[drawn]], marker=markers[one], **style)
    for one in np.unique(samples.heads[shown]):
        ax.scatter([], [], s=60, color=colours[one], label=f"head {one}", **style)
    for one in np.unique(samples.levels[shown]):
        ax.scatter([], [], s=60, color="lightgray", marker=markers[one], label=f"level {one}", **style)
    if len(lost):
        mark(ax, lost, scale, "x", color=TROUBLE, markersize=6, label=f"outside: {len(lost)} of {shown.sum()}")
    if reference_point is not None:
        _draw_reference(ax, np.asarray(reference_point, np.float64), first, scale)
    if new:
        dark: dict[str, Any] = {"facecolor": "dimgray", "labelcolor": "white"}
        ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside right upper", **dark)
    return ax


def _in_turn(choices: Sequence[str], count: int) -> NDArray[np.str_]:
    return np.array([choices[i % len(choices)] for i in range(count)])


def _draw_reference(ax: "Axes", reference: Floats, size: NDArray[np.int_], scale: Floats) -> None:
    if reference.shape not in [(2,), (4,)]:
        raise ValueError(f"reference_point must be (x, y) or a box of four numbers, got shape {reference.shape}")
    centre = reference[1::-1] * size - 0.5
    if reference.shape == (4,):
        side = reference[:1:-1] * size
        highlight(ax, centre - side / 2, side, scale)
    cross(ax, centre, scale, "reference point", zorder=4)
