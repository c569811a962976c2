"""`find_peaks`, against its definition in numpy and SciPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from jax import export

import jax_dcn

find_peaks = jax.jit(jax_dcn.find_peaks, static_argnums=1, static_argnames=("radius", "rounds", "border", "min_score"))


def numpy_peaks(scores, count, radius=1, rounds=0, border=0, min_score=-math.inf):
    """The positions of the peaks, by the definition."""

    def largest(array, outside):
        return scipy.ndimage.maximum_filter(array, 2 * radius + 1, mode="constant", cval=outside)

    removed, peaks = np.isnan(scores), np.zeros(scores.shape, bool)
    for _ in range(rounds + 1):
        left = np.where(removed, -math.inf, scores)
        peaks |= (left > -math.inf) & (left >= largest(left, -math.inf))
        removed |= largest(peaks, False)
    is_inside = np.zeros_like(peaks)
    is_inside[border : len(scores) - border, border : scores.shape[1] - border] = True
    found = np.argwhere(peaks & is_inside & (scores >= min_score)).tolist()
    return sorted(found, key=lambda at: (-scores[*at], *at))[:count]


def check(scores, count, **options):
    scores = np.asarray(scores)
    positions, best, valid = map(np.asarray, find_peaks(scores, count, **options))
    assert positions.dtype == np.int32 and best.dtype == scores.dtype
    assert positions.shape == (count, 2) and best.shape == valid.shape == (count,)
    num_found = valid.sum()
    assert valid[:num_found].all() and not positions[num_found:].any() and not best[num_found:].any()
    expected = numpy_peaks(scores.astype(np.float64), count, **options)
    assert positions[:num_found].tolist() == expected
    np.testing.assert_array_equal(best[:num_found], [scores[*at] for at in expected])
    return expected


def random_map(seed=0, shape=(17, 23)):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tied_map():
    """Few different scores, so that there are plateaus of all shapes."""
    return np.random.default_rng(1).integers(-2, 3, (14, 15)).astype(np.float32)


def special_map():
    scores = random_map(2)
    scores[::3, ::4] = math.nan
    scores[1::5, 2::3] = math.inf
    scores[8:, 12:] = -math.inf
    return scores


MAPS = {
    "random": random_map(),
    "tied": tied_map(),
    "special": special_map(),
    "equal": np.zeros((3, 4), np.float32),
    "only NaN": np.full((3, 4), np.nan, np.float32),
    "a row": random_map(3, (1, 30)),
    "no pixels": random_map(4, (4, 0)),
}
OPTIONS = [
    {},
    {"radius": 2, "rounds": 2},
    {"radius": 1, "rounds": 3, "border": 1},
    {"radius": 40},
    {"radius": 3, "rounds": 1, "min_score": 0.0},
    {"border": 2, "min_score": -0.5},
    {"border": 9},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_a_loop_in_numpy_finds_the_same(name, options):
    expected = check(MAPS[name], 1000, **options)
    if name == "random":
        check(MAPS[name], 3, **options)
        assert bool(expected) == (options != {"border": 9})


def test_plateaus_and_rounds_by_hand():
    scores = np.float32([[5, 5, 4, 3, 2, 1, 0]])
    assert check(scores, 9) == [[0, 0], [0, 1]]
    assert check(scores, 9, rounds=1) == [[0, 0], [0, 1], [0, 3]]
    assert check(scores, 9, rounds=2) == [[0, 0], [0, 1], [0, 3], [0, 5]]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_dtypes(dtype):
    check(jnp.asarray(random_map(), dtype), 30, radius=2, rounds=2)


def test_transformations():
    scores = np.stack([random_map(seed) for seed in range(6)])

    def find(scores):
        return jax_dcn.find_peaks(scores, 20, radius=2, rounds=1)

    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *map(find, scores))
    for function in (find, jax.jit(find), jax.vmap(find), jax.vmap(jax.vmap(find))):
        found = function(scores.reshape(2, 3, 17, 23))
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.reshape(a.shape)), found, expected)


def test_gradients_flow_to_the_peaks():
    scores = MAPS["special"]
    positions, _, valid = jax_dcn.find_peaks(scores, 4)
    gradient = np.array(jax.grad(lambda scores: jax_dcn.find_peaks(scores, 4)[1] @ jnp.arange(1.0, 5))(scores))
    assert valid.all()
    np.testing.assert_array_equal(gradient[*positions.T], [1, 2, 3, 4])
    gradient[*positions.T] = 0
    assert not gradient.any()


def test_symbolic_sizes():
    scores = random_map()
    (spec,) = export.symbolic_args_specs((scores,), "h, w")
    exported = export.export(jax.jit(lambda scores: jax_dcn.find_peaks(scores, 30, rounds=1, border=1)))(spec)
    jax.tree.map(
        np.testing.assert_array_equal, exported.call(scores), jax_dcn.find_peaks(scores, 30, rounds=1, border=1)
    )
