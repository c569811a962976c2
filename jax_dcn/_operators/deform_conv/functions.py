"""The public functions."""

from typing import Any, Literal, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv.arguments import Operands, canonicalize, channels_first, channels_last
from jax_dcn._operators.deform_conv.primitive import deform_conv, result
from jax_dcn._primitive import jax_internals
from jax_dcn._types import Backend, Padding, Pair


class Options(TypedDict, total=False):
    """The keywords of `deform_conv2d`, of its gradients and of `kernel_plan`."""

    strides: Pair
    padding: Padding
    kernel_dilation: Pair
    feature_group_count: int
    data_format: Literal["NHWC", "NCHW"]
    precision: Any
    preferred_element_type: DTypeLike | None
    deterministic: bool | None
    backend: Backend


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
    backend: Backend = None,
) -> jax.Array:
    """Deformable convolution, without a mask (v1) or with one (v2).

    Tap k = (i, j) of the kernel, for output (ho, wo) and offset group g, samples x at::

        y = ho · strides[0] - top  + i · kernel_dilation[0] + offset[ho, wo, (g·K + k)·2]
        x = wo · strides[1] - left + j · kernel_dilation[1] + offset[ho, wo, (g·K + k)·2 + 1]

    with bilinear interpolation and zeros outside the image, and multiplies the sample by mask[ho, wo, g·K + k]. A
    grouped convolution of the samples follows. K = kh·kw; taps are counted row by row; offsets are in pixels of x. The
    number of offset groups G follows from the number of channels of offset. Input channel c belongs to offset group
    c // (Cin/G) and to feature group c // (Cin/groups). Neither number needs to divide the other.

    Derivatives exist to any order, in forward and reverse mode. Where a position is an integer, the derivative in the
    offset is the right-hand one. At and beyond -1 and the image's height (or width) it is zero. A sample with an
    infinite offset is zero. A NaN offset makes its sample and its own gradients NaN, and adds nothing to the gradient
    of x.

    Over several devices, `jit` shards the convolution as its operands are sharded: by batch dimensions, by rows and
    columns of offset and mask, by features of weight and bias, and by channels of x if there are groups. Operands that
    are sharded otherwise are gathered.

    On CUDA, fused kernels can sample and multiply on tensor cores, without storing the samples, where this holds:

    ===========================  ============================================  =========================================
    condition on                 forward                                       gradients, in addition
    ===========================  ============================================  =========================================
    type of x and weight         16 bits, or float32 if precision allows tf32  for weight: 16 bits
    type of the result           that of x, or float32                         that of x
    channels per (offset) group  a multiple of 16 bytes                        one number divides the other
    output channels per group    an even number                                a multiple of 16 bytes
    size of an image                                                           for x: scatter lists of up to 128 MiB
    ===========================  ============================================  =========================================

    The default precision allows tf32. On a CPU with AVX2, fused kernels take most calls in float32, bfloat16 and
    float16; docs/memory.md lists the conditions. All other calls take the im2col path: they sample columns, which XLA
    multiplies, in chunks. The path is chosen for the forward, and together for the gradients that are computed
    together. Where both paths are possible, the one that is estimated to be faster on the GPU runs; on a CPU, fixed
    limits of sizes decide. `jax_dcn.kernel_plan` says which path a call takes, and why. The workspace of the forward
    and of all derivatives does not grow with the batch; docs/memory.md says how large it is, and what does grow.

    Args:
      x: [..., H, W, Cin]; any number of batch dimensions, none included. float16, bfloat16, float32 or float64.
      offset: [..., Ho, Wo, G·K·2], dy before dx, in input pixels. Positions are computed in float32 or wider.
      weight: [kh, kw, Cin/groups, Cout]. x and weight are promoted to their common type.
      bias: [Cout], or None.
      mask: [..., Ho, Wo, G·K], used without a sigmoid or clipping, or None for ones.
      strides, kernel_dilation: an int, or one each for rows and columns.
      padding: "SAME", "SAME_LOWER", "VALID", an int, a pair of ints, ((top, bottom), (left, right)), or "CIRCULAR":
        the image is a torus, and positions wrap around.
      feature_group_count: the number of groups of the convolution.
      data_format: "NHWC", or "NCHW" for x [..., Cin, H, W], offset [..., G·K·2, Ho, Wo], mask [..., G·K, Ho, Wo],
        weight [Cout, Cin/groups, kh, kw] and a result [..., Cout, Ho, Wo], the layout of torchvision and ONNX.
      precision: the precision of the matrix products, as in `jax.lax.dot_general`.
      preferred_element_type: the result's type; the common type of x and weight by default. Sums are always accumulated
        in float32 or wider and rounded once. Samples of 16-bit data, times their masks, are rounded to 16 bits before
        the product, and must be in the range of this type. The exception are the fused kernels of a CPU, which round
        samples only where they multiply pairs of bfloat16. On CUDA, the fused gradient of x also rounds the sum of the
        cotangents that each tap contributes to a pixel.
      deterministic: whether the result must be the same to the last bit on every run. The kernels' results always are,
        so both values mean the same on CPU and CUDA.
      backend: None for the kernels of the platform that the computation runs on, by the path that is chosen as
        described above; "fused" or "im2col" for the kernels of this path; "reference" for the `jax.numpy` form.
        Compiling raises ValueError where "fused" was passed and the path cannot compute the result or a gradient.

    Coming from torchvision: stride and dilation are called strides and kernel_dilation here. There padding is 0 by
    default, and the number of groups follows from the weight; here it is feature_group_count. The derivatives differ at
    a position of exactly -1.

    Returns:
      [..., Ho, Wo, Cout].

    Raises:
      TypeError: an argument has a wrong type, or an array has a dtype that is not supported.
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
    y = deform_conv(problem.operands, spec=problem.spec, backend=backend)
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

    Arguments, errors and result are those of `deform_conv2d_input_grad`; the gradient has mask's shape and type.

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
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike | None,
    options: Options,
) -> jax.Array:
    function = f"deform_conv2d_{'input' if name == 'x' else name}_grad"
    _validation.keywords(function, options, Options.__annotations__)
    problem = canonicalize(x, offset, weight, None, mask, **options)
    first = options.get("data_format") == "NCHW"
    cotangent = _validation.array("cotangent", cotangent)
    expected = result(problem.operands, spec=problem.spec).shape
    if first:
        expected = (*expected[:-3], expected[-1], *expected[-3:-1])
    if cotangent.shape != expected:
        raise ValueError(f"cotangent must have the result's shape {expected}, got {cotangent.shape}")
    cotangent = (channels_last(cotangent) if first else cotangent).astype(problem.spec.dtype)
    *operands, ct = jax_internals.vary_alike([*problem.operands, cotangent])
    gradient = deform_conv.cotangents(
        Operands(*operands),
        cotangent=ct,
        requested=(name,),
        spec=problem.spec,
        backend=options.get("backend"),
    )[name]
    if first:
        gradient = jnp.transpose(gradient, (3, 2, 0, 1)) if name == "weight" else channels_first(gradient)
    operand = {"x": x, "offset": offset, "weight": weight, "mask": mask}[name]
    return gradient.astype(_validation.array(name, operand).dtype)
