"""The optimiser of a recipe: rates by group of parameters, clipping, and the moving average of the variables."""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

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


class Packed(NamedTuple):
    """Parameters: a vector for each rule of the optimiser, and those that are frozen as they are."""

    vectors: dict[str, jax.Array]
    frozen: list[jax.Array]


@dataclass(frozen=True)
class Layout:
    """Where parameters are in `Packed`. In a step, launches for each array would take longer than its update.

    names: of the rule of each parameter, or "frozen".
    """

    tree: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, recipe: Recipe, params: Any) -> "Layout":
        """A rule for each rate and weight decay."""

        def name_of(path, group):
            return _rule_name(group, recipe.norm_decay or path[-1].key not in ("bias", "scale"))

        names = jax.tree_util.tree_map_with_path(name_of, labels(recipe, params))
        leaves, tree = jax.tree.flatten(params)
        return cls(tree, tuple(jax.tree.leaves(names)), tuple(leaf.shape for leaf in leaves))

    def pack(self, params: Any) -> Packed:
        """The vectors of a tree of parameters, or of their gradients."""
        members: dict[str, list[jax.Array]] = {name: [] for name in self.names}
        for name, leaf in zip(self.names, jax.tree.leaves(params), strict=True):
            members[name].append(leaf)
        frozen = members.pop("frozen", [])
        return Packed({name: jnp.concatenate([*map(jnp.ravel, leaves)]) for name, leaves in members.items()}, frozen)

    def unpack(self, packed: Packed) -> Any:
        """The tree of parameters again."""
        leaves, frozen, ends = [], iter(packed.frozen), Counter[str]()
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name == "frozen":
                leaves.append(next(frozen))
            else:
                begin, size = ends[name], math.prod(shape)
                leaves.append(packed.vectors[name][begin : begin + size].reshape(shape))
                ends[name] += size
        return jax.tree.unflatten(self.tree, leaves)


def make_optimiser(recipe: Recipe, names: Collection[str]) -> optax.GradientTransformation:
    """The optimiser of vectors of parameters with these names, which clips the norm of all gradients together first."""
    rules = {
        _rule_name(group, decays): _rule(recipe, rate(recipe, group), recipe.weight_decay * decays)
        for group in recipe.group_rates
        for decays in (False, True)
    }
    rules = {name: rule for name, rule in rules.items() if name in names and name != "frozen"}
    return optax.chain(
        optax.clip_by_global_norm(recipe.clip_norm), optax.partition(rules, {name: name for name in rules})
    )


def _rule_name(group, decays):
    return f"{group}, decays" if decays and group != "frozen" else group


def _rule(recipe, rate, decay):
    """The rule of parameters with a rate and a weight decay."""
    if recipe.rule == "adamw":
        return optax.adamw(rate, weight_decay=decay)
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, MOMENTUM))


def moved_average(recipe: Recipe, average: Any, new: Any, step: jax.Array) -> Any:
    """The moving average of arrays after a step, whose decay grows with the steps, as in RT-DETR."""
    decay = recipe.ema * (1 - jnp.exp(-(step + 1) / max(recipe.ema_warmup, 1)))
    return optax.incremental_update(new, average, 1 - decay)
