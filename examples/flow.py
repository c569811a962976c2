"""Find the motion between two images by gradient descent through `grid_sample`.

python -m examples.flow             # writes flow.png
"""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from matplotlib.figure import Figure

import jax_dcn
from examples.library.command_line import Parser

SIZE = (96, 128)


def warp(image: jax.Array, flow: jax.Array) -> jax.Array:
    """The image [H, W, C] at the pixels plus flow [H, W, 2], (x, y) in pixels; its border goes on outside."""
    height, width = image.shape[:2]
    pixel = jnp.stack(jnp.meshgrid(jnp.arange(width), jnp.arange(height)), -1)
    grid = 2 * (pixel + flow) / jnp.array([width - 1, height - 1]) - 1
    return jax_dcn.grid_sample(image, grid, align_corners=True, padding_mode="border")


def scene(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A smooth random image [H, W, 1], the same after a motion, and that motion as a flow [H, W, 2]."""
    keys = jax.random.split(key)
    image = jax.image.resize(jax.random.uniform(keys[0], (12, 16, 1)), (*SIZE, 1), "cubic")
    flow = jax.image.resize(3 * jax.random.normal(keys[1], (3, 4, 2)), (*SIZE, 2), "cubic")
    return image, warp(image, flow), flow


def find_flow(first: jax.Array, second: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
    """The flow [H, W, 2] that makes the first image the second one, and the loss of each step."""
    optimiser = optax.adam(0.1)
    coarse = jnp.zeros((6, 8, 2))

    def loss(coarse):
        return jnp.square(warp(first, jax.image.resize(coarse, (*SIZE, 2), "cubic")) - second).mean()

    def step(state, _):
        coarse, moments = state
        value, gradient = jax.value_and_grad(loss)(coarse)
        updates, moments = optimiser.update(gradient, moments)
        return (optax.apply_updates(coarse, updates), moments), value

    (coarse, _), losses = jax.jit(lambda state: jax.lax.scan(step, state, length=steps))(
        (coarse, optimiser.init(coarse))
    )
    return jax.image.resize(coarse, (*SIZE, 2), "cubic"), losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.flow", __doc__)
    parser.add_argument("--steps", type=int, default=300, help="%(default)s")
    parser.add_argument("--out", type=Path, default=Path("flow.png"), help="the picture (%(default)s)")
    options = parser.parse_args(arguments)
    first, second, flow = scene(jax.random.key(0))
    found, losses = find_flow(first, second, options.steps)
    error = float(jnp.linalg.norm(found - flow, axis=-1).mean())
    motion = float(jnp.linalg.norm(flow, axis=-1).mean())
    print(f"The loss fell from {losses[0]:.1e} to {losses[-1]:.1e}.")
    print(f"The flow, {motion:.1f} pixels on average, is wrong by {error:.2f} pixels.")
    figure = Figure(figsize=(13, 2.9), layout="constrained")
    titles = {"first image": first, "second image": second, "first image, warped": warp(first, found)}
    *images, arrows = figure.subplots(1, 4)
    for axes, (title, image) in zip(images, titles.items(), strict=True):
        axes.imshow(image[..., 0], "gray")
        axes.set_title(title)
    places = jnp.arange(4, SIZE[1], 8), jnp.arange(4, SIZE[0], 8)
    for colour, one, label in (("0.6", flow, "the motion"), ("tab:red", found, "found")):
        at = one[4::8, 4::8]
        arrows.quiver(
            *places, at[..., 0], at[..., 1], color=colour, angles="xy", scale_units="xy", scale=1, label=label
        )
    arrows.invert_yaxis()
    arrows.set_aspect("equal")
    arrows.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False)
    for axes in (*images, arrows):
        axes.set(xticks=[], yticks=[])
    figure.savefig(options.out, dpi=80)


if __name__ == "__main__":
    main()
