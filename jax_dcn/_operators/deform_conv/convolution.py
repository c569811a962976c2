"""A convolution with its arrays, as the executors of its paths take it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv.arguments import Operands, Spec
from jax_dcn._operators.deform_conv.custom_calls import Samples


class Convolution(NamedTuple):
    """Operands with one batch dimension, for the shard of the output from `origin` on that `offset` has."""

    operands: Operands[jax.Array]
    spec: Spec
    origin: tuple[ArrayLike, ...]

    @property
    def samples(self) -> Samples:
        """The samples of all images and rows."""
        images, rows = self.operands.offset.shape[:2]
        return self.samples_at((0, 0), (images, rows))

    def samples_at(self, start: tuple[ArrayLike, ArrayLike], size: tuple[int, int]) -> Samples:
        """The samples of `size` (images, rows) from `start` on."""
        _, offset, weight, _, mask = self.operands
        return Samples(offset, mask, start, size, self.origin, weight.shape[:-2], self.spec)

    @property
    def float32_bias(self) -> jax.Array:
        """The bias as the fused kernels take it; zeros if there is none."""
        _, _, weight, bias, _ = self.operands
        return jnp.zeros(weight.shape[-1], jnp.float32) if bias is None else bias.astype(jnp.float32)
