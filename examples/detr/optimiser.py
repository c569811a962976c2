"""How the authors train: AdamW with rates and decays by group of parameters, and a moving average of the weights."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from examples.resnet.model import FIRST_LAYERS

MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8  # of AdamW
Group = Literal["default", "backbone", "slow", "frozen"]


@dataclass(frozen=True)
class Recipe:
    """A training. The defaults are those of RT-DETRv2 (configs of lyuwenyu/RT-DETR) for a ResNet-50, but for the stem,
    which these freeze, and for biases, which have weight decay there.

    learning_rate: its peak, after `warmup` steps of linear growth; from the fraction `decay_from` of all steps on it is
    a tenth. backbone_rate, slow_rate: of the backbone, and of sampling offsets and reference points, relative to it.
    norm_decay: whether normalisations and biases have weight decay. freezes_stem: whether the stem and the first stage
    of the backbone are constants. ema: the decay of the moving average of the weights; 0 for none; it grows from 0 with
    `ema_warmup`. accumulate: into how many parts a batch is divided, which are processed one after another.
    """

    steps: int
    batch_size: int = 16
    learning_rate: float = 1e-4
    backbone_rate: float = 0.1
    slow_rate: float = 1.0
    warmup: int = 2000
    decay_from: float = 1.0
    weight_decay: float = 1e-4
    norm_decay: bool = False
    freezes_stem: bool = False
    clip_norm: float = 0.1
    ema: float = 0.9999
    ema_warmup: int = 2000
    accumulate: int = 1
    seed: int = 0
    checkpoint_every: int = 500
    evaluate_every: int = 1000

    changeable: ClassVar = ("steps", "evaluate_every", "warmup")  # of a run that is resumed

    @property
    def group_rates(self) -> dict[Group, float]:
        """The peak learning rate of each group of parameters that is trained."""
        fractions = {"default": 1.0, "backbone": self.backbone_rate, "slow": self.slow_rate}
        return {kind: self.learning_rate * fraction for kind, fraction in fractions.items()}


# What differs, by model_type: D-FINE's from the configs of Peterande/D-FINE (size S), Deformable DETR's from
# fundamentalvision/Deformable-DETR.
RECIPES: dict[str, dict[str, Any]] = {
    "rt_detr": {},
    "rt_detr_v2": {},
    "d_fine": {"learning_rate": 2e-4, "backbone_rate": 0.5, "warmup": 500, "ema_warmup": 1000},
    "deformable_detr": {
        "learning_rate": 2e-4,
        "slow_rate": 0.1,
        "warmup": 0,
        "decay_from": 0.8,
        "norm_decay": True,
        "freezes_stem": True,
        "ema": 0.0,
    },
}


def rate(recipe: Recipe, kind: Group = "default") -> optax.Schedule:
    """The learning rate of a group of parameters in a step."""
    warmup = optax.linear_schedule(1 / max(recipe.warmup, 1), 1, max(recipe.warmup, 1))
    fall = {round(recipe.decay_from * recipe.steps): 0.1}
    falls = optax.piecewise_constant_schedule(recipe.group_rates[kind], fall)
    return lambda step: warmup(step) * falls(step)


def group(recipe: Recipe, path: tuple[Any, ...]) -> tuple[Group, bool]:
    """The group of the parameter at a path of jax.tree_util, which begins with the module, and whether it decays."""
    names = [entry.key for entry in path]
    decays = recipe.norm_decay or names[-1] not in ("bias", "scale")
    if names[0] == "backbone":
        is_stem = recipe.freezes_stem and names[1].startswith(FIRST_LAYERS)
        return ("frozen" if is_stem else "backbone"), decays
    return ("slow" if {"sampling_offsets", "reference_points"} & {*names} else "default"), decays


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW with one rate for each group, after clipping the norm of all gradients together.

    It computes what AdamW of optax computes, up to rounding. `_adamw` is traced once for each shape of parameters,
    which shortens the program of a step.
    """

    def update(gradients, state, params):
        labelled = jax.tree_util.tree_leaves_with_path(gradients)
        norm = optax.tree.norm([leaf for path, leaf in labelled if group(recipe, path)[0] != "frozen"])
        scale = jnp.where(norm < recipe.clip_norm, 1, recipe.clip_norm / norm)
        rates = {kind: rate(recipe, kind)(state.count) for kind in recipe.group_rates}
        count = state.count + 1

        def of_leaf(path, parameter, gradient, mean, square):
            kind, decays = group(recipe, path)
            if kind == "frozen":
                return jnp.zeros_like(parameter), mean, square
            return _adamw(parameter, gradient, mean, square, scale, count, rates[kind], recipe.weight_decay * decays)

        found = jax.tree_util.tree_map_with_path(of_leaf, params, gradients, state.mu, state.nu)
        updates, *moments = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0, 0)), found)
        return updates, optax.ScaleByAdamState(count, *moments)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


@jax.jit
def _adamw(parameter, gradient, mean, square, scale, count, rate, weight_decay):
    """The update of a parameter by AdamW (arXiv 1711.05101), and the new moments of its gradient."""
    gradient = scale * gradient
    mean = (1 - MEAN_DECAY) * gradient + MEAN_DECAY * mean
    square = (1 - SQUARE_DECAY) * gradient**2 + SQUARE_DECAY * square
    root = jnp.sqrt(square / (1 - SQUARE_DECAY**count)) + EPSILON
    return -rate * (mean / (1 - MEAN_DECAY**count) / root + weight_decay * parameter), mean, square


def moved_average(recipe: Recipe, average: Any, new: Any, step: jax.Array) -> Any:
    """The moving average after a step, whose decay grows with the steps, as in RT-DETR."""
    decay = recipe.ema * (1 - jnp.exp(-(step + 1) / max(recipe.ema_warmup, 1)))
    return jax.tree.map(partial(_moved, decay), average, new)


@jax.jit
def _moved(decay, old, new):
    return old + (1 - decay) * (new - old)
