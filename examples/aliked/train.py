"""Fine-tune ALIKED on photographs and their views by random homographies, without annotations.

python -m examples.aliked.train FOLDER                       # from the published weights of aliked-n16
python -m examples.aliked.train FOLDER --weights FILE.pth
python -m examples.aliked.train ... --resume                 # continue a run that ended early

It writes OUT/model.npz, with the names of the published weights: `--weights` of `python -m examples.aliked` takes it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.library.batches import ahead
from examples.library.checkpoints import StartError, locked
from examples.library.command_line import Parser
from examples.library.devices import fit_on
from examples.library.files import digest
from examples.library.loop import State, first_state, update
from examples.library.objects import pictures
from examples.library.options import add_recipe, checked_recipe
from examples.library.photographs import ImageError

from .homographies import project, random_homography, warp
from .images import read
from .model import Aliked, Found
from .options import add_model, model_of, weights_of
from .weights import save

PROGRAM = "python -m examples.aliked.train"
REPROJECTION, DISPERSITY, DESCRIPTORS = 1.0, 0.5, 5.0  # weights of the losses, as in the paper
NEAR, TEMPERATURE = 5.0, 0.1  # the largest distance of a pair in pixels, and of the similarity of descriptors
RECIPE_HELP = {
    "batch_size": "photographs in a step",
    "learning_rate": "of Adam",
    "count": "keypoints of an image",
    "checkpoint_every": "steps",
}


@dataclass(frozen=True)
class Recipe:
    """How the model is trained. count: keypoints of an image."""

    steps: int
    batch_size: int = 2
    learning_rate: float = 1e-4
    count: int = 400
    clip_norm: float = 1.0
    seed: int = 0
    checkpoint_every: int = 100

    accumulate: ClassVar = 1
    changeable: ClassVar = ("steps",)  # of a run that is resumed


def losses(first: Found, second: Found, homography: jax.Array) -> jax.Array:
    """The sum of all losses of one image and its view: how far keypoints are from those that they are projected to,
    how spread their peaks are, and how unlike their descriptors (sparse neural reprojection error).
    """
    points = first.points, second.points
    forth = project(homography, points[0].positions)[:, None] - points[1].positions
    back = project(jnp.linalg.inv(homography), points[1].positions) - points[0].positions[:, None]
    distances = (optax.safe_norm(forth, 1e-6, axis=-1) + optax.safe_norm(back, 1e-6, axis=-1)) / 2
    both = points[0].valid[:, None] & points[1].valid
    ranked = jnp.where(both, jax.lax.stop_gradient(distances), jnp.inf)
    pairs = (ranked <= NEAR) & (ranked == ranked.min(0)) & (ranked == ranked.min(1, keepdims=True))
    similarity = jnp.where(both, first.descriptors @ second.descriptors.T / TEMPERATURE, jnp.finfo("float32").min)
    likelihood = jax.nn.log_softmax(similarity, 0) + jax.nn.log_softmax(similarity, 1)
    dispersity = sum(mean_where(one.valid, one.dispersity) for one in points)
    of_pairs = mean_where(pairs, REPROJECTION * distances - DESCRIPTORS * likelihood / 2)
    return of_pairs + DISPERSITY * dispersity


def mean_where(chosen: jax.Array, values: jax.Array) -> jax.Array:
    """The mean of the chosen values, 0 without any."""
    return jnp.where(chosen, values, 0).sum() / jnp.maximum(chosen.sum(), 1)


@partial(jax.jit, static_argnames=("model", "recipe"), donate_argnames="state")
def train_step(
    model: Aliked, recipe: Recipe, statistics: Any, state: State, batch: tuple[jax.Array, jax.Array]
) -> tuple[State, dict[str, jax.Array]]:
    """One step on pixels, uint8 [N, H, W, 3], and their mask: the new state and the loss.

    Each image gets a random view with other light and noise.
    """
    pixels, mask = batch
    key = jax.random.fold_in(jax.random.key(recipe.seed), state.step)

    def view(pixels, mask, key):
        keys = jax.random.split(key, 4)
        homography = random_homography(keys[0], mask.shape)
        warped, warped_mask = warp(pixels, mask, homography)
        contrast = jax.random.uniform(keys[1], (3,), minval=0.7, maxval=1.3)
        light = jax.random.uniform(keys[2], (), minval=-0.1, maxval=0.1)
        noise = 0.02 * jax.random.normal(keys[3], pixels.shape)
        return (warped / 255.0 * contrast + light + noise).clip(0, 1), warped_mask, homography

    views, masks, homographies = jax.vmap(view)(pixels, mask, jax.random.split(key, len(pixels)))
    images, masks = jnp.concatenate([pixels / 255.0, views]), jnp.concatenate([mask, masks])

    def loss(params):
        found = model.apply({"params": params, "batch_stats": statistics}, images, recipe.count, mask=masks)
        pairs = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), found._replace(score_map=None))
        first, second = (jax.tree.map(lambda leaf, side=side: leaf[side], pairs) for side in (0, 1))
        return jax.vmap(losses)(first, second, homographies).mean()

    return update(state, make_optimiser(recipe), loss)


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """Adam, after clipping the norm of the gradients."""
    return optax.chain(optax.clip_by_global_norm(recipe.clip_norm), optax.adam(recipe.learning_rate))


def batches(
    paths: Sequence[Path], size: tuple[int, int], recipe: Recipe, steps: range
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pixels and masks of photographs that are chosen at random."""

    def batch(step):
        rng = np.random.default_rng((recipe.seed, step))
        chosen = rng.choice(len(paths), recipe.batch_size, replace=len(paths) < recipe.batch_size)
        found = [read(paths[number], size, turns=False) for number in chosen]
        return np.stack([one.pixels for one in found]), np.stack([one.mask for one in found])

    return ahead(batch, steps)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser(PROGRAM, __doc__)
    add = parser.add_argument
    add("folder", type=Path, help="the folder of the photographs")
    add_model(parser)
    add_recipe(parser, Recipe, RECIPE_HELP)
    add("--steps", type=int, default=1000, help="steps of the optimiser (%(default)s)")
    add("--out", type=Path, default=Path("out/aliked"), help="the folder to write to (%(default)s)")
    add("--resume", action="store_true", help="go on from the checkpoints in OUT, if any")
    add("--overwrite", action="store_true", help="delete the checkpoints and results of another run in OUT")
    options = parser.parse_args(arguments)
    recipe = Recipe(options.steps, **checked_recipe(parser, options, RECIPE_HELP))
    size, result = tuple(options.size), options.out / "model.npz"
    if not options.folder.is_dir():
        parser.error(f"the folder of the photographs must be one, got {options.folder}")
    if options.overwrite and options.weights and options.weights.resolve() == result.resolve():
        parser.error(f"--weights must not be what --overwrite deletes, got {options.weights}")
    try:
        model, variables = model_of(options)
        paths = [path for path, _ in pictures([options.folder], options.out)]
        with locked(options.out):
            run = fit_on(
                jax.devices()[:1],
                partial(train_step, model, recipe, variables["batch_stats"]),
                partial(first_state, optimiser=make_optimiser(recipe)),
                variables["params"],
                partial(batches, paths, size, recipe),
                recipe,
                options.out / "checkpoints",
                settings={
                    "SHA-256 of the weights": digest(weights_of(options)),
                    "dtype": options.dtype,
                    "size": size,
                    "photographs": hashlib.sha256("\n".join(path.name for path in paths).encode()).hexdigest()[:16],
                    "images": str(options.folder.resolve()),
                },
                changeable=["images"],  # the folder may have moved
                resume=options.resume,
                overwrite=options.overwrite,
                log=options.out / "log.jsonl",
                outputs=[result],
            )
            save(result, variables | {"params": jax.device_get(run.state.params)})
    except (StartError, ImageError, ImportError, OSError, ValueError) as error:
        raise SystemExit("\n".join([f"{PROGRAM}: error: {error}", *getattr(error, "__notes__", [])])) from error
    print(f"The weights are {result}.")


if __name__ == "__main__":
    main()
