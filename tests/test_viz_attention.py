"""Where the queries of an attention look, compared with what the operator reads, and the contents of pictures."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jax_dcn
from jax_dcn import viz

colors = pytest.importorskip("matplotlib.colors")
pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.usefixtures("figures")]

LEVELS, POINTS = ((5, 8), (3, 2)), (2, 3)
QUERIES, HEADS, TAPS = 4, 3, 5
RANDOM = np.random.default_rng(0)
LOCATIONS = RANDOM.uniform(-0.3, 1.3, (QUERIES, HEADS, TAPS, 2)).astype(np.float32)
WEIGHTS = RANDOM.dirichlet(np.ones(TAPS), (QUERIES, HEADS)).astype(np.float32)
ARRAYS = {"spatial_shapes": LEVELS, "points": POINTS}


def coordinates():
    """A value whose channels are row, column, level and 1."""
    levels = [
        np.stack([*np.mgrid[:height, :width], np.full((height, width), k), np.ones((height, width))], -1)
        for k, (height, width) in enumerate(LEVELS)
    ]
    pixels = np.concatenate([level.reshape(-1, 4) for level in levels])
    return np.repeat(pixels[:, None], HEADS, 1).astype(np.float32)


def read_alone(locations, **options):
    """What each sample of one query reads alone, with a weight of one: its row, column and level, and 1."""
    one_tap = np.broadcast_to(np.eye(TAPS, dtype=np.float32)[:, None], (TAPS, HEADS, TAPS))
    same = np.broadcast_to(locations, (TAPS, HEADS, TAPS, 2))
    read = jax_dcn.multi_scale_deformable_attention(coordinates(), same, one_tap, **options)
    return np.reshape(read, (TAPS, HEADS, 4)).swapaxes(0, 1).reshape(-1, 4)


def test_samples_are_what_the_operator_reads():
    numbers_whole = 0
    for query in range(QUERIES):
        samples = viz.attention_samples(LOCATIONS, WEIGHTS, query, **ARRAYS)
        read = read_alone(LOCATIONS[query], **ARRAYS)
        assert_array_equal(samples.inside, read[:, 3] > 0)
        whole = ((samples.locations >= 0) & (samples.locations <= np.array(LEVELS)[samples.levels] - 1)).all(-1)
        numbers_whole += whole.sum()
        assert_allclose(read[whole, :2], samples.locations[whole], atol=1e-5)
        assert_array_equal(read[whole, 2], samples.levels[whole])
        assert_array_equal(samples.heads, np.repeat(np.arange(HEADS), TAPS))
        assert_allclose(samples.weights, WEIGHTS[query].ravel())
        assert_allclose(samples.fractions, LOCATIONS[query].reshape(-1, 2)[:, ::-1])
    assert 5 < numbers_whole < LOCATIONS.size / 2


def test_discrete_samples_are_what_the_operator_reads():
    locations, options = LOCATIONS[:1].copy(), ARRAYS | {"method": "discrete"}
    locations[0, 0, :2] = [[-3, 0], [1, 4]]
    samples = viz.attention_samples(locations, WEIGHTS[:1], 0, **options)
    assert_array_equal(samples.locations, read_alone(locations[0], **options)[:, :2])
    assert samples.inside.all()
    ax = viz.plot_attention(locations, WEIGHTS[:1], 0, **options)
    assert not any(text.startswith("outside") for text in legend(ax))
    first = samples.levels == 0
    assert {*map(tuple, samples.locations[first][:, ::-1])} <= {*map(tuple, drawn(ax)[0].round(6))}


def drawn(ax):
    """(x and y, areas, colours) of all dots."""
    dots = [dots for dots in ax.collections if len(dots.get_offsets())]
    places, areas, colours = (
        np.concatenate([getattr(of, f"get_{name}")() for of in dots]) for name in ("offsets", "sizes", "facecolors")
    )
    return places, areas, [colors.to_hex(colour) for colour in colours]


def legend(ax):
    return [text.get_text() for text in ax.figure.legends[0].get_texts()]


def test_picture():
    samples = viz.attention_samples(LOCATIONS, WEIGHTS, 0, **ARRAYS)
    image = np.zeros((50, 80))
    ax = viz.plot_attention(LOCATIONS, WEIGHTS, 0, **ARRAYS, image=image, reference_point=(0.5, 0.25))
    places, areas, colours = drawn(ax)
    assert len(places) == samples.inside.sum() < len(samples.inside)
    expected = samples.fractions[samples.inside][:, ::-1] * (80, 50) - 0.5
    assert_allclose(np.sort(places, 0), np.sort(expected, 0), atol=1e-4)
    # The largest weight has the largest dot, wherever it is drawn.
    largest = np.argmax(np.where(samples.inside, samples.weights, 0))
    x, y = places[np.argmax(areas)]
    assert_allclose((y, x), samples.fractions[largest] * (50, 80) - 0.5, atol=1e-4)
    assert len(set(colours)) == HEADS
    lost = f"outside: {(~samples.inside).sum()} of {HEADS * TAPS}"
    assert legend(ax) == ["head 0", "head 1", "head 2", "level 0", "level 1", lost, "reference point"]
    assert_allclose(ax.lines[-1].get_xydata(), [[39.5, 12]])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"query": 4}, "query must be an int from 0 to 3, got 4"),
        ({"head": 3}, "head must be an int from 0 to 2, got 3"),
        ({"level": -1}, "level must be an int from 0 to 1, got -1"),
        ({"points": None}, r"sampling_locations must be of one image, \[Q, M, L, P, 2\], got shape \(4, 3, 5, 2\)"),
        ({"sampling_locations": LOCATIONS[None]}, r"must be of one image, \[Q, M, sum\(points\), 2\]"),
        ({"points": (2, 2)}, "sampling_locations must have shape"),
        ({"attention_weights": WEIGHTS[..., :4]}, "attention_weights must have shape"),
        ({"reference_point": (0.5, 0.5, 0.5)}, r"reference_point must be \(x, y\) or a box .* got shape \(3,\)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_errors(changes, message):
    arguments = {"sampling_locations": LOCATIONS, "attention_weights": WEIGHTS, "query": 0, **ARRAYS}
    with pytest.raises(ValueError, match=message):
        viz.plot_attention(**arguments | changes)


def test_traced_arrays_are_refused():
    with pytest.raises(TypeError, match="attention_weights must be known, got traced"):
        jax.jit(lambda weights: viz.attention_samples(LOCATIONS, weights, 0, **ARRAYS))(WEIGHTS)
