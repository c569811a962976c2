"""The normalisations of all detectors' convolutions: of batches, and by constants.

Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype


class BatchNorm(nn.Module):
    """`flax.linen.BatchNorm` of [..., channels], with the same parameters and statistics.

    In training it reads an array once for its statistics and once for its gradients' sums, and keeps only the array
    itself for its gradients. The variance is a mean of squares about the running mean, in float32 or wider. There are
    no derivatives but the first ones in reverse.

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
def _by_own_statistics(x, about, scale, bias, epsilon):
    """The result, and the mean and variance, which have no gradients; `about` is near the mean."""
    return _forward(x, about, scale, bias, epsilon)[0]


def _forward(x, about, scale, bias, epsilon):
    count = x.size // x.shape[-1]
    distance = x - about
    total, total_of_squares = _sums(distance, distance * distance)
    mean = total / count
    var = jnp.maximum(total_of_squares / count - mean * mean, 0)
    result = _normalized(x, about + mean, var, scale, bias, epsilon), about + mean, var
    return result, (x, about + mean, jax.lax.rsqrt(var + epsilon), scale)


def _backward(_, kept, cotangents):
    x, mean, deviation, scale = kept
    cotangent, *_ = cotangents
    count = x.size // x.shape[-1]
    normal = (x - mean) * deviation
    of_bias, of_scale = _sums(cotangent, cotangent * normal)
    of_x = (scale * deviation) * (cotangent - (of_bias + normal * of_scale) / count)
    return of_x.astype(x.dtype), None, of_scale.astype(scale.dtype), of_bias.astype(scale.dtype)


_by_own_statistics.defvjp(_forward, _backward)


def _sums(*arrays):
    """The sums over all but the channels. A GPU reads what they are computed from once only if they are one reduction,
    with which a CPU takes two to three times as long."""
    axes = tuple(range(arrays[0].ndim - 1))

    def apart(*arrays):
        return tuple(array.sum(axes) for array in arrays)

    def together(*arrays):
        zeros = tuple(jnp.zeros((), array.dtype) for array in arrays)
        return tuple(jax.lax.reduce(arrays, zeros, lambda a, b: tuple(map(jnp.add, a, b)), axes))

    return jax.lax.platform_dependent(*arrays, cuda=together, default=apart)
