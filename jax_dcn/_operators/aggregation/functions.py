"""The public functions."""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.aggregation.arguments import CanonicalCall, canonicalize_attention, canonicalize_dcnv3
from jax_dcn._operators.aggregation.primitive import deform_aggregation
from jax_dcn._primitive.jax_internals import reshape
from jax_dcn._types import Pair

Pads = int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]


def multi_scale_deformable_attention(
    value: ArrayLike,
    sampling_locations: ArrayLike,
    attention_weights: ArrayLike,
    *,
    spatial_shapes: Sequence[Sequence[int]],
    points: Sequence[int] | None = None,
    method: Literal["bilinear", "discrete"] = "bilinear",
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """Multi-scale deformable attention: each query and head sums a few weighted samples of a feature pyramid.

    The value holds the pixels of L feature maps, one after the other. Head m of query q samples level l, of height H
    and width W, at P locations, and sums::

        result[q, m] = Σ_l Σ_p attention_weights[q, m, l, p] · sample(level l of value[:, m], location[q, m, l, p])

    A location (x, y) is a fraction of the level: 0 is the left or top edge of its first pixel, and (i + 0.5) / W the
    centre of pixel i. In pixels it lies at x · W - 0.5 and y · H - 0.5. There the level is interpolated bilinearly;
    pixels outside count as zero. The weights are used as they are: a layer normalises them with a softmax.

    With method="discrete" a tap reads the single pixel in column ⌊x · W + 0.5⌋ and row ⌊y · H + 0.5⌋, clamped to the
    level, as RT-DETRv2 exports it. The derivative in the locations is then zero.

    Derivatives exist to any order, in forward and reverse mode. The derivative in a location is right-hand where a
    position is on a pixel, and zero at and beyond -1, W and H. A NaN location makes the results that use it NaN, and an
    infinite one is outside.

    Over several devices, `jit` shards the attention as its operands are sharded: by batch dimensions, queries and
    heads. The pixels of the value are gathered, because a tap may read any of them.

    docs/aggregation.md explains this step by step, and docs/migrating.md has the names and layouts of other libraries.
    `jax_dcn.linen.MultiScaleDeformableAttention` is the layer around it.

    Args:
      value: [..., S, M, D], S the sum of all H · W, M heads of D channels; float16, bfloat16, float32 or float64. All
        arrays have the same leading batch dimensions.
      sampling_locations: [..., Q, M, L, P, 2], or with `points` [..., Q, M, sum(points), 2]; float32, float64 or
        integers. 16-bit types are refused: they cannot tell the pixels of a large map apart.
      attention_weights: [..., Q, M, L, P], or with `points` [..., Q, M, sum(points)], of any type that value may have.
      spatial_shapes: the (H, W) of each level, at most 32, as Python or numpy numbers.
      points: how many of the taps sample each level, where the numbers differ between levels. None means P on each.
      method: "bilinear" or "discrete".
      deterministic: whether the result must be the same to the last bit on every run. The kernels' results always are,
        so both values mean the same on CPU and CUDA.
      backend: None for the kernels of the platform that the computation runs on, "reference" for the `jax.numpy` form.

    Returns:
      [..., Q, M · D], of value's type, summed in float32 or wider.

    Raises:
      TypeError: an argument has a wrong type, or an array has a dtype that is not supported.
      ValueError: a shape or value does not fit.

    References:
      Zhu et al., Deformable DETR, arXiv:2010.04159, equation 3; Lv et al., RT-DETRv2, arXiv:2407.17140.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> levels = ((4, 8), (2, 4))
      >>> columns = jnp.concatenate([jnp.tile(jnp.arange(float(w)), h) for h, w in levels])
      >>> value = columns[:, None, None]  # each pixel holds its column
      >>> centre = jnp.full((1, 1, 2, 1, 2), 0.5)  # a query with one point on each level
      >>> weights = jnp.ones((1, 1, 2, 1))
      >>> jax_dcn.multi_scale_deformable_attention(value, centre, weights, spatial_shapes=levels)  # 3.5 + 1.5
      Array([[5.]], dtype=float32)
    """
    canonical = canonicalize_attention(
        value, sampling_locations, attention_weights, spatial_shapes=spatial_shapes, points=points, method=method
    )
    return _aggregate(canonical, value, deterministic, backend)


def dcnv3(
    x: ArrayLike,
    offset: ArrayLike,
    mask: ArrayLike,
    *,
    kernel_size: Pair,
    strides: Pair = 1,
    padding: Pads,
    kernel_dilation: Pair = 1,
    groups: int,
    offset_scale: float = 1.0,
    remove_center: bool = False,
    deterministic: bool | None = None,
    backend: Literal["reference"] | None = None,
) -> jax.Array:
    """The operator of DCNv3 (InternImage) and DCNv4: each output pixel and group sums K weighted samples of x.

    Unlike `deform_conv2d` it has no weights of its own: a group of channels is sampled at K = kh · kw places around the
    output pixel, and the samples are summed with the weights in `mask`. Tap t, in column j = t // kh and row i = t % kh
    of the window, of output pixel (ho, wo) lies at::

        half = (kernel_dilation · (kernel_size - 1)) // 2
        y = ho · stride - top  + half + (i · kernel_dilation - half + dy) · offset_scale
        x = wo · stride - left + half + (j · kernel_dilation - half + dx) · offset_scale

    so that `offset_scale` scales the window, too. There x is interpolated bilinearly; pixels outside count as zero. The
    mask is used as it is: DCNv3's layer normalises it with a softmax over the taps of a group, DCNv4's does not.

    Derivatives exist to any order, in forward and reverse mode, with the rules of `deform_conv2d` at pixels, borders,
    NaN and infinity. Over several devices, `jit` shards it by batch dimensions, output rows and columns, and groups.

    docs/migrating.md compares it with InternImage's and DCNv4's extensions, and shows how to convert their arguments.
    `jax_dcn.linen.DCNv3` and `jax_dcn.linen.DCNv4` are the layers around it.

    Args:
      x: [..., H, W, C]; float16, bfloat16, float32 or float64. Group g has the channels from g · C/G on. All arrays
        have the same leading batch dimensions.
      offset: [..., Ho, Wo, G·K·2], (dx, dy) in pixels of tap t of group g in channels (g·K + t)·2 and (g·K + t)·2 + 1,
        of any type that x may have.
      mask: [..., Ho, Wo, G·K], of any type that x may have.
      kernel_size, strides, kernel_dilation: an int, or one each for rows and columns.
      padding: an int, a pair of ints, or ((top, bottom), (left, right)).
      groups: G, a divisor of C.
      offset_scale: a number, not a traced array.
      remove_center: whether the window has no tap at column kw // 2, row kh // 2; then K = kh · kw - 1.
      deterministic, backend: as in `multi_scale_deformable_attention`.

    Returns:
      [..., Ho, Wo, C], of x's type, summed in float32 or wider.

    Raises:
      TypeError: an argument has a wrong type, or an array has a dtype that is not supported.
      ValueError: a shape or value does not fit.

    References:
      Wang et al., InternImage, arXiv:2211.05778, equation 2; Xiong et al., Efficient Deformable ConvNets,
      arXiv:2401.06197.

    Example:
      >>> import jax.numpy as jnp, jax_dcn
      >>> x = jnp.ones((1, 4, 4, 6))
      >>> offset, mask = jnp.zeros((1, 4, 4, 2 * 9 * 2)), jnp.full((1, 4, 4, 2 * 9), 1 / 9)
      >>> y = jax_dcn.dcnv3(x, offset, mask, kernel_size=3, padding=1, groups=2)
      >>> y[0, :, :, 0]  # the mean of 3x3 pixels, of which those outside are zeros
      Array([[0.44444445, 0.6666667 , 0.6666667 , 0.44444445],
             [0.6666667 , 1.        , 1.        , 0.6666667 ],
             [0.6666667 , 1.        , 1.        , 0.6666667 ],
             [0.44444445, 0.6666667 , 0.6666667 , 0.44444445]], dtype=float32)
    """
    canonical = canonicalize_dcnv3(
        x,
        offset,
        mask,
        kernel_size=kernel_size,
        strides=strides,
        padding=padding,
        kernel_dilation=kernel_dilation,
        groups=groups,
        offset_scale=offset_scale,
        remove_center=remove_center,
    )
    return _aggregate(canonical, x, deterministic, backend)


def _aggregate(canonical: CanonicalCall, value: ArrayLike, deterministic: bool | None, backend: Any) -> jax.Array:
    """The result, with the heads merged into its channels, of value's type."""
    _validation.run_options(deterministic, backend)
    out = deform_aggregation(canonical.operands, spec=canonical.spec, backend=backend)
    return reshape(out, (*out.shape[:-2], out.shape[-2] * out.shape[-1])).astype(jnp.asarray(value).dtype)
