"""Fine-tune ALIKED on photographs and their views by random homographies, without annotations.

python -m examples.aliked.train FOLDER                       # from the published weights of aliked-n16
python -m examples.aliked.train FOLDER --weights FILE.pth
python -m examples.aliked.train ... --resume                 # continue a run that ended early

It writes OUT/model.npz, with the names of the published weights: `--weights` of `python -m examples.aliked` takes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.library import trainer
from examples.library.batches import ahead
from examples.library.command_line import COUNT, Parser
from examples.library.files import digest, digest_of_json
from examples.library.loop import Options
from examples.library.objects import pictures
from examples.library.options import add_recipe, add_run, check_run, chosen_recipe
from examples.library.recipe import Recipe
from examples.library.training import Results, Task, train

from .homographies import project, random_homography, warp
from .images import read
from .model import Aliked, Found
from .options import add_model, model_of, weights_of
from .weights import save

PROGRAM = "python -m examples.aliked.train"
REPROJECTION, DISPERSITY, DESCRIPTORS = 1.0, 0.5, 5.0  # weights of the losses, as in the paper
NEAR, TEMPERATURE = 5.0, 0.1  # the largest distance of a pair in pixels, and of the similarity of descriptors
RECIPE = Recipe(weight_decay=0.0, warmup=0, checkpoint_every=100)


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


@dataclass(frozen=True)
class Loss:
    """The loss of photographs, uint8 [N, H, W, 3], and their mask, and the statistics, which stay what they are.

    Each image gets a random view with other light and noise. count: keypoints of an image.
    """

    model: Aliked
    count: int = 400

    def __call__(
        self, variables: dict[str, Any], batch: tuple[jax.Array, jax.Array], key: jax.Array
    ) -> tuple[dict[str, jax.Array], Any]:
        pixels, mask = batch
        views, masks, homographies = jax.vmap(view)(pixels, mask, jax.random.split(key, len(pixels)))
        images, masks = jnp.concatenate([pixels / 255.0, views]), jnp.concatenate([mask, masks])
        found = self.model.apply(variables, images, self.count, mask=masks)
        pairs = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), found._replace(score_map=None))
        first, second = (jax.tree.map(lambda leaf, side=side: leaf[side], pairs) for side in (0, 1))
        return {"keypoints": jax.vmap(losses)(first, second, homographies).mean()}, variables["batch_stats"]


def view(pixels: jax.Array, mask: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A random view of an image with other light and noise, its mask, and the homography."""
    keys = jax.random.split(key, 4)
    homography = random_homography(keys[0], mask.shape)
    warped, warped_mask = warp(pixels, mask, homography)
    contrast = jax.random.uniform(keys[1], (3,), minval=0.7, maxval=1.3)
    light = jax.random.uniform(keys[2], (), minval=-0.1, maxval=0.1)
    noise = 0.02 * jax.random.normal(keys[3], pixels.shape)
    return (warped / 255.0 * contrast + light + noise).clip(0, 1), warped_mask, homography


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
    add("--count", type=COUNT, default=Loss.count, help="keypoints of an image (%(default)s)")
    add_recipe(add, {"aliked": RECIPE}, ["backbone_rate", "evaluate_every"])
    add_run(add, "out/aliked")
    options = parser.parse_args(arguments)
    check_run(parser, options)
    size = tuple(options.size)
    if not options.folder.is_dir():
        parser.error(f"the folder of the photographs must be one, got {options.folder}")
    recipe, results = chosen_recipe(options, RECIPE), Results(save, ".npz")
    with parser.reporting():
        trainer.check_start(options, results, "weights")
        model, variables = model_of(options)
        paths = [path for path, _ in pictures([options.folder], options.out)]
    settings = {
        "SHA-256 of the weights": digest(weights_of(options)),
        "dtype": options.dtype,
        "size": size,
        "count": options.count,
        "photographs": digest_of_json([path.name for path in paths]),
        "images": str(options.folder.resolve()),
    }
    changeable = [*options.changeable, "images"]  # the folder may have moved
    how = Options(options.existing, settings, changeable, None, options.tensorboard, jax.devices()[:1])
    task = Task(recipe, variables, Loss(model, options.count), partial(batches, paths, size, recipe), None, results)
    with trainer.ending(PROGRAM):
        train(task, options.out, how)
    print(f"The weights are {options.out / 'model.npz'}.")


if __name__ == "__main__":
    main()
