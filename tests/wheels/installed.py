"""A test of an installed jax_dcn: python installed.py. It needs only jax and flax."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jax_dcn
from jax_dcn.linen import DeformConv

Backend = Literal["reference"] | None


def compare(loss: Callable[[Backend, Any], jax.Array], operands: Any) -> None:
    """Compares values and gradients, under jit and vmap, with those of the reference."""
    several = jax.tree.map(lambda a: np.stack([a, a / 2]), operands)
    backends: tuple[Backend, ...] = None, "reference"
    results = [jax.jit(jax.vmap(jax.value_and_grad(partial(loss, backend))))(several) for backend in backends]
    for result, expected in zip(*map(jax.tree.leaves, results), strict=True):
        assert np.any(expected)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)


def main() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 9, 9, 4), np.float32)
    offset = random.standard_normal((1, 9, 9, 18), np.float32)
    weight = random.standard_normal((3, 3, 4, 8), np.float32)

    def convolution(backend: Backend, operands: Any) -> jax.Array:
        return jnp.sin(jax_dcn.deform_conv2d(*operands, backend=backend)).sum()

    def linen(backend: Backend, variables: Any) -> jax.Array:
        y: Any = DeformConv(8, (3, 3), offset_bound=4.0, backend=backend).apply(variables, x)
        return jnp.sin(y).sum()

    def nnx_layer(backend: Backend) -> nnx.Module:
        return jax_dcn.nnx.DeformConv(4, 8, (3, 3), mask_scale=2.0, backend=backend, rngs=nnx.Rngs(0))

    def nnx_loss(backend: Backend, state: Any) -> jax.Array:
        return jnp.sin(nnx.merge(nnx.split(nnx_layer(backend))[0], state)(x)).sum()

    with jax.default_matmul_precision("highest"):
        compare(convolution, (x, offset, weight))
        compare(linen, DeformConv(8, (3, 3)).init(jax.random.key(0), x))
        compare(nnx_loss, nnx.state(nnx_layer(None)))
    print(f"jax_dcn {jax_dcn.__version__} in {jax_dcn.__path__[0]} computes what its reference does")


if __name__ == "__main__":
    main()
