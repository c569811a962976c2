"""Chooses the path of the forward and of each gradient, and says why. Lowering and `kernel_plan` both ask here."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv import cpu_fused, fused, gpu_estimate
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

INT32_MAX = 2**31 - 1


class Choice(NamedTuple):
    path: Literal["fused", "plain", "xla"]
    reason: str


def choose(computation: str, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec, target: Target) -> Choice:
    """The path of the forward, or of the cotangent of the operand of that name. No choice depends on another.

    It is the path that was requested, or else the faster one of those that are possible. Raises ValueError where the
    fused path was requested and is impossible.
    """
    if computation == "bias":
        return Choice("xla", "it is a sum over the cotangent of the result, which needs no kernel")
    why_not_fused = obstacle(computation, x, offset, weight, spec, target.platform)
    if spec.path == "fused" and why_not_fused is not None:
        what = "the forward" if computation == "forward" else f"the gradient of {computation}"
        raise ValueError(
            f"backend='fused' cannot compute {what}: {why_not_fused}. With backend=None it can be computed"
        )
    if spec.path is not None:
        return Choice(spec.path, f"backend={spec.path!r} was passed")
    if why_not_fused is not None:
        return Choice("plain", why_not_fused)
    if target.platform == "cpu":
        why_slow = cpu_fused.why_slow(computation, x, offset, weight, spec)
        return Choice("plain", why_slow) if why_slow else Choice("fused", f"the processor has {cpu_fused.INSTRUCTIONS}")
    return _faster(computation, known_sizes(x, offset, weight, spec), target)


def obstacle(computation: str, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec, platform: str) -> str | None:
    """What makes the fused path impossible, or None."""
    if platform == "cpu":
        return next(cpu_fused.obstacles(computation, x, offset, weight, spec), None)
    if computation == "forward":
        return next(_forward_obstacles(x, offset, weight, spec), None)
    return next(_cotangent_obstacles(computation, x, offset, weight, spec), None)


def sizes_of(x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> gpu_estimate.ConvolutionSizes:
    """The sizes as far as they are known: a symbolic number of images, or size of an image, counts as 1."""
    offset_groups, taps = groups_and_taps(offset, weight.shape[:2])
    images = x.shape[0] if isinstance(x.shape[0], int) else 1
    return gpu_estimate.ConvolutionSizes(
        images=images,
        image_pixels=fused.pixels(x) // max(images, 1),
        pixels=fused.pixels(offset),
        taps=taps,
        channels=x.shape[-1],
        features=weight.shape[-1],
        groups=spec.feature_group_count,
        offset_groups=offset_groups,
        itemsize=x.dtype.itemsize,
    )


def known_sizes(x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> gpu_estimate.ConvolutionSizes | None:
    """None if a size is symbolic, or an array empty."""
    shapes = (*x.shape, *offset.shape, *weight.shape)
    are_known = all(isinstance(size, int) and size > 0 for size in shapes)
    return sizes_of(x, offset, weight, spec) if are_known else None


def num_splits(x: Shaped, offset: Shaped, weight: Shaped, spec: Spec, target: Target) -> int:
    """The number of partial sums of the weight's cotangent."""
    gpu = gpu_estimate.gpu_of(target.compute_capability, target.sms)
    return gpu_estimate.weight_splits(sizes_of(x, offset, weight, spec), gpu)


def _faster(computation: str, sizes: gpu_estimate.ConvolutionSizes | None, target: Target) -> Choice:
    if sizes is None:
        return Choice("fused", "no time is estimated for arrays that are empty or of a symbolic size")
    gpu = gpu_estimate.gpu_of(target.compute_capability, target.sms)
    by_fused = gpu_estimate.fused_seconds(computation, sizes, gpu)
    by_plain = gpu_estimate.im2col_seconds(computation, sizes, gpu)
    path: Literal["fused", "plain"] = "plain" if by_plain * gpu_estimate.MARGIN < by_fused else "fused"
    estimates = f"fused {_shown_time(by_fused)}, plain {_shown_time(by_plain)}"
    return Choice(path, f"estimates for {gpu.architecture}: {estimates}")


def _shown_time(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms"


def _forward_obstacles(x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> Iterator[str]:
    """What keeps a forward, and so a gradient, from the fused path of CUDA; lib/ffi/fused_limits.h has the rules."""
    dtype, groups = jnp.dtype(x.dtype), spec.feature_group_count
    if dtype == jnp.float64:
        yield "the data are float64; the fused kernels need float16, bfloat16 or float32"
    if dtype == jnp.float32 and not _allows_tf32(spec.precision):
        yield f"the data are float32, and precision {_shown(spec.precision)} does not allow tf32 products"
    if spec.dtype not in (dtype, jnp.float32):
        yield f"the result is {spec.dtype} for {dtype} data; the fused kernels need {dtype} or float32"
    offset_groups, _ = groups_and_taps(offset, weight.shape[:2])
    vector = fused.VECTOR_BYTES // dtype.itemsize
    for count, kind in ((groups, "group"), (offset_groups, "offset group")):
        if x.shape[-1] // count % vector:
            yield (
                f"x has {_in_each(x.shape[-1], 'channel', count, kind)}; the fused kernels need a multiple of "
                f"{vector}, which is {fused.VECTOR_BYTES} bytes of {dtype}"
            )
    if weight.shape[-1] // groups % 2:
        yield (
            f"weight has {_in_each(weight.shape[-1], 'output channel', groups, 'group')}; the fused kernels need an "
            "even number"
        )
    yield from _above("x has", x.shape[-1] // vector * fused.VECTOR_BYTES, "bytes a pixel", INT32_MAX)
    yield from _above("weight has", weight.shape[-1], "output channels", INT32_MAX)
    yield from _above("x has", fused.pixels(x), "pixels in all images", fused.MAX_PIXELS - 1)


def _cotangent_obstacles(name: str, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> Iterator[str]:
    yield from _forward_obstacles(x, offset, weight, spec)
    dtype, groups = jnp.dtype(x.dtype), spec.feature_group_count
    if spec.dtype != dtype:
        yield f"the result is {spec.dtype} for {dtype} data; the fused gradients need {dtype}"
    offset_groups, taps = groups_and_taps(offset, weight.shape[:2])
    vector, group_features = fused.VECTOR_BYTES // dtype.itemsize, weight.shape[-1] // groups
    if group_features == 0 or group_features % vector:
        yield (
            f"weight has {_in_each(weight.shape[-1], 'output channel', groups, 'group')}; the fused gradients need a "
            f"multiple of {vector}, which is {fused.VECTOR_BYTES} bytes of {dtype}"
        )
    if x.shape[-1] == 0:
        yield "x has no channels; the fused gradients need some"
    fewer, more = sorted((x.shape[-1] // groups, x.shape[-1] // offset_groups))
    if more % fewer:
        yield (
            f"x has {x.shape[-1] // groups} channels in each group and {x.shape[-1] // offset_groups} in each offset "
            "group; the fused gradients need one of these numbers to divide the other"
        )
    yield from _above("the result has", fused.pixels(offset), "pixels in all images", fused.MAX_PIXELS - 1)
    yield from _above("the result has", weight.shape[-1] // vector * fused.VECTOR_BYTES, "bytes a pixel", INT32_MAX)
    k_vectors = taps * (group_features // vector + fused.MARGIN_VECTORS)
    yield from _above("the K dimension of the GEMM has", k_vectors, "vectors of 16 bytes", INT32_MAX)
    if name in ("offset", "mask"):
        slices = group_features // vector // fused.SLICE_VECTORS + 1
        iterations = taps * (x.shape[-1] // offset_groups // vector) * slices
        yield from _above("the main loop of a thread block has", iterations, "iterations", INT32_MAX)
    if name == "weight" and dtype.itemsize != 2:
        yield f"the data are {dtype}; the fused gradient of weight needs a 16-bit type"
    if name == "x":
        if not all(isinstance(size, int) for size in (*x.shape[-3:], *offset.shape[-3:])):
            yield "the size of an image is symbolic; the fused gradient of x needs it to bound its workspace"
        elif (size := fused.list_bytes(x, offset)) > fused.LIST_BYTES:
            yield f"the scatter lists of one image take {size} bytes; the fused gradient of x allows {fused.LIST_BYTES}"
        else:
            vectors = fused.image_vectors(offset, weight)
            yield from _above("an image of the result has", vectors, "vectors of 16 bytes", fused.MAX_VECTORS)


def _in_each(total: int, what: str, count: int, kind: str) -> str:
    each = total // count
    return f"{each} {what}{'' if each == 1 else 's'}" + (f" in each of {count} {kind}s" if count > 1 else "")


def _above(prefix: str, number: int, what: str, limit: int) -> Iterator[str]:
    if isinstance(number, int) and number > limit:  # a symbolic dimension is taken to be in bounds
        yield f"{prefix} {number} {what}; the fused kernels allow {limit}"


def _allows_tf32(precision: object) -> bool:
    """Whether XLA's own products of float32 may be tf32."""
    if precision == lax.DotAlgorithmPreset.TF32_TF32_F32:
        return True
    both = precision if isinstance(precision, tuple) else (precision,)
    return all(one in (None, lax.Precision.DEFAULT) for one in both)


def _shown(precision: object) -> str:
    both = precision if isinstance(precision, tuple) else (precision,)
    return ", ".join(str(getattr(one, "name", one)) for one in both)
