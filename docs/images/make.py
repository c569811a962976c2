"""Make the pictures of docs/pictures.md: python docs/images/make.py

A small network of deformable convolutions learns, in seconds, how large the discs in noisy images are: once as it
should, and once with offsets that learn a hundred times as fast.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jax_dcn
from jax_dcn import viz
from jax_dcn.linen import DeformConv

IMAGE_SIZE, STRIDE, DEPTH, CHANNELS = 48, 2, 3, 16
RADII = {"small": (2, 4), "medium": (5, 7), "large": (9, 12)}
BATCH, LEARNING_RATE = 8, 5e-3


class Net(nn.Module):
    """Images [batch, 48, 48] to the radius of the disc that covers each pixel of half the size, 0 where there is none.

    Every deformable layer sows its offset and mask.
    """

    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(CHANNELS, (4, 4), strides=STRIDE, padding=1)(images[..., None]))
        for depth in range(DEPTH):
            y, *sampled = DeformConv(CHANNELS, 3, mask_scale=2.0, return_offsets=True)(x)
            self.sow("intermediates", f"layer {depth + 1}", sampled)
            x = x + nn.relu(y)
        return 10 * nn.Conv(1, (1, 1))(x)[..., 0]


def scenes(random, number=BATCH):
    """Images with a disc of each size: images, radius at each pixel of half the size, boxes [number, 3, 4]."""
    rows, columns = np.mgrid[:IMAGE_SIZE, :IMAGE_SIZE]
    images = random.normal(0, 0.2, (number, IMAGE_SIZE, IMAGE_SIZE))
    radius_at, boxes = np.zeros(images.shape), np.zeros((number, len(RADII), 4))
    for image, disc in np.ndindex(number, len(RADII)):
        radius = random.uniform(*list(RADII.values())[disc])
        y, x = random.uniform(radius, IMAGE_SIZE - radius, 2)
        covered = np.hypot(rows - y, columns - x) < radius
        images[image, covered] += 1
        radius_at[image, covered] = radius
        boxes[image, disc] = x - radius, y - radius, x + radius, y + radius
    return images.astype(np.float32), radius_at[:, ::STRIDE, ::STRIDE].astype(np.float32), boxes


def train(steps, offset_rate):
    """Parameters, with offsets learning at `offset_rate` times the rate of all else."""
    net, random = Net(), np.random.default_rng(0)
    rates = {"default": LEARNING_RATE, "offset": offset_rate * LEARNING_RATE}
    optimizer = optax.multi_transform({name: optax.adam(rate) for name, rate in rates.items()}, jax_dcn.offset_labels)
    params = net.init(jax.random.key(0), scenes(random)[0])["params"]
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
            print(f"offsets at {offset_rate} times the rate, step {number + 1}: loss {loss:.2f}")
    return params


def layers_of(params, images):
    """What each deformable layer of the network did to the images."""
    _, sown = Net().apply({"params": params}, images, mutable=["intermediates"])
    size = (IMAGE_SIZE // STRIDE,) * 2
    return {
        name: viz.Layer(*sampled, image_size=size, kernel_size=3)
        for name, (sampled,) in sorted(sown["intermediates"].items())
    }
