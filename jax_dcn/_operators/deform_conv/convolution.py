"""A convolution with its arrays, as the executors of its paths take it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv.arguments import Operands, Spec
from jax_dcn._operators.deform_conv.custom_calls import Samples


class Convolution(NamedTuple):
    """Operands with one batch dimension, for the output's rows and columns from `origin` on."""

    operands: Operands[jax.Array]
    spec: Spec
    origin: tuple[ArrayLike, ArrayLike]

    @property
    def samples(self) -> Samples:
        """The samples of all images, rows and columns."""
        _, offset, weight, _, mask = self.operands
        images, rows, _, _ = offset.shape
        return Samples(offset, mask, (0, 0), (images, rows), self.origin, weight.shape[:2], self.spec)

    @property
    def float32_bias(self) -> jax.Array:
        """The bias as the fused kernels take it; zeros if there is none."""
        _, _, weight, bias, _ = self.operands
        return jnp.zeros(weight.shape[-1], jnp.float32) if bias is None else bias.astype(jnp.float32)
