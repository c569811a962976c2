"""The layers of all detectors: those of Flax, with the same parameters and values, whose gradients keep and read less.

Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167.
"""

import itertools
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

import jax_dcn


@jax.custom_jvp
def relu(x: jax.Array) -> jax.Array:
    """`jax.nn.relu`, whose gradient is decided by the result, so that the argument need not be kept.

    >>> jax.grad(lambda x: relu(x).sum())(jnp.array([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    return jax.nn.relu(x)


# XLA would make a comparison of the argument of `result > 0`, and so keep the argument.
relu.defjvps(lambda tangent, result, _: jnp.where(result == 0, 0, tangent))


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, ...],
    padding: Any,
    *,
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: Any,
    feature_group_count: int,
    precision: Any,
) -> jax.Array:
    """`jax.lax.conv_general_dilated` as `flax.linen.Conv` calls it for images: always with channels last."""
    if any(spread != 1 for spread in lhs_dilation):
        raise ValueError(f"input_dilation must be 1, got {lhs_dilation}")
    return jax_dcn.deform_conv2d(
        x,
        None,
        kernel,
        strides=strides,
        padding=padding,
        kernel_dilation=rhs_dilation,
        feature_group_count=feature_group_count,
        precision=precision,
    )


def product_of_rows(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any) -> jax.Array:
    """`jax.lax.dot_general` as dense layers call it: of x [..., channels], whose rows are made one dimension.

    If there are several, XLA for CPUs transposes the cotangent for the gradient of the kernel, and in doing so computes
    it again, out of the order of its memory.
    """
    product = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), kernel, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*x.shape[:-1], kernel.shape[-1])


class Dense(nn.Dense):
    """`flax.linen.Dense`, with gradients that are faster on a CPU.

    >>> Dense(5).init_with_output(jax.random.key(0), jnp.ones((2, 3, 4)))[0].shape
    (2, 3, 5)
    """

    dot_general: Any = product_of_rows


class Conv(nn.Conv):
    """`flax.linen.Conv` of images, with the same parameters."""

    conv_general_dilated_cls: Any = lambda: convolve


def square(features: int, size: int, stride: int = 1, **options: Any) -> Conv:
    """A convolution with a square kernel; with an odd one and a stride of 1, an image keeps its size."""
    return Conv(features, (size, size), strides=stride, padding=(size - 1) // 2, **options)


class Doubled(nn.Module):
    """A transposed convolution of size and stride 2: the window [..., 2, 2, features] of each pixel [..., channels].

    Windows do not overlap, so it is a matrix product. The layout of the weight is that of a convolution in the other
    direction. `from_windows` makes images of windows.
    """

    features: int
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        initializer = nn.initializers.he_normal(in_axis=-1, out_axis=-2)
        kernel = self.param("kernel", initializer, (2, 2, self.features, x.shape[-1]))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        windows = x @ kernel.reshape(-1, x.shape[-1]).T + jnp.tile(bias, 4)
        return windows.reshape(*x.shape[:-1], 2, 2, self.features)


def from_windows(windows: jax.Array) -> jax.Array:
    """Images [batch, 2 * height, 2 * width, ...] of windows [batch, height, width, 2, 2, ...]."""
    batch, height, width, *_ = windows.shape
    return windows.swapaxes(2, 3).reshape(batch, 2 * height, 2 * width, *windows.shape[5:])


class BatchNorm(nn.Module):
    """`flax.linen.BatchNorm` of [..., channels], with the same parameters and statistics.

    In training it reads an array once for its statistics and once for its gradients' sums, and keeps only the array
    itself for its gradients. The variance is a mean of squares about the running mean, in float32 or wider, and as
    exact as that of two passes where the mean is within some ten deviations of it. There are no derivatives but the
    first ones in reverse.

    use_running_average: normalise by the running statistics, and not by those of x.
    momentum: the part of the running statistics that stays in a step.
    dtype: of the result, by default that of x and the parameters together.
    """

    use_running_average: bool
    momentum: float = 0.9
    epsilon: float = 1e-5
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = x.shape[-1:]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        if self.use_running_average:
            y = _normalized(x, running_mean.value, running_var.value, scale, bias, self.epsilon)
        else:
            y, mean, var = _by_own_statistics(x, running_mean.value, scale, bias, self.epsilon)
            if not self.is_initializing():
                for running, value in ((running_mean, mean), (running_var, var)):
                    running.value = self.momentum * running.value + (1 - self.momentum) * value
        return y.astype(self.dtype or jnp.result_type(x, scale))


class FrozenBatchNorm(nn.Module):
    """A batch normalisation whose statistics and parameters are all constants: none of them is in "params"."""

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mean, var, scale, bias = (self._constant(name, x.shape[-1]) for name in ("mean", "var", "scale", "bias"))
        return _normalized(x, mean, var, scale, bias, self.epsilon).astype(x.dtype)

    def _constant(self, name, channels):
        init = jnp.ones if name in ("scale", "var") else jnp.zeros
        return self.variable("batch_stats", name, init, (channels,)).value


def _normalized(x, mean, var, scale, bias, epsilon):
    factor = scale * jax.lax.rsqrt(var + epsilon)
    return x * factor + (bias - mean * factor)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _by_own_statistics(x, shift, scale, bias, epsilon):
    """The result, and the mean and variance, which have no gradients; `shift` is near the mean."""
    return _normalise(x, shift, scale, bias, epsilon)[0]


def _normalise(x, shift, scale, bias, epsilon):
    count = x.size // x.shape[-1]
    shifted = x.astype(jnp.promote_types(x.dtype, jnp.float32)) - shift
    total, total_of_squares = _sums(shifted, shifted * shifted)
    mean_of_shifted = total / count
    mean = shift + mean_of_shifted
    var = jnp.maximum(total_of_squares / count - mean_of_shifted * mean_of_shifted, 0)
    result = _normalized(x, mean, var, scale, bias, epsilon), mean, var
    return result, (x, mean, jax.lax.rsqrt(var + epsilon), scale)


def _normalise_backward(_, kept, cotangents):
    x, mean, inverse_deviation, scale = kept
    cotangent, *_ = cotangents
    count = x.size // x.shape[-1]
    normalized = (x - mean) * inverse_deviation
    of_bias, of_scale = _sums(cotangent, cotangent * normalized)
    of_x = (scale * inverse_deviation) * (cotangent - (of_bias + normalized * of_scale) / count)
    return of_x.astype(x.dtype), None, of_scale.astype(scale.dtype), of_bias.astype(scale.dtype)


_by_own_statistics.defvjp(_normalise, _normalise_backward)


def _sums(*arrays):
    """The sums over all but the channels. A GPU reads what they are computed from once only if they are one reduction,
    with which a CPU takes two to three times as long."""
    return jax.lax.platform_dependent(*arrays, cuda=sums_together, default=sums_apart)


def sums_apart(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The sums over all but the channels, in a reduction each."""
    return tuple(array.sum(range(array.ndim - 1)) for array in arrays)


def sums_together(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The same in one reduction."""
    zeros = tuple(jnp.zeros((), array.dtype) for array in arrays)
    return tuple(jax.lax.reduce(arrays, zeros, lambda a, b: tuple(map(jnp.add, a, b)), range(arrays[0].ndim - 1)))


Pair = tuple[int, int]


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(x: jax.Array, window: Pair, strides: Pair, padding: tuple[Pair, Pair] = ((0, 0), (0, 0))) -> jax.Array:
    """`flax.linen.max_pool` of images [batch, height, width, channels], with its values and gradients.

    It has no derivatives in forward mode, and no second ones.

    >>> max_pool(jnp.array([1.0, 3.0, 2.0]).reshape(1, 1, 3, 1), (1, 2), (1, 1))[0, 0, :, 0].tolist()
    [3.0, 3.0]
    """
    return nn.max_pool(x, window, strides, padding)


def _pool(x, window, strides, padding):
    """The maxima, and the place of each one in its window, from 0, beside x for its shape.

    Of equal pixels the first one is the maximum, as in XLA and in torch; NaN is larger than all numbers.
    """
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
    counts = [(side - size) // step + 1 for side, size, step in zip(padded.shape[1:3], window, strides, strict=True)]
    place_type = np.min_scalar_type(window[0] * window[1])
    for place, starts in enumerate(_starts(window)):
        rows, columns = (
            slice(start, start + (count - 1) * step + 1, step)
            for start, count, step in zip(starts, counts, strides, strict=True)
        )
        pixels = padded[:, rows, columns]
        if place == 0:
            largest, places = pixels, jnp.zeros(pixels.shape, place_type)
        else:
            stays = (largest >= pixels) | jnp.isnan(largest)
            largest, places = jnp.where(stays, largest, pixels), jnp.where(stays, places, place_type.type(place))
    return largest, (places, x)


def _pool_backward(window, strides, padding, kept, cotangent):
    places, x = kept
    wide = jnp.promote_types(cotangent.dtype, jnp.float32)
    total = jnp.zeros(x.shape, wide)
    for place, starts in enumerate(_starts(window)):
        at_place = jnp.where(places == place, cotangent, 0).astype(wide)
        spread = []
        for axis, (start, step, (before, _)) in enumerate(zip(starts, strides, padding, strict=True), 1):
            end = start - before + (places.shape[axis] - 1) * step + 1
            spread.append((start - before, x.shape[axis] - end, step - 1))
        total += jax.lax.pad(at_place, wide.type(0), [(0, 0, 0), *spread, (0, 0, 0)])
    return (total.astype(x.dtype),)


max_pool.defvjp(_pool, _pool_backward)


def _starts(window):
    """The places in a window, as pairs."""
    return itertools.product(*map(range, window))
