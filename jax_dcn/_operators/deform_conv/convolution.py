"""A convolution with its arrays, as the executors of its paths take it."""

from typing import NamedTuple

import jax
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv.arguments import Spec


class Convolution(NamedTuple):
    """Canonical operands with one batch dimension, for the output's rows and columns from `origin` on."""

    x: jax.Array
    offset: jax.Array
    weight: jax.Array
    bias: jax.Array | None
    mask: jax.Array | None
    spec: Spec
    origin: tuple[ArrayLike, ArrayLike]
