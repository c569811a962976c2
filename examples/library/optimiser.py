"""The optimiser of a recipe: rates by group of parameters, clipping, and the moving average of the variables."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

import jax_dcn

from .recipe import Group, Recipe

MOMENTUM = 0.9


def labels(recipe: Recipe, params: Any) -> Any:
    """The group of each parameter: "frozen", or one of `group_rates`.

    Offsets in a backbone are offsets, as long as they are not frozen.
    """

    def group(path, label):
        *modules, _ = names = [entry.key for entry in path]
        if "/".join(names).startswith(recipe.frozen):
            return "frozen"
        if label == "offset" or not {*recipe.position_names}.isdisjoint(modules):
            return "offset"
        return "backbone" if names[0] == "backbone" else "default"

    return jax.tree_util.tree_map_with_path(group, jax_dcn.offset_labels(params))


def rate(recipe: Recipe, group: Group = "default") -> optax.Schedule:
    """The learning rate of a group of parameters in a step."""
    warmup = max(recipe.warmup, 1)
    growth = optax.linear_schedule(1 / warmup if recipe.warmup_from is None else recipe.warmup_from, 1, warmup)
    falls = optax.piecewise_constant_schedule(
        recipe.group_rates[group], {round(fraction * recipe.steps): 0.1 for fraction in recipe.decays}
    )
    cosine = optax.cosine_decay_schedule(1.0, max(recipe.steps - recipe.warmup, 1))

    def at(step):
        found = growth(step) * falls(step)
        return found * cosine(jnp.maximum(step - recipe.warmup, 0)) if recipe.cosine else found

    return at


def described_rates(recipe: Recipe, params: Any) -> str:
    """The learning rates of the groups of these parameters at their peak in words."""
    groups = {*jax.tree.leaves(labels(recipe, params))}
    found = [f"{group} {rate:.3g}" for group, rate in recipe.group_rates.items() if group in groups]
    return f"Peak learning rates: {', '.join(found)}"


def make_optimiser(recipe: Recipe, params: Any) -> optax.GradientTransformation:
    """The optimiser of parameters with these names, which clips the norm of all gradients together first.

    Those that are frozen stay what they are, and do not count in the norm. The others have a rule for each rate and
    weight decay, whose parameters are one vector: a rule for each array would make the program of a step half as long
    again.
    """

    def name(group, decays):
        return f"{group}, decays" if decays and group != "frozen" else group

    def name_of(path, group):
        return name(group, recipe.norm_decay or path[-1].key not in ("bias", "scale"))

    names = jax.tree_util.tree_map_with_path(name_of, labels(recipe, params))
    present = {*jax.tree.leaves(names)}
    rules = {
        name(group, decays): _rule(recipe, rate(recipe, group), recipe.weight_decay * decays)
        for group in recipe.group_rates
        for decays in (False, True)
        if name(group, decays) in present
    }
    of_vectors = optax.chain(
        optax.clip_by_global_norm(recipe.clip_norm), optax.partition(rules, {name: name for name in rules})
    )
    return _in_vectors(of_vectors, names)


def _rule(recipe, rate, decay):
    """The rule of parameters with a rate and a weight decay."""
    if recipe.rule == "adamw":
        return optax.adamw(rate, weight_decay=decay)
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, MOMENTUM))


def _in_vectors(of_vectors, names):
    """A transformation of arrays, from one of a vector for each of their names. Those that are frozen are in none."""

    def packed(tree):
        """The vectors by name, and the functions that make arrays of them again."""
        members = {}
        jax.tree.map(lambda name, leaf: members.setdefault(name, []).append(leaf), names, tree)
        pairs = {name: ravel_pytree(leaves) for name, leaves in members.items() if name != "frozen"}
        return tuple({name: pair[index] for name, pair in pairs.items()} for index in (0, 1))

    def update(gradients, state, params):
        vectors, unpack = packed(gradients)
        moved, state = of_vectors.update(vectors, state, packed(params)[0])
        found = {name: iter(unpack[name](vector)) for name, vector in moved.items()}

        def update_of(name, gradient):
            return next(found[name]) if name in found else jnp.zeros_like(gradient)

        return jax.tree.map(update_of, names, gradients), state

    return optax.GradientTransformation(lambda params: of_vectors.init(packed(params)[0]), update)


def moved_average(recipe: Recipe, average: Any, variables: Any, step: jax.Array) -> Any:
    """The moving average after a step, whose decay grows with the steps, as in RT-DETR."""
    decay = recipe.ema * (1 - jnp.exp(-(step + 1) / max(recipe.ema_warmup, 1)))
    return optax.incremental_update(variables, average, 1 - decay)
