"""The public functions."""

from typing import Any, Literal, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv.arguments import canonicalize, channels_first, channels_last
from jax_dcn._operators.deform_conv.primitive import deform_conv, result
from jax_dcn._primitive import jax_internals
from jax_dcn._types import Padding, Pair


class Options(TypedDict, total=False):
    """The keywords of `deform_conv2d`, which its gradients take too."""

    strides: Pair
    padding: Padding
    kernel_dilation: Pair
    feature_group_count: int
    data_format: Literal["NHWC", "NCHW"]
    precision: Any
    preferred_element_type: DTypeLike | None
    deterministic: bool | None
    backend: Literal["reference"] | None


def deform_conv2d(
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    strides: Pair = 1,
    padding: Padding = "SAME",
    kernel_dilation: Pair = 1,
    feature_group_count: int = 1,
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Deformable convolution, without a mask (v1) or with one (v2).

    Tap k = (i, j) of the kernel, for output (ho, wo) and offset group g, reads x at::

        y = ho · strides[0] - top  + i · kernel_dilation[0] + offset[ho, wo, (g·K + k)·2]
        x = wo · strides[1] - left + j · kernel_dilation[1] + offset[ho, wo, (g·K + k)·2 + 1]

    bilinearly, with zeros outside the image, and multiplies by mask[ho, wo, g·K + k]; a grouped convolution of what
    was read follows. K = kh·kw, taps are counted row by row, offsets are in input pixels. The number of offset groups
    G is read off the offset's channels; input channel c belongs to offset group c // (Cin/G) and to feature group
    c // (Cin/groups), and neither number need divide the other.

    All derivatives exist, of every order, in forward and reverse mode. Where a position is an integer, the derivative
    in the offset is the right-hand one; at and beyond -1 and the image's height (width) it is zero. An infinite offset
    reads zero; a not-a-number offset makes its sample and its own gradients not-a-number, and adds nothing to the
    gradient of x.

    Over several devices, `jit` splits it as its operands are split: by batch dimensions, by rows and columns of offset
    and mask, by features of weight and bias, and with groups by channels of x. What is split otherwise is gathered.

    Memory: on CUDA no samples are held of 16-bit data, or of float32 where the precision lets products be tf32, as
    jax's default does. Forward, this asks for channels of each group and each offset group in multiples of 16 bytes,
    and for an even number of output channels in a group; a copy of the weight is held. Gradients ask besides for a
    result of x's type, output channels of a group in multiples of 16 bytes, and at least 32 channels in each group and
    each offset group, of which one number divides the other. They hold, for x, lists of what touches its pixels, with
    copies of operands, for as many images as fit 128 MiB, and not for images whose own lists take more; for the weight,
    parts of it of 32 MiB in all, or of its own size in float32, and not for one of float32.
    Else, on CPU and CUDA, the samples are taken and multiplied in runs of output rows or of images. What a run holds
    (samples, their cotangents, and for the gradient of x its sums and on CUDA the samples' order, all in float32 or
    wider) takes at most 16 MiB on CPU and 128 MiB on CUDA, and half of that in the forward, which has samples alone; or
    half of that, or one output row, besides one image's gradient, where that is more. A last run of another length has
    memory of its own, and a grouped convolution rearranges the samples: each takes as much again.
    None of this grows with the batch. What does is a conversion of whole arrays: to channels last from "NCHW", of
    16-bit offsets and masks to float32, of everything to float64 where anything is. Forward mode and second derivatives
    run the reference, which holds the samples of the whole batch.

    Args:
      x: [..., H, W, Cin]; any number of batch dimensions, none included. float16, bfloat16, float32 or float64.
      offset: [..., Ho, Wo, G·K·2], dy before dx, in input pixels. Positions are computed in float32 or wider.
      weight: [kh, kw, Cin/groups, Cout]. x and weight are promoted to their common type.
      bias: [Cout], or None.
      mask: [..., Ho, Wo, G·K], used as it is, or None.
      strides, kernel_dilation: an int, or one each for rows and columns.
      padding: "SAME", "SAME_LOWER", "VALID", an int, a pair of ints, ((top, bottom), (left, right)), or "CIRCULAR":
        the image is a torus, and positions wrap around.
      feature_group_count: groups of the convolution.
      data_format: "NHWC", or "NCHW" for x [..., Cin, H, W], offset [..., G·K·2, Ho, Wo], mask [..., G·K, Ho, Wo],
        weight [Cout, Cin/groups, kh, kw] and a result [..., Cout, Ho, Wo], the layout of torchvision and ONNX.
      precision: of the matrix products, as in `jax.lax.dot_general`.
      preferred_element_type: the result's type; the common type of x and weight by default. Sums are always taken in
        float32 or wider and rounded once. Samples of 16-bit data, times their masks, are rounded to 16 bits before the
        product, as matrix units take them, and must lie in their range. So are, where the gradient of x holds no
        samples, the sums of the cotangents that touch a pixel by one tap.
      deterministic: whether the result must repeat to the last bit. The kernels' always does, so on CPU and CUDA both
        values mean the same.
      backend: None for the kernels of the platform the computation runs on, "reference" for the `jax.numpy` form.

    From torchvision: stride and dilation are strides and kernel_dilation; padding is 0 by default there; groups are
    read off the weight there, and given as feature_group_count here; at a position of -1 its derivatives differ.

    Returns:
      [..., Ho, Wo, Cout].

    Raises:
      TypeError: an argument is of a wrong type, or an array of one that is not supported.
      ValueError: a shape or value does not fit.

    References:
      Dai et al., Deformable Convolutional Networks, arXiv:1703.06211, equations 1 to 4; Zhu et al., Deformable
      ConvNets v2, arXiv:1811.11168, equation 1.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, weight = jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 2, 4))
      >>> y = jax_dcn.deform_conv2d(x, jnp.zeros((1, 5, 5, 18)), weight)
      >>> y.shape, float(y[0, 2, 2, 0]), float(y[0, 0, 0, 0])
      ((1, 5, 5, 4), 18.0, 8.0)
    """
    problem = canonicalize(
        x,
        offset,
        weight,
        bias,
        mask,
        strides=strides,
        padding=padding,
        kernel_dilation=kernel_dilation,
        feature_group_count=feature_group_count,
        data_format=data_format,
        precision=precision,
        preferred_element_type=preferred_element_type,
        deterministic=deterministic,
        backend=backend,
    )
    y = deform_conv(**problem.operands, spec=problem.spec, backend=backend)
    return channels_first(y) if data_format == "NCHW" else y


def deform_conv2d_input_grad(
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike | None = None,
    **options: Unpack[Options],
) -> jax.Array:
    """The gradient of a deformable convolution in its input, and nothing else.

    Args:
      cotangent: of the result, and shaped like it.
      x, offset, weight, mask, options: those of `deform_conv2d`. Of x only shape and type matter.

    Returns:
      The gradient, of x's shape and type.

    Raises:
      TypeError, ValueError: as `deform_conv2d`; also where the cotangent does not fit the result.

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

    Arguments, errors and result as those of `deform_conv2d_input_grad`; the gradient has the offset's shape and type.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.arange(4.0).reshape(1, 4, 1)  # rises by 1 a column
      >>> offset, weight = jnp.zeros((1, 4, 2)), jnp.ones((1, 1, 1, 1))
      >>> jax_dcn.deform_conv2d_offset_grad(jnp.ones((1, 4, 1)), x, offset, weight)[0, :, 1]
      Array([ 1.,  1.,  1., -3.], dtype=float32)
    """
    return _gradient("offset", cotangent, x, offset, weight, mask, options)


def deform_conv2d_mask_grad(
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike,
    **options: Unpack[Options],
) -> jax.Array:
    """The gradient of a deformable convolution in its mask, and nothing else.

    Arguments, errors and result as those of `deform_conv2d_input_grad`; the gradient has the mask's shape and type.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, weight = jnp.arange(4.0).reshape(1, 4, 1), jnp.full((1, 1, 1, 1), 2.0)
      >>> offset, mask = jnp.full((1, 4, 2), 0.5).at[..., 0].set(0), jnp.ones((1, 4, 1))
      >>> jax_dcn.deform_conv2d_mask_grad(jnp.ones((1, 4, 1)), x, offset, weight, mask)[0, :, 0]
      Array([1., 3., 5., 3.], dtype=float32)
    """
    return _gradient("mask", cotangent, x, offset, weight, _validation.array("mask", mask), options)


def deform_conv2d_weight_grad(
    cotangent: ArrayLike,
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike | None = None,
    **options: Unpack[Options],
) -> jax.Array:
    """The gradient of a deformable convolution in its weight, and nothing else.

    Arguments, errors and result as those of `deform_conv2d_input_grad`; the gradient has the weight's shape and type.
    Of the weight only shape and type matter.

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
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike | None,
    options: Options,
) -> jax.Array:
    if unknown := options.keys() - Options.__annotations__.keys():
        function = f"deform_conv2d_{'input' if name == 'x' else name}_grad"
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")
    problem = canonicalize(x, offset, weight, None, mask, **options)
    first = options.get("data_format") == "NCHW"
    cotangent = _validation.array("cotangent", cotangent)
    expected = result(**problem.operands, spec=problem.spec).shape
    if first:
        expected = (*expected[:-3], expected[-1], *expected[-3:-1])
    if cotangent.shape != expected:
        raise ValueError(f"cotangent must have the result's shape {expected}, got {cotangent.shape}")
    cotangent = (channels_last(cotangent) if first else cotangent).astype(problem.spec.dtype)
    *operands, ct = jax_internals.vary_alike([*problem.operands.values(), cotangent])
    gradient = deform_conv.cotangents(
        **dict(zip(problem.operands, operands, strict=True)),
        cotangent=ct,
        requested=(name,),
        spec=problem.spec,
        backend=options.get("backend"),
    )[name]
    if first:
        gradient = jnp.transpose(gradient, (3, 2, 0, 1)) if name == "weight" else channels_first(gradient)
    operand = {"x": x, "offset": offset, "weight": weight, "mask": mask}[name]
    return gradient.astype(_validation.array(name, operand).dtype)
