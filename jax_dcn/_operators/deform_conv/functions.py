"""The public functions."""

from typing import Any, Literal, TypedDict, Unpack

import jax
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._operators.deform_conv.arguments import FORMATS, GridOperands, canonicalize, channels_first, in_one_column
from jax_dcn._operators.deform_conv.on_grid import conv_on_grid
from jax_dcn._operators.deform_conv.primitive import deform_conv, deform_conv_of_volumes
from jax_dcn._types import Backend, Padding, Pair, Sizes


class Options(TypedDict, total=False):
    """The keywords of `deform_conv2d`, of its gradients and of `kernel_plan`."""

    strides: Sizes
    padding: Padding
    kernel_dilation: Sizes
    feature_group_count: int
    data_format: str
    precision: Any
    preferred_element_type: DTypeLike | None
    deterministic: bool | None
    backend: Backend


def deform_conv2d(
    x: ArrayLike,
    offset: ArrayLike | None,
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

    Two paths exist. The im2col path takes every call: kernels sample some columns at a time, and XLA multiplies them.
    The fused path is that of a CPU with AVX2, or of aarch64: its kernels sample and multiply without storing the
    columns, and take most calls in float32, bfloat16 and float16, with all gradients; docs/memory.md lists the
    conditions. `jax_dcn.kernel_plan` says which path a call takes, and why. The workspace of the forward and of all
    derivatives does not grow with the batch; docs/memory.md says how large it is, and what does grow.

    Without an offset, it is an ordinary convolution, with all options and derivatives, but without a mask or an im2col
    path. On a CPU, the fused kernels read one pixel where they would interpolate between four, and XLA computes what it
    is faster at, or everything with backend="reference". On other platforms, where it has no fused path, it is
    `jax.lax.conv_general_dilated`, which rounds sums and repeats bits as XLA does. Over several devices it is split by
    batch dimensions, features and groups on a CPU, and elsewhere as XLA splits convolutions.

    Args:
      x: [..., H, W, Cin]; any number of batch dimensions, none included. float16, bfloat16, float32 or float64.
      offset: [..., Ho, Wo, G·K·2], dy before dx, in pixels of x, or None for an ordinary convolution: its samples lie
        on the grid. Positions are computed in float32 or wider.
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
        the product, and must be in the range of this type. The fused kernels are the exception: they round samples
        only where they multiply pairs of bfloat16.
      deterministic: whether the result must be the same to the last bit on every run. The kernels' results always are,
        so both values mean the same on CPU and CUDA.
      backend: None for the kernels of the platform that the computation runs on, by the path that is chosen as
        described above; "fused" or "im2col" for the kernels of this path; "reference" for the `jax.numpy` form.
        Compiling raises ValueError where "fused" was passed and the path cannot compute the result or a gradient, as
        on a GPU.

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
    return _convolution(
        2,
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


def deform_conv1d(
    x: ArrayLike,
    offset: ArrayLike | None,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    strides: int | tuple[int] = 1,
    padding: Padding = "SAME",
    kernel_dilation: int | tuple[int] = 1,
    feature_group_count: int = 1,
    data_format: Literal["NWC", "NCW"] = "NWC",
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    deterministic: bool | None = None,
    backend: Backend = None,
) -> jax.Array:
    """Deformable convolution of signals: `deform_conv2d` with one axis.

    A signal is computed as an image of one column. What `deform_conv2d` says of rows, derivatives, kernels, paths and
    sharding also holds for the positions of a signal.

    Args:
      x: [..., W, Cin]; any number of batch dimensions, none included. float16, bfloat16, float32 or float64.
      offset: [..., Wo, G·K], in positions of x, or None for an ordinary convolution.
      weight: [k, Cin/groups, Cout].
      bias: [Cout], or None.
      mask: [..., Wo, G·K], or None for ones.
      strides, kernel_dilation: an int.
      padding: "SAME", "SAME_LOWER", "VALID", an int, ((left, right),), or "CIRCULAR".
      data_format: "NWC", or "NCW" for x [..., Cin, W], offset [..., G·K, Wo], mask [..., G·K, Wo], weight
        [Cout, Cin/groups, k] and a result [..., Cout, Wo].
      feature_group_count, precision, preferred_element_type, deterministic, backend: those of `deform_conv2d`.

    Returns:
      [..., Wo, Cout].

    Raises:
      TypeError, ValueError: as `deform_conv2d`.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, weight = jnp.arange(6.0).reshape(6, 1), jnp.ones((1, 1, 1))
      >>> jax_dcn.deform_conv1d(x, jnp.full((6, 1), 0.5), weight)[:, 0]
      Array([0.5, 1.5, 2.5, 3.5, 4.5, 2.5], dtype=float32)
    """
    return _convolution(
        1,
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


def deform_conv3d(
    x: ArrayLike,
    offset: ArrayLike | None,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    strides: int | tuple[int, int, int] = 1,
    padding: Padding = "SAME",
    kernel_dilation: int | tuple[int, int, int] = 1,
    feature_group_count: int = 1,
    data_format: Literal["NDHWC", "NCDHW"] = "NDHWC",
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    deterministic: bool | None = None,
    backend: Literal["im2col", "reference"] | None = None,
) -> jax.Array:
    """Deformable convolution of volumes: `deform_conv2d` with three axes.

    Tap k = (h, i, j) of the kernel samples x at the position of the tap on the grid, moved by
    (dz, dy, dx) = offset[..., (g·K + k)·3 + {0, 1, 2}], with trilinear interpolation and zeros outside the volume. K =
    kd·kh·kw; the last axis of the kernel is innermost. The derivatives, and what NaN and infinite offsets do, are those
    of `deform_conv2d`, for each coordinate.

    The kernels of `grid_sample` sample the columns and compute the cotangents of some planes or volumes at a time, and
    XLA multiplies. No fused kernels exist. Tangents are evaluated in `jax.numpy`, also for a part of the planes or
    volumes at a time. The workspace does not grow with the batch.

    Args:
      x: [..., D, H, W, Cin]; any number of batch dimensions, none included. float16, bfloat16, float32 or float64.
      offset: [..., Do, Ho, Wo, G·K·3], dz before dy before dx, in voxels of x, or None for an ordinary convolution,
        which XLA computes.
      weight: [kd, kh, kw, Cin/groups, Cout].
      bias: [Cout], or None.
      mask: [..., Do, Ho, Wo, G·K], or None for ones.
      strides, kernel_dilation: an int, or one each for planes, rows and columns.
      padding: "SAME", "SAME_LOWER", "VALID", an int, three ints, ((front, back), (top, bottom), (left, right)), or
        "CIRCULAR".
      data_format: "NDHWC", or "NCDHW" for x [..., Cin, D, H, W], offset [..., G·K·3, Do, Ho, Wo], mask
        [..., G·K, Do, Ho, Wo], weight [Cout, Cin/groups, kd, kh, kw] and a result [..., Cout, Do, Ho, Wo].
      feature_group_count, precision, preferred_element_type, deterministic: those of `deform_conv2d`.
      backend: None or "im2col" for the kernels, "reference" for the `jax.numpy` form. Compiling raises ValueError where
        "fused" was passed.

    Returns:
      [..., Do, Ho, Wo, Cout].

    Raises:
      TypeError, ValueError: as `deform_conv2d`.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, weight = jnp.ones((1, 4, 5, 5, 2)), jnp.ones((3, 3, 3, 2, 4))
      >>> y = jax_dcn.deform_conv3d(x, jnp.zeros((1, 4, 5, 5, 81)), weight)
      >>> y.shape, float(y[0, 2, 2, 2, 0]), float(y[0, 0, 0, 0, 0])
      ((1, 4, 5, 5, 4), 54.0, 16.0)
    """
    return _convolution(
        3,
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


def _convolution(
    dims: int,
    x: ArrayLike,
    offset: ArrayLike | None,
    weight: ArrayLike,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    **options: Unpack[Options],
) -> jax.Array:
    """The convolution of images of `dims` axes, by all arguments of the functions above."""
    operands, spec = canonicalize(dims, x, offset, weight, bias, mask, **options)
    backend = options["backend"]
    if isinstance(operands, GridOperands):
        y = conv_on_grid[dims](operands, spec=spec, backend=backend)
    elif dims == 1:
        operands, spec = in_one_column(operands, spec)
        y = deform_conv(operands, spec=spec, backend=backend).squeeze(-2)
    else:
        y = (deform_conv_of_volumes if dims == 3 else deform_conv)(operands, spec=spec, backend=backend)
    return channels_first(y, dims) if options["data_format"] == FORMATS[dims][1] else y
