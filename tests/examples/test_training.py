"""The trainer of all models: groups of parameters, rates, the optimiser, a step, and runs on several devices."""

import signal
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from examples.aliked.train import RECIPE as ALIKED
from examples.detr.recipes import RECIPES
from examples.library.checkpoints import StartError
from examples.library.devices import own_rows
from examples.library.loop import Options
from examples.library.optimiser import Layout, Packed, labels, make_optimiser, rate
from examples.library.recipe import Recipe
from examples.library.training import Task, first_state, train, train_step
from examples.rcnn.train import RECIPE as RCNN

pytestmark = pytest.mark.platforms("cpu")

DEFORMABLE_DETR = RECIPES["deformable_detr"]


def tree(*paths, leaf="kernel"):
    """Parameters of one number each, by the names of their modules."""
    found = {}
    for path in paths:
        place = found
        for name in path.split("/"):
            place = place.setdefault(name, {})
        place[leaf] = jnp.ones(1)
    return found


GROUPS = {
    RCNN: {
        "frozen": "backbone/conv1 backbone/layer1_0/conv1",
        "backbone": "backbone/layer2_0/conv2",
        "offset": "backbone/layer2_0/conv2/conv_offset",
        "default": "neck/layer1_0",
    },
    DEFORMABLE_DETR: {
        "frozen": "backbone/bn1",
        "backbone": "backbone/layer3_0/conv1",
        "offset": "encoder/sampling_offsets reference_points",
        "default": "decoder/fc1",
    },
    RECIPES["d_fine"]: {"backbone": "backbone/layer1_0/conv1", "offset": "decoder/sampling_offsets"},
    ALIKED: {"default": "block1/conv1"},
}


def test_groups_of_parameters():
    for recipe, groups in GROUPS.items():
        for group, paths in groups.items():
            assert {*jax.tree.leaves(labels(recipe, tree(*paths.split())))} == {group}, paths


@pytest.mark.parametrize(
    ("recipe", "rates"),
    [
        (replace(RCNN, steps=90, batch_size=16, warmup=10), {0: 2e-5, 10: 0.02, 59: 0.02, 60: 0.002, 83: 2e-4}),
        (replace(RCNN, steps=90, batch_size=4, warmup=0), {1: 0.005}),
        (Recipe(100, learning_rate=1.0, warmup=10, decays=(0.8,)), {0: 0.1, 9: 0.91, 10: 1, 79: 1, 80: 0.1, 99: 0.1}),
        (replace(ALIKED, steps=9), {0: 1e-4, 8: 1e-4}),
        (replace(DEFORMABLE_DETR, steps=50), {0: 2e-4, 39: 2e-4, 40: 2e-5}),
    ],
)
def test_rates(recipe, rates):
    assert_allclose([rate(recipe)(step) for step in rates], [*rates.values()], rtol=2e-5)
    assert_allclose(rate(replace(recipe, backbone_rate=0.5), "backbone")(1), rate(recipe)(1) / 2, rtol=1e-6)


def test_a_rate_that_falls_along_a_cosine():
    usual = optax.warmup_cosine_decay_schedule(0, 0.1, 5, 40)
    found = rate(Recipe(40, learning_rate=0.1, warmup=5, warmup_from=0.0, cosine=True))
    assert_allclose([found(step) for step in range(41)], [usual(step) for step in range(41)], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_the_optimiser(rule):
    """Each group has its rate, and normalisations and biases no decay. Frozen gradients do not count in the norm."""
    recipe = Recipe(
        9, learning_rate=1.0, warmup=0, offset_rate=0.5, backbone_rate=0.1, weight_decay=0.1, clip_norm=0.5, rule=rule
    )
    recipe = replace(recipe, frozen=("backbone/layer1_",))
    kernels = tree("backbone/layer1_0", "backbone/layer2_0", "x/conv_offset", "x/fc")
    params = kernels | {"norm": {"scale": jnp.ones(1), "bias": jnp.ones(1)}}
    slopes = jax.tree.map(lambda leaf: 0.2 * leaf, params)
    slopes["backbone"]["layer1_0"]["kernel"] *= jnp.inf

    def updates(recipe, factor=1):
        layout = Layout.of(recipe, params)
        given, vectors = (
            layout.pack(tree).vectors for tree in (jax.tree.map(lambda leaf: factor * leaf, slopes), params)
        )
        optimiser = make_optimiser(recipe, layout.rules)
        updates, _ = optimiser.update(given, optimiser.init(vectors), vectors)
        zeros = [jnp.zeros_like(leaf) for leaf in layout.pack(params).frozen]
        return jax.tree.map(lambda leaf: leaf.item(), layout.unpack(Packed(updates, zeros)))

    step, found = {"adamw": 1.0, "sgd": 0.2}[rule], updates(recipe)
    assert_allclose(found["backbone"]["layer2_0"]["kernel"], -0.1 * (step + 0.1), rtol=1e-4)
    assert_allclose(found["x"]["conv_offset"]["kernel"], -0.5 * (step + 0.1), rtol=1e-4)
    assert_allclose(found["x"]["fc"]["kernel"], -step - 0.1, rtol=1e-4)
    assert_allclose([*found["norm"].values()], -step, rtol=1e-4)
    assert_allclose([*updates(replace(recipe, norm_decay=True))["norm"].values()], -step - 0.1, rtol=1e-4)
    if rule == "sgd":  # five gradients of 1, of which each becomes a part of 0.5
        assert_allclose(updates(recipe, 5)["x"]["fc"]["kernel"], -0.5 / 5**0.5 - 0.1, rtol=1e-4)


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_the_optimiser_is_that_of_optax(rule):
    """Over steps whose gradients are clipped and steps whose are not."""
    recipe = Recipe(8, learning_rate=0.1, warmup=3, decays=(0.5,), weight_decay=0.1, rule=rule)
    usual = {
        "adamw": optax.adamw(rate(recipe), weight_decay=0.1),
        "sgd": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(rate(recipe), 0.9)),
    }[rule]
    random = np.random.default_rng(0)
    params, *steps = (
        {name: {"kernel": np.float32(size * random.normal(size=(3, 2)))} for name in ("a", "backbone", "conv_offset")}
        for size in (1, 0.1, 1, 9, 0.1, 1, 9)
    )

    def trained(optimiser, pack=lambda tree: tree):
        found, state = pack(params), optimiser.init(pack(params))
        for gradients in map(pack, steps):
            updates, state = optimiser.update(gradients, state, found)
            found = optax.apply_updates(found, updates)
        return found

    expected = trained(optax.chain(optax.clip_by_global_norm(1.0), usual))
    layout = Layout.of(recipe, params)
    found = trained(make_optimiser(recipe, layout.rules), lambda tree: layout.pack(tree).vectors)
    jax.tree.map(partial(assert_allclose, rtol=1e-5), layout.unpack(Packed(found, [])), expected)


def noisy(variables, batch, key):
    """A loss with what a step may get wrong: parts, keys, and statistics, which sum up what each part has seen."""
    x = variables["params"]["x"]
    after = {"sum": variables["batch_stats"]["sum"] + batch.sum()}
    return {"a": (x * batch).mean(), "b": x**2, "noise": jax.random.uniform(key)}, after


FIRST = {"params": {"x": jnp.float32(2)}, "batch_stats": {"sum": jnp.float32(0)}}
SGD = Recipe(6, batch_size=8, rule="sgd", warmup=0, learning_rate=0.1, weight_decay=0.0, clip_norm=1e9)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_step(parts):
    """Gradients and losses are means over the parts of a batch, each of which sees what the one before handed on."""
    recipe = replace(SGD, accumulate=parts, ema=0.5, ema_warmup=0)
    batches = np.arange(16, dtype=np.float32).reshape(2, 8)
    state, first = train_step(noisy, recipe, first_state(recipe, jax.tree.map(jnp.copy, FIRST)), batches[0])
    assert {name: float(first[name]) for name in ("a", "b")} == {"a": 7, "b": 4}
    assert_allclose(first["loss"], first["a"] + first["b"] + first["noise"], rtol=1e-6)
    assert_allclose(first["rate"], 0.1)
    x = 2 - 0.1 * (3.5 + 4)
    assert_allclose(state.variables["params"]["x"], x, rtol=1e-6)
    assert float(state.variables["batch_stats"]["sum"]) == 28
    decay = 0.5 * (1 - np.exp(-1))
    assert_allclose(state.best["params"]["x"], decay * 2 + (1 - decay) * x, rtol=1e-6)
    assert_allclose(state.best["batch_stats"]["sum"], (1 - decay) * 28, rtol=1e-6)
    state, second = train_step(noisy, recipe, state, batches[1])
    assert first["noise"] != second["noise"] and int(state.step) == 2
    keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), part) for part in range(parts)]
    assert_allclose(second["noise"], np.mean([jax.random.uniform(key) for key in keys]), rtol=1e-6)


def batches(steps, signal_at=None):
    for step in steps:
        if step == signal_at:
            signal.raise_signal(signal.SIGTERM)
        yield np.random.default_rng(step).normal(size=8).astype(np.float32)[own_rows(8)]


def trained(folder, recipe, existing="refuse", devices=1, load=batches):
    options = Options(existing, devices=jax.devices()[:devices])
    return train(Task(recipe, jax.tree.map(jnp.copy, FIRST), noisy, load), folder, options)


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_a_run_goes_on_exactly(rule, tmp_path):
    """All of its state is saved: moments of the optimiser, schedules, statistics, and the moving average."""
    recipe = replace(SGD, rule=rule, warmup=3, ema=0.9, weight_decay=0.1)
    whole = trained(tmp_path / "whole", recipe)
    with pytest.raises(SystemExit, match=r"Interrupted after step 4, which is saved"):
        trained(tmp_path / "parts", recipe, load=partial(batches, signal_at=3))
    found = trained(tmp_path / "parts", recipe, "resume")
    assert found.losses == whole.losses
    jax.tree.map(assert_array_equal, found.state, whole.state)
    jax.tree.map(assert_array_equal, found.state.best, whole.state.best)


def test_another_division_of_each_batch(tmp_path, capsys):
    """A run goes on with other devices and parts if the whole batch has the same size."""
    whole = trained(tmp_path / "whole", SGD, devices=4)
    with pytest.raises(SystemExit, match="after step 4"):
        trained(tmp_path / "parts", SGD, devices=4, load=partial(batches, signal_at=3))
    found = trained(tmp_path / "parts", replace(SGD, accumulate=2), "resume", devices=2)
    assert "accumulate was 1 until step 4, and is 2 from there on.\n" in capsys.readouterr().out
    for name in ("a", "b"):
        assert_allclose(found.log.column(name), whole.log.column(name), rtol=1e-6, atol=1e-7)
    with pytest.raises(StartError, match="batch_size must be a multiple of 4 devices times accumulate=4, got 8"):
        trained(tmp_path / "parts", replace(SGD, accumulate=4), "resume", devices=4)
