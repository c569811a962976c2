"""A convolution with its arrays, as the executors of its paths take it."""

from typing import NamedTuple

import jax
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv.arguments import Operands, Spec


class Convolution(NamedTuple):
    """Operands with one batch dimension, for the output's rows and columns from `origin` on."""

    operands: Operands[jax.Array]
    spec: Spec
    origin: tuple[ArrayLike, ArrayLike]
