"""The optimiser of a recipe: rates by group of parameters, clipping, and the moving average of the variables."""

import math
import re
from collections import Counter
from collections.abc import Iterable
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


def rate(recipe: Recipe, group: Group = "default", factor: float = 1.0) -> optax.Schedule:
    """The learning rate of a group of parameters in a step, multiplied by a factor."""
    warmup = max(recipe.warmup, 1)
    growth = optax.linear_schedule(1 / warmup if recipe.warmup_from is None else recipe.warmup_from, 1, warmup)
    falls = optax.piecewise_constant_schedule(
        factor * recipe.group_rates[group], {round(fraction * recipe.steps): 0.1 for fraction in recipe.decays}
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
    parts = [f"; {factor:.3g} times that in {start}" for start, factor in recipe.factors]
    return f"Peak learning rates: {', '.join(found)}{''.join(parts)}"


class Rule(NamedTuple):
    """What parameters that are updated alike have in common. factor: of the rate of the group."""

    group: Group
    factor: float
    decays: bool

    @property
    def name(self) -> str:
        factor = "" if self.factor == 1 else f" * {self.factor:g}"
        return f"{self.group}{factor}{', decays' * self.decays}"


class Packed(NamedTuple):
    """Parameters: a vector for each rule of the optimiser, by its name, and those that are frozen as they are."""

    vectors: dict[str, jax.Array]
    frozen: list[jax.Array]


@dataclass(frozen=True)
class Layout:
    """Where parameters are in `Packed`. In a step, launches for each array would take longer than its update.

    rules: of each parameter, None if it is frozen.
    """

    tree: Any
    rules: tuple[Rule | None, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, recipe: Recipe, params: Any) -> "Layout":
        def rule_of(path, group):
            name = "/".join(entry.key for entry in path)
            factor = next((factor for start, factor in recipe.factors if name.startswith(start)), 1.0)
            decays = recipe.norm_decay or path[-1].key not in ("bias", "scale")
            decays = decays and not (recipe.undecayed and re.search(recipe.undecayed, name))
            return None if group == "frozen" else Rule(group, factor, decays)

        paths, tree = jax.tree_util.tree_flatten_with_path(params)
        groups = jax.tree.leaves(labels(recipe, params))
        rules = (rule_of(path, group) for (path, _), group in zip(paths, groups, strict=True))
        shapes, dtypes = zip(*((leaf.shape, leaf.dtype) for _, leaf in paths), strict=True)
        return cls(tree, tuple(rules), shapes, dtypes)

    def pack(self, params: Any) -> Packed:
        """The vectors of a tree of parameters, or of their gradients."""
        members: dict[str, list[jax.Array]] = {}
        frozen = []
        for rule, leaf in zip(self.rules, jax.tree.leaves(params), strict=True):
            (members.setdefault(rule.name, []) if rule else frozen).append(leaf)
        return Packed({name: jnp.concatenate([*map(jnp.ravel, leaves)]) for name, leaves in members.items()}, frozen)

    def unpack(self, packed: Packed) -> Any:
        """The tree of parameters again."""
        leaves, frozen, ends = [], iter(packed.frozen), Counter[str]()
        for rule, shape, dtype in zip(self.rules, self.shapes, self.dtypes, strict=True):
            if rule is None:
                leaves.append(next(frozen))
            else:
                begin, size = ends[rule.name], math.prod(shape)
                leaves.append(packed.vectors[rule.name][begin : begin + size].reshape(shape).astype(dtype))
                ends[rule.name] += size
        return jax.tree.unflatten(self.tree, leaves)


def make_optimiser(recipe: Recipe, rules: Iterable[Rule | None]) -> optax.GradientTransformation:
    """The optimiser of the vectors of these rules, which clips the norm of all gradients together first."""
    transformations = {
        rule.name: _rule(recipe, rate(recipe, rule.group, rule.factor), recipe.weight_decay * rule.decays)
        for rule in dict.fromkeys(rules)
        if rule is not None
    }
    return optax.chain(
        optax.clip_by_global_norm(recipe.clip_norm),
        optax.partition(transformations, {name: name for name in transformations}),
    )


def _rule(recipe, rate, decay):
    """The rule of parameters with a rate and a weight decay."""
    if recipe.rule == "adamw":
        return optax.adamw(rate, weight_decay=decay)
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, MOMENTUM))


def moved_average(recipe: Recipe, average: Any, new: Any, step: jax.Array) -> Any:
    """The moving average of arrays after a step, whose decay grows with the steps, as in RT-DETR."""
    decay = recipe.ema * (1 - jnp.exp(-(step + 1) / max(recipe.ema_warmup, 1)))
    return optax.incremental_update(new, average, 1 - decay)
