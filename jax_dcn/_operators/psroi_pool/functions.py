"""The public functions."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.psroi_pool.arguments import canonicalize
from jax_dcn._operators.psroi_pool.primitive import deform_psroi_pool as pool
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
    """Deformable position-sensitive RoI pooling, or without an offset plain position-sensitive RoI pooling.

    A region of interest is cut into output_size bins. Bin (ph, pw) of feature d averages channel
    (d·group_size + gh)·group_size + gw of x over a grid of sample_per_part² points, where gh = ⌊ph·group_size /
    output_size⌋ and gw likewise; the points of a bin move by the offset of its part (⌊ph·part_size / output_size⌋, and
    likewise), as a fraction trans_std of the region's size. In x's pixels, along each axis::

        start = round(x1) · spatial_scale - 0.5
        size  = max((round(x2) + 1) · spatial_scale - 0.5 - start, 0.1),  bin = size / output_size
        point i of bin p lies at start + p · bin + offset · trans_std · size + i · bin / sample_per_part

    where halves are rounded away from zero. A point outside [-0.5, W - 0.5] is left out; the others are clamped to
    [0, W - 1] and read bilinearly, and the bin is their mean, zero where there are none.

    All derivatives in x and offset exist, of every order, in forward and reverse mode; in rois they are zero. Where a
    point's clamped coordinate is an integer, its derivative along that axis is zero.

    A region whose image index lies outside [0, N), as padding has -1, gives zeros; one with a coordinate that is not
    finite gives not-a-number; neither has gradients nor reads x. An offset that is not a number makes its bins so; an
    infinite one moves them out of the image.

    Over several devices, `jit` splits it as its operands are split: by batch dimensions in front of the images, by
    regions, and by features. A region may lie in any of N images, so these are gathered where N is split: where each
    device is to have its own, let every image be a batch.

    docs/deform_psroi_pool.md, beside the sources, takes all of this step by step, compares it with RoI pooling and
    RoIAlign, and says how to bring boxes and MXNet's arguments here.

    Args:
      x: [..., N, H, W, D·group_size²]; float16, bfloat16, float32 or float64. Batch dimensions may stand in front of
        all arrays.
      rois: [..., R, 5]: image index, x1, y1, x2, y2 in pixels of the input image, the last one included; float32,
        float64 or integers. 16-bit types are refused: they cannot tell the pixels of a large image apart.
      offset: [..., R, part_size, part_size, 2·classes], dx before dy, of any type that x may have; feature d belongs to
        class d // (D/classes). None is the same as zeros.
      output_size, group_size, part_size, sample_per_part: an int, or one each for rows and columns. part_size is
        output_size by default.
      spatial_scale: of x to the input image: 1/16 for features of stride 16.
      trans_std: what fraction of the region's size an offset of 1 is. Like spatial_scale it is a number, not a traced
        array.
      data_format: "NHWC", or "NCHW" for x [..., N, C, H, W], offset [..., R, 2·classes, part_size, part_size] and a
        result [..., R, D, output_size, output_size], the layout of MXNet.
      deterministic: whether the result must repeat to the last bit. The kernels' always does, so on CPU and CUDA both
        values mean the same.
      backend: None for the kernels of the platform the computation runs on, "reference" for the `jax.numpy` form.

    Returns:
      [..., R, output_size, output_size, D], of x's type.

    Raises:
      TypeError: an argument is of a wrong type, or an array of one that is not supported.
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
    problem = canonicalize(
        x,
        rois,
        offset,
        output_size=output_size,
        spatial_scale=spatial_scale,
        group_size=group_size,
        part_size=part_size,
        sample_per_part=sample_per_part,
        trans_std=trans_std,
        data_format=data_format,
        deterministic=deterministic,
        backend=backend,
    )
    pooled = pool(**problem.operands, spec=problem.spec, backend=backend).astype(jnp.asarray(x).dtype)
    return jnp.moveaxis(pooled, -1, -3) if data_format == "NCHW" else pooled


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
