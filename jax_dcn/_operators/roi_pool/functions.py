"""The public functions."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.roi_pool import primitive
from jax_dcn._operators.roi_pool.arguments import Spec, align_spec, canonicalize, psroi_spec
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._types import Pair


def deform_psroi_pool(
    x: ArrayLike,
    rois: ArrayLike,
    offset: ArrayLike | None = None,
    *,
    output_size: Pair,
    spatial_scale: float = 1.0,
    group_size: Pair = 1,
    part_size: Pair | None = None,
    sample_per_part: Pair = 4,
    trans_std: float = 0.1,
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Deformable position-sensitive RoI pooling; plain position-sensitive RoI pooling without an offset.

    A region of interest is divided into output_size bins. Bin (ph, pw) of feature d is the mean of channel
    (d·group_size + gh)·group_size + gw of x over sample_per_part² sampling points, where gh = ⌊ph·group_size /
    output_size⌋, and gw likewise. The offset of part ⌊ph·part_size / output_size⌋ (and likewise for pw) shifts all
    points of the bin, by a fraction trans_std of the region's size. In pixels of x, along each axis::

        start = round(x1) · spatial_scale - 0.5
        size  = max((round(x2) + 1) · spatial_scale - 0.5 - start, 0.1),  bin = size / output_size
        point i of bin p lies at start + p · bin + offset · trans_std · size + i · bin / sample_per_part

    where halves are rounded away from zero. Points outside [-0.5, W - 0.5] do not count. The others are clamped to
    [0, W - 1] and interpolated bilinearly. A bin without points that count is zero.

    Derivatives in x and offset exist to any order, in forward and reverse mode; derivatives in rois are zero. Where a
    clamped coordinate of a point is an integer, the derivative of this point along this axis is zero.

    A region whose image index is outside [0, N), such as the usual padding index -1, gives zeros. A region with a
    coordinate that is not finite gives NaN. Neither has gradients, and neither reads x. A NaN offset makes its bins
    NaN; an infinite offset moves them out of the image.

    Over several devices, `jit` shards the pooling as its operands are sharded: by batch dimensions in front of the
    images, by regions, and by features. A region may lie in any of the N images, so images that are sharded along N are
    gathered. To keep each image on its own device, make every image a batch of its own.

    docs/deform_psroi_pool.md explains all of this step by step, compares it with RoI pooling and RoIAlign, and shows
    how to convert boxes; docs/migrating.md has MXNet's arguments. `jax_dcn.kernel_plan` says which kernels run, and
    what workspace they need.

    Args:
      x: [..., N, H, W, D·group_size²]; float16, bfloat16, float32 or float64. All arrays may have leading batch
        dimensions.
      rois: [..., R, 5]: image index, x1, y1, x2, y2 in pixels of the input image, including the last one; float32,
        float64 or integers. 16-bit types are refused: they cannot tell the pixels of a large image apart.
      offset: [..., R, part_size, part_size, 2·classes], dx before dy, of any type that x may have; feature d belongs to
        class d // (D/classes). None means zeros.
      output_size, group_size, part_size, sample_per_part: an int, or one each for rows and columns. part_size is
        output_size by default.
      spatial_scale: the size of x relative to the input image: 1/16 for features of stride 16.
      trans_std: the fraction of the region's size that an offset of 1 means. Like spatial_scale it is a number, not a
        traced array.
      data_format: "NHWC", or "NCHW" for x [..., N, C, H, W], offset [..., R, 2·classes, part_size, part_size] and a
        result [..., R, D, output_size, output_size], the layout of MXNet.
      deterministic: whether the result must be the same to the last bit on every run. The kernels' results always are,
        so both values mean the same on CPU and CUDA.
      backend: None for the kernels of the platform that the computation runs on, "reference" for the `jax.numpy` form.

    Returns:
      [..., R, output_size, output_size, D], of x's type.

    Raises:
      TypeError: an argument has a wrong type, or an array has a dtype that is not supported.
      ValueError: a shape or value does not fit.

    References:
      Dai et al., Deformable Convolutional Networks, arXiv:1703.06211, equations 5 and 6; Dai et al., R-FCN,
      arXiv:1605.06409, equation 1.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.broadcast_to(jnp.arange(8.0), (1, 8, 8))[..., None]  # rises by 1 a column
      >>> rois = jnp.array([[0, 2, 2, 5, 5], [-1, 0, 0, 0, 0]])  # the second is padding
      >>> jax_dcn.deform_psroi_pool(x, rois, output_size=2)[..., 0]
      Array([[[2.25, 4.25],
              [2.25, 4.25]],
      <BLANKLINE>
             [[0.  , 0.  ],
              [0.  , 0.  ]]], dtype=float32)
    """
    spec = psroi_spec(
        output_size=output_size,
        spatial_scale=spatial_scale,
        group_size=group_size,
        part_size=part_size,
        sample_per_part=sample_per_part,
        trans_std=trans_std,
    )
    return _pool(x, rois, offset, spec, data_format=data_format, deterministic=deterministic, backend=backend)


def psroi_pool(
    x: ArrayLike,
    rois: ArrayLike,
    *,
    output_size: Pair,
    spatial_scale: float = 1.0,
    group_size: Pair = 1,
    sample_per_part: Pair = 4,
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Position-sensitive RoI pooling: `deform_psroi_pool` without an offset, with its arguments, errors and result.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x, rois = jnp.ones((1, 8, 8, 2 * 9)), jnp.array([[0.0, 1.0, 1.0, 6.0, 6.0]])
      >>> jax_dcn.psroi_pool(x, rois, output_size=3, group_size=3).shape
      (1, 3, 3, 2)
    """
    return deform_psroi_pool(
        x,
        rois,
        output_size=output_size,
        spatial_scale=spatial_scale,
        group_size=group_size,
        sample_per_part=sample_per_part,
        data_format=data_format,
        deterministic=deterministic,
        backend=backend,
    )


def roi_align(
    x: ArrayLike,
    rois: ArrayLike,
    *,
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: Pair = 0,
    aligned: bool = True,
    mode: Literal["avg", "max"] = "avg",
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """RoIAlign: the mean, or the maximum, of bilinear samples in each bin of a region. That of torchvision and mmcv.

    Along each axis, in pixels of x, and with half = 0.5 if aligned, otherwise 0::

        start = x1 · spatial_scale - half
        size  = x2 · spatial_scale - half - start,  at least 1 if not aligned;  bin = size / output_size
        point i of bin p lies at start + p · bin + (i + 1/2) · bin / points

    where points is sampling_ratio, or ⌈bin⌉ if that is 0. Points outside [-1, W] are zero. The others are clamped to
    [0, W - 1] and interpolated bilinearly. A bin is the mean of all its points, also of those outside, or zero if it
    has none.

    Derivatives in x exist to any order, in forward and reverse mode; derivatives in rois are zero. The gradient of a
    maximum goes to the first largest point. Regions that are padding or not finite, and sharding over several devices,
    are as in `deform_psroi_pool`. The cost of a mean does not grow with the points. docs/migrating.md compares this
    function with those of other libraries.

    Args:
      x: [..., N, H, W, C]; float16, bfloat16, float32 or float64. All arrays may have leading batch dimensions.
      rois: [..., R, 5]: image index, x1, y1, x2, y2, continuous coordinates of the input image; float32, float64 or
        integers.
      output_size: the number of bins, an int or one each for rows and columns.
      spatial_scale: the size of x relative to the input image: 1/16 for features of stride 16.
      sampling_ratio: the number of points of a bin along each axis, an int or one each for rows and columns. 0 adapts
        it to each region, so that points are at most one pixel apart.
      aligned: whether pixel centres are at half-integer coordinates of the image, as they are in new models. False is
        the older form without the half pixel.
      mode: "avg" for the mean of the points, "max" for the largest. NaN is the largest.
      data_format: "NHWC", or "NCHW" for x [..., N, C, H, W] and a result [..., R, C, output_size, output_size], the
        layout of torchvision.
      deterministic, backend: as in `deform_psroi_pool`.

    Returns:
      [..., R, output_size, output_size, C], of x's type.

    Raises:
      TypeError: an argument has a wrong type, or an array has a dtype that is not supported.
      ValueError: a shape or value does not fit.

    References:
      He et al., Mask R-CNN, arXiv:1703.06870, section 3.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.broadcast_to(jnp.arange(8.0), (1, 8, 8))[..., None]  # rises by 1 a column
      >>> jax_dcn.roi_align(x, jnp.array([[0.0, 2.0, 2.0, 6.0, 6.0]]), output_size=2)[0, ..., 0]
      Array([[2.5, 4.5],
             [2.5, 4.5]], dtype=float32)
    """
    _validation.choice("aligned", aligned, (True, False))
    _validation.choice("mode", mode, ("avg", "max"))
    spec = align_spec(output_size, spatial_scale, sampling_ratio, aligned=aligned)
    pooling = primitive.deform_roi_max_pool if mode == "max" else primitive.deform_roi_pool
    return _pool(x, rois, None, spec, pooling, data_format=data_format, deterministic=deterministic, backend=backend)


def ps_roi_align(
    x: ArrayLike,
    rois: ArrayLike,
    *,
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: Pair = 0,
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Position-sensitive RoIAlign, that of torchvision: `roi_align` whose bins each have channels of their own.

    Feature d of bin (ph, pw) is the mean of channel (d·output_size + ph)·output_size + pw of x over the points of the
    bin, which are those of `roi_align` with aligned=True. A bin without points is zero; torchvision divides 0 by 0.

    Args:
      x: [..., N, H, W, D·output_size²], or with data_format="NCHW" [..., N, D·output_size², H, W].
      rois, output_size, spatial_scale, sampling_ratio, data_format, deterministic, backend: as in `roi_align`.

    Returns:
      [..., R, output_size, output_size, D], of x's type; with "NCHW", [..., R, D, output_size, output_size].

    Raises:
      TypeError, ValueError: as `roi_align`.

    References:
      Li et al., Light-Head R-CNN, arXiv:1711.07264.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.broadcast_to(jnp.arange(4.0), (1, 6, 6, 4))  # channel k is k
      >>> jax_dcn.ps_roi_align(x, jnp.array([[0.0, 1.0, 1.0, 5.0, 5.0]]), output_size=2)[0, ..., 0]
      Array([[0., 1.],
             [2., 3.]], dtype=float32)
    """
    spec = align_spec(output_size, spatial_scale, sampling_ratio, position_sensitive=True)
    return _pool(x, rois, None, spec, data_format=data_format, deterministic=deterministic, backend=backend)


def deform_roi_pool(
    x: ArrayLike,
    rois: ArrayLike,
    offset: ArrayLike | None = None,
    *,
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: Pair = 0,
    gamma: float = 0.1,
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Deformable RoI pooling, that of mmcv: `roi_align` with aligned=True, whose bins an offset moves.

    The offset (dx, dy) of a bin moves all its points by gamma · offset · size, where size is that of the region along
    the axis, in pixels of x. Derivatives in x and offset exist to any order. That in offset is the derivative of the
    result: where a coordinate is clamped to the image, it is zero. (mmcv's own gradient extrapolates there.) On a pixel
    it is the slope to the right.

    Args:
      x, rois, output_size, spatial_scale, sampling_ratio, deterministic, backend: as in `roi_align`.
      offset: [..., R, output_size, output_size, 2], dx before dy, of any type that x may have; None means zeros. A NaN
        makes its bin NaN; infinity moves the bin out of the image.
      gamma: the fraction of the region's size that an offset of 1 means. A number, not a traced array.
      data_format: "NHWC", or "NCHW" for x [..., N, C, H, W], offset [..., R, 2, output_size, output_size] and a result
        [..., R, C, output_size, output_size], the layout of mmcv.

    Returns:
      [..., R, output_size, output_size, C], of x's type.

    Raises:
      TypeError, ValueError: as `roi_align`.

    References:
      Dai et al., Deformable Convolutional Networks, arXiv:1703.06211, equations 5 and 6.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.broadcast_to(jnp.arange(8.0), (1, 8, 8))[..., None]  # rises by 1 a column
      >>> rois, offset = jnp.array([[0.0, 1.0, 1.0, 5.0, 5.0]]), jnp.array([1.0, 0.0])  # one column of pixels is 1/4
      >>> jax_dcn.deform_roi_pool(x, rois, offset[None, None, None], output_size=1, gamma=0.25)
      Array([[[[3.5]]]], dtype=float32)
    """
    spec = align_spec(output_size, spatial_scale, sampling_ratio, gamma=gamma)
    return _pool(
        x, rois, offset, spec, classes=1, data_format=data_format, deterministic=deterministic, backend=backend
    )


def _pool(
    x: ArrayLike,
    rois: ArrayLike,
    offset: ArrayLike | None,
    spec: Spec,
    pooling: Primitive[Spec] = primitive.deform_roi_pool,
    *,
    backend: Literal["reference"] | None,
    data_format: str,
    **checked: Any,
) -> jax.Array:
    operands = canonicalize(x, rois, offset, spec, data_format=data_format, backend=backend, **checked)
    pooled = pooling(operands, spec=spec, backend=backend).astype(jnp.asarray(x).dtype)
    return jnp.moveaxis(pooled, -1, -3) if data_format == "NCHW" else pooled
