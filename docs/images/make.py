"""Make the pictures of docs/pictures.md: python docs/images/make.py [--steps 200] [--out docs/images]

A small network of deformable convolutions learns in seconds how large the discs in noisy images are. It is trained with
several learning rates of the offsets, relative to the other parameters: slower, as fast, so much faster that the
offsets diverge, and zero, which keeps the offsets at zero for comparison. A network with multi-scale deformable
attention learns the same.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from flax import linen as nn
from matplotlib import pyplot

import jax_dcn
from jax_dcn import viz
from jax_dcn.linen import DeformConv, MultiScaleDeformableAttention

IMAGE_SIZE, STRIDE, DEPTH, CHANNELS = 48, 2, 3, 16
RADII = {"small": (2, 4), "medium": (5, 7), "large": (9, 12)}
SIZES = {"small": 0, "medium": 9, "large": 16}  # the smallest side of a box in each class
BATCH, LEARNING_RATE = 8, 5e-3
SLOW, FAST = 0.1, 30
RATES = 0, SLOW, 1, FAST  # learning rates of the offsets, relative to all other parameters
LEVELS, POINTS = ((24, 24), (12, 12), (6, 6)), (4, 2, 2)  # of the attention's pyramid


class Net(nn.Module):
    """Predicts the radius of the disc at each pixel, at half the resolution of images [batch, 48, 48]; 0 outside discs.

    Each deformable layer sows its offset and mask.
    """

    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(CHANNELS, (4, 4), strides=STRIDE, padding=1)(images[..., None]))
        for depth in range(DEPTH):
            y, *sampled = DeformConv(CHANNELS, 3, mask_scale=2.0, return_offsets=True)(x)
            self.sow("intermediates", f"layer {depth + 1}", sampled)
            x = x + nn.relu(y)
        return 10 * nn.Conv(1, (1, 1))(x)[..., 0]


class PyramidNet(nn.Module):
    """Predicts the same by a layer of attention, whose queries are the pixels of the first level of a pyramid.

    It sows its sampling locations and weights.
    """

    @nn.compact
    def __call__(self, images):
        x, levels = images[..., None], []
        for _ in LEVELS:
            x = nn.relu(nn.Conv(2 * CHANNELS, (4, 4), strides=2, padding=1)(x))
            levels.append(x.reshape(len(x), -1, 2 * CHANNELS))
        query, value = levels[0], jnp.concatenate(levels, 1)
        (height, width), *_ = LEVELS
        rows, columns = jnp.mgrid[:height, :width]
        centres = jnp.stack([(columns + 0.5) / width, (rows + 0.5) / height], -1).reshape(-1, 1, 2)
        reference_points = jnp.broadcast_to(centres, (len(x), *centres.shape))
        layer = MultiScaleDeformableAttention(2 * CHANNELS, 4, len(LEVELS), POINTS, return_sampling=True)
        y, *sampled = layer(query, reference_points, value, spatial_shapes=LEVELS)
        self.sow("intermediates", "attention", sampled)
        hidden = nn.relu(nn.Dense(4 * CHANNELS)(query + y))
        return 10 * nn.Dense(1)(hidden).reshape(len(x), height, width)


def scenes(random, number=BATCH):
    """Images with a disc of each size; the radius at each pixel of half the resolution; boxes [number, 3, 4]."""
    pixels = np.mgrid[:IMAGE_SIZE, :IMAGE_SIZE]
    images = random.normal(0, 0.2, (number, IMAGE_SIZE, IMAGE_SIZE)).astype(np.float32)
    radius_at, boxes = np.zeros_like(images), np.zeros((number, len(RADII), 4))
    for i in range(number):
        centres, radii = place_discs(random)
        for disc, (centre, radius) in enumerate(zip(centres, radii, strict=True)):
            covered = np.hypot(*(pixels - centre[:, None, None])) < radius
            images[i, covered] += 1
            radius_at[i, covered] = radius
            boxes[i, disc] = *(centre - radius)[::-1], *(centre + radius)[::-1]
    return images, radius_at[:, ::STRIDE, ::STRIDE], boxes


def place_discs(random):
    """Random centres (y, x) and radii of discs that do not touch."""
    while True:
        radii = np.array([random.uniform(*limits) for limits in RADII.values()])
        centres = random.uniform(radii, IMAGE_SIZE - radii, (2, len(radii))).T
        distances = np.hypot(*(centres[:, None] - centres).T) + np.diag(2 * radii + 1)
        if (distances > radii[:, None] + radii).all():
            return centres, radii


def train(net, steps, offset_rate):
    """The parameters after training, with offsets at `offset_rate` times the learning rate of the other parameters."""
    random = np.random.default_rng(0)
    rates = {"default": LEARNING_RATE, "offset": offset_rate * LEARNING_RATE}
    optimizer = optax.multi_transform({name: optax.adam(rate) for name, rate in rates.items()}, jax_dcn.offset_labels)
    params = jax.jit(net.init)(jax.random.key(0), scenes(random)[0])["params"]
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, images, radii):
        def loss(params):
            return jnp.abs(net.apply({"params": params}, images) - radii).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    for number in range(steps):
        images, radii, _ = scenes(random)
        params, state, loss = step(params, state, images, radii)
        if number % 50 == 49:
            print(f"{type(net).__name__}, offsets at {offset_rate} times the rate, step {number + 1}: loss {loss:.2f}")
    return params


@jax.jit
def error(params):
    """The mean error of the radii in images that were not used for training."""
    images, radii, _ = scenes(np.random.default_rng(3), 32)
    return jnp.abs(Net().apply({"params": params}, images) - radii).mean()


def layers_of(params, images):
    """The sampling of the images by each deformable layer of the network."""
    _, sown = Net().apply({"params": params}, images, mutable=["intermediates"])
    size = (IMAGE_SIZE // STRIDE,) * 2
    return {
        name: viz.Layer(*sampled, image_size=size, kernel_size=3)
        for name, (sampled,) in sorted(sown["intermediates"].items())
    }


def draw_sampling(image, layers, boxes):
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.6), layout="constrained")
    small, _, large = boxes
    panels = {
        "a small disc, last layer": (layers[-1:], small),
        "a large disc, last layer": (layers[-1:], large),
        "a large disc, three layers": (layers, large),
    }
    for ax, (title, (stack, box)) in zip(axes, panels.items(), strict=True):
        viz.plot_sampling(stack, centre(box), image=image, ax=ax)
        ax.set_title(title)
    dots = [ax.collections[0] for ax in axes]
    for of_panel in dots:
        of_panel.set_clim(0, max(each.get_clim()[1] for each in dots))
    entries = (of_axes[:3] for of_axes in ax.get_legend_handles_labels())
    figure.legend(*entries, loc="outside lower center", ncols=3, facecolor="dimgray", labelcolor="white")
    figure.colorbar(dots[0], ax=axes, label="weight: product of the masks", shrink=0.8)
    return figure


def centre(box):
    """The output position (row, column) at the middle of a box."""
    return tuple(((box[[1, 0]] + box[[3, 2]]) / 2 // STRIDE).astype(int))


def draw_offsets(image, layer):
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for ax, tap, title in zip(axes, (None, 0), ("all taps", "tap 0, up and left"), strict=True):
        viz.plot_offsets(layer, tap=tap, image=image, ax=ax)
        figure.colorbar(ax.collections[0], ax=ax, label="length of the offset (pixels of the input)", shrink=0.8)
        ax.set_title(title)
    return figure


def draw_queries(image, boxes, params):
    """Where a query in a small disc and one in a large disc look, by level."""
    _, sown = PyramidNet().apply({"params": params}, image[None], mutable=["intermediates"])
    ((locations, weights),) = sown["intermediates"]["attention"]
    figure, axes = pyplot.subplots(2, len(LEVELS), figsize=(12, 8.3), layout="constrained")
    (height, width), *_ = LEVELS
    for of_disc, disc, box in zip(axes, ("small", "large"), (boxes[0], boxes[2]), strict=True):
        row, column = centre(box)
        query, reference_point = row * width + column, ((column + 0.5) / width, (row + 0.5) / height)
        options = {"spatial_shapes": LEVELS, "points": POINTS, "reference_point": reference_point, "image": image}
        for level, ax in enumerate(of_disc):
            viz.plot_attention(locations[0], weights[0], query, level=level, ax=ax, **options)
            ax.set(xlim=(-9, 52), ylim=(52, -9), title=f"a {disc} disc, level {level}: {LEVELS[level][0]}² pixels")
    labels = [zip(*ax.get_legend_handles_labels(), strict=True) for ax in axes.flat]
    handles = {label.partition(":")[0]: handle for of_axes in labels for handle, label in of_axes}
    order = sorted(handles, key=lambda label: ("head", "level", "reference", "outside").index(label.split(" ")[0]))
    style = {"facecolor": "dimgray", "labelcolor": "white", "ncols": 9, "columnspacing": 1.2, "handletextpad": 0.3}
    figure.legend([handles[label] for label in order], order, loc="outside lower center", **style)
    return figure


def draw_bins(image, box):
    roi = np.array([0, *box[:2], *(box[2:] - 1)])
    offset = np.random.default_rng(0).normal(0, 1, (3, 3, 2))
    ax = viz.plot_bins(roi, offset, output_size=3, spatial_scale=1 / STRIDE, image=image)
    ax.figure.set_size_inches(4.6, 4.6)
    return ax.figure


def draw_dilation(params):
    images, _, boxes = scenes(np.random.default_rng(2), 32)
    which = np.repeat(np.arange(len(images)), len(RADII))
    layers = layers_of(params, images)
    ax = viz.plot_dilation(
        viz.dilation_table(layers, boxes.reshape(-1, 4), which, image_size=(IMAGE_SIZE, IMAGE_SIZE), sizes=SIZES)
    )
    ax.figure.set_size_inches(5.6, 4)
    return ax.figure


def draw_diverging(image, runs):
    """Offset lengths, and the last layer's offset field, of a run that trains well and of one that diverges."""
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), width_ratios=(1.25, 1), layout="constrained")
    for row, (title, layers) in zip(axes, runs.items(), strict=True):
        viz.plot_offset_lengths(layers, ax=row[0])
        viz.plot_offsets(list(layers.values())[-1][0], image=image, ax=row[1])
        figure.colorbar(
            row[1].collections[0], ax=row[1], label="mean length of offsets (pixels of the input)", shrink=0.8
        )
        row[0].set_title(title)
        row[1].set_title("offsets of the last layer")
    limits = max(ax.get_xlim()[1] for ax in axes[:, 0])
    for ax in axes[:, 0]:
        ax.set_xlim(0, 1.2 * limits)
    axes[0, 0].legend(loc="lower right")
    return figure


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of training (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to (%(default)s)")
    options = parser.parse_args(arguments)
    matplotlib.use("agg")
    trained = {rate: train(Net(), options.steps, rate) for rate in RATES}
    errors = {rate: error(params) for rate, params in trained.items()}
    print("errors by the rate of offsets:", ", ".join(f"{rate}: {value:.2f}" for rate, value in errors.items()))
    images, _, boxes = scenes(np.random.default_rng(1), 1)
    found = layers_of(trained[SLOW], images)
    layers = [layer[0] for layer in found.values()]
    runs = {
        f"offsets learn at {SLOW} times the rate: error {errors[SLOW]:.2f}": found,
        f"offsets learn at {FAST} times the rate: error {errors[FAST]:.2f}": layers_of(trained[FAST], images),
    }
    figures = {
        "sampling_positions": draw_sampling(images[0], layers, boxes[0]),
        "offset_field": draw_offsets(images[0], layers[-1]),
        "queries": draw_queries(images[0], boxes[0], train(PyramidNet(), options.steps, 1)),
        "bin_positions": draw_bins(images[0], boxes[0, 2]),
        "effective_dilation": draw_dilation(trained[SLOW]),
        "diverging": draw_diverging(images[0], runs),
    }
    for name, figure in figures.items():
        figure.savefig(options.out / f"{name}.png", dpi=90)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
