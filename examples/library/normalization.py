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
    return _forward(x, shift, scale, bias, epsilon)[0]


def _forward(x, shift, scale, bias, epsilon):
    count = x.size // x.shape[-1]
    shifted = x.astype(jnp.promote_types(x.dtype, jnp.float32)) - shift
    total, total_of_squares = _sums(shifted, shifted * shifted)
    mean_of_shifted = total / count
    mean = shift + mean_of_shifted
    var = jnp.maximum(total_of_squares / count - mean_of_shifted * mean_of_shifted, 0)
    result = _normalized(x, mean, var, scale, bias, epsilon), mean, var
    return result, (x, mean, jax.lax.rsqrt(var + epsilon), scale)


def _backward(_, kept, cotangents):
    x, mean, inverse_deviation, scale = kept
    cotangent, *_ = cotangents
    count = x.size // x.shape[-1]
    normalized = (x - mean) * inverse_deviation
    of_bias, of_scale = _sums(cotangent, cotangent * normalized)
    of_x = (scale * inverse_deviation) * (cotangent - (of_bias + normalized * of_scale) / count)
    return of_x.astype(x.dtype), None, of_scale.astype(scale.dtype), of_bias.astype(scale.dtype)


_by_own_statistics.defvjp(_forward, _backward)


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
