"""The public functions of the gradients of a two-dimensional convolution, each by itself."""

from typing import Unpack

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv.arguments import GridOperands, canonicalize, channels_first, channels_last
from jax_dcn._operators.deform_conv.functions import Options
from jax_dcn._operators.deform_conv.on_grid import conv_on_grid
from jax_dcn._operators.deform_conv.primitive import deform_conv
from jax_dcn._primitive import jax_internals


def deform_conv2d_input_grad(
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike | None,
    weight: ArrayLike,
    mask: ArrayLike | None = None,
    **options: Unpack[Options],
) -> jax.Array:
    """The gradient of a deformable convolution in x, and nothing else.

    Args:
      cotangent: the cotangent of the result, with the result's shape.
      x, offset, weight, mask, options: those of `deform_conv2d`. Only the shape and type of x matter.

    Returns:
      The gradient, with x's shape and type.

    Raises:
      TypeError, ValueError: as `deform_conv2d`; also if the cotangent does not have the result's shape.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, offset, weight = jnp.ones((4, 4, 1)), jnp.zeros((4, 4, 18)), jnp.ones((3, 3, 1, 1))
      >>> jax_dcn.deform_conv2d_input_grad(jnp.ones((4, 4, 1)), x, offset, weight)[..., 0]
      Array([[4., 6., 6., 4.],
             [6., 9., 9., 6.],
             [6., 9., 9., 6.],
             [4., 6., 6., 4.]], dtype=float32)
    """
    return _gradient("x", cotangent, x, offset, weight, mask, options)


def deform_conv2d_offset_grad(
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike | None = None,
    **options: Unpack[Options],
) -> jax.Array:
    """The gradient of a deformable convolution in its offset, and nothing else.

    Arguments, errors and result are those of `deform_conv2d_input_grad`; the gradient has offset's shape and type.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.arange(4.0).reshape(1, 4, 1)  # rises by 1 a column
      >>> offset, weight = jnp.zeros((1, 4, 2)), jnp.ones((1, 1, 1, 1))
      >>> jax_dcn.deform_conv2d_offset_grad(jnp.ones((1, 4, 1)), x, offset, weight)[0, :, 1]
      Array([ 1.,  1.,  1., -3.], dtype=float32)
    """
    return _gradient("offset", cotangent, x, _validation.array("offset", offset), weight, mask, options)


def deform_conv2d_mask_grad(
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike,
    **options: Unpack[Options],
) -> jax.Array:
    """The gradient of a deformable convolution in its mask, and nothing else.

    Arguments, errors and result are those of `deform_conv2d_input_grad`; the gradient has mask's shape and type.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, weight = jnp.arange(4.0).reshape(1, 4, 1), jnp.full((1, 1, 1, 1), 2.0)
      >>> offset, mask = jnp.full((1, 4, 2), 0.5).at[..., 0].set(0), jnp.ones((1, 4, 1))
      >>> jax_dcn.deform_conv2d_mask_grad(jnp.ones((1, 4, 1)), x, offset, weight, mask)[0, :, 0]
      Array([1., 3., 5., 3.], dtype=float32)
    """
    offset, mask = _validation.array("offset", offset), _validation.array("mask", mask)
    return _gradient("mask", cotangent, x, offset, weight, mask, options)


def deform_conv2d_weight_grad(
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike | None,
    weight: ArrayLike,
    mask: ArrayLike | None = None,
    **options: Unpack[Options],
) -> jax.Array:
    """The gradient of a deformable convolution in its weight, and nothing else.

    Arguments, errors and result are those of `deform_conv2d_input_grad`; the gradient has weight's shape and type.
    Only the shape and type of weight matter.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, offset, weight = jnp.ones((4, 4, 1)), jnp.zeros((4, 4, 18)), jnp.ones((3, 3, 1, 1))
      >>> jax_dcn.deform_conv2d_weight_grad(jnp.ones((4, 4, 1)), x, offset, weight)[..., 0, 0]
      Array([[ 9., 12.,  9.],
             [12., 16., 12.],
             [ 9., 12.,  9.]], dtype=float32)
    """
    return _gradient("weight", cotangent, x, offset, weight, mask, options)


def _gradient(
    name: str,
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike | None,
    weight: ArrayLike,
    mask: ArrayLike | None,
    options: Options,
) -> jax.Array:
    function = f"deform_conv2d_{'input' if name == 'x' else name}_grad"
    _validation.known_keywords(function, options, Options.__annotations__)
    operands, spec = canonicalize(2, x, offset, weight, None, mask, **options)
    primitive = conv_on_grid[2] if isinstance(operands, GridOperands) else deform_conv
    definition, first = primitive.operator.definition, options.get("data_format") == "NCHW"
    cotangent = _validation.array("cotangent", cotangent)
    expected = definition.result(operands, spec=spec).shape
    if first:
        expected = (*expected[:-3], expected[-1], *expected[-3:-1])
    if cotangent.shape != expected:
        raise ValueError(f"cotangent must have the result's shape {expected}, got {cotangent.shape}")
    cotangent = (channels_last(cotangent, 2) if first else cotangent).astype(spec.dtype)
    *arrays, ct = jax_internals.vary_alike([*operands, cotangent])
    gradient = primitive.cotangents(
        definition.operands(*arrays), cotangent=ct, requested=(name,), spec=spec, backend=options.get("backend")
    )[name]
    if first:
        gradient = jnp.transpose(gradient, (3, 2, 0, 1)) if name == "weight" else channels_first(gradient, 2)
    operand = {"x": x, "offset": offset, "weight": weight, "mask": mask}[name]
    return gradient.astype(_validation.array(name, operand).dtype)
