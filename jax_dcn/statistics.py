"""Statistics of offsets for training logs, and a warning when they show that a model diverges."""

import operator
import warnings
from collections.abc import Mapping
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv import geometry
from jax_dcn._primitive.promotion import by_standard_rules, sum_dtype
from jax_dcn._types import Padding, Sizes


def offset_statistics(
    offset: jax.Array,
    image_size: Sizes,
    kernel_size: Sizes,
    *,
    strides: Sizes = 1,
    padding: Padding = "SAME",
    kernel_dilation: Sizes = 1,
) -> dict[str, jax.Array]:
    """Lengths of the offsets of a deformable convolution, and the fraction of samples that they move out of the image.

    The function is plain `jax.numpy`: it works inside and outside of `jit`, `grad` (no gradient flows through it),
    `scan` and `vmap`, and is sharded like the offset. `warn_of_offsets` explains the statistics to a user.

    Args:
      offset: [..., Ho, Wo, G·K·2], as `deform_conv2d` takes it and `DeformConv` returns it with
        ``return_offsets=True``, or that of `deform_conv1d` or `deform_conv3d`. Convert those of `DCNv3` and `DCNv4`
        with `as_deform_conv`.
      image_size: the sizes of the convolution's input along its axes, such as (height, width); an int means a square
        image.
      kernel_size, strides, padding, kernel_dilation: as for the convolution.

    Returns:
      A dictionary of scalars:

      - "max_length", "mean_length": lengths of the offsets (dy, dx) that are finite, in pixels of the convolution's
        input, float32 (or wider)
      - "not_finite": how many offsets have a coordinate that is NaN or infinite, int32
      - "outside": the fraction of samples that offsets have moved out of the image, where they read zero and get no
        gradient that would move them back. Only samples that are in the image without offsets are counted, because
        at a border some are not. Always 0 with "CIRCULAR" padding, unless offsets are infinite

    Raises:
      TypeError, ValueError: the offset is not an array of floats, or does not fit the other arguments.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_dcn import offset_statistics
      >>> offset = jnp.zeros((8, 8, 9, 2)).at[..., 4, :].set(jnp.array([3.0, -4.0]))  # of the middle tap
      >>> statistics = offset_statistics(offset.reshape(8, 8, 18), (8, 8), 3)
      >>> {name: round(number.item(), 3) for name, number in statistics.items()}
      {'max_length': 5.0, 'mean_length': 0.556, 'not_finite': 0, 'outside': 0.091}
    """
    dims = _validation.num_axes("image_size", image_size)
    size = _validation.sizes("image_size", image_size, dims)
    kernel = _validation.sizes("kernel_size", kernel_size, dims)
    window = geometry.resolve(size, kernel, strides=strides, padding=padding, kernel_dilation=kernel_dilation)
    offset = jax.lax.stop_gradient(_validation.array("offset", offset))
    _validation.rank(
        "offset", offset, dims + 1, f"[..., {', '.join(('Do', 'Ho', 'Wo')[-dims:])}, G·K·{dims}]", least=True
    )
    geometry.check_offset(offset, size, kernel, window)
    return statistics_of(offset, size, kernel, window)


@partial(jax.jit, static_argnums=(1, 2, 3))
@by_standard_rules
def statistics_of(
    offset: ArrayLike, image_size: tuple[int, ...], kernel_size: tuple[int, ...], window: geometry.Window
) -> dict[str, jax.Array]:
    """`offset_statistics` for arguments that were already checked."""
    offset = jnp.asarray(offset)
    offset = offset.astype(sum_dtype(offset.dtype))
    dims = len(kernel_size)
    vectors = offset.reshape(*offset.shape[:-1], offset.shape[-1] // dims, dims)
    finite = jnp.isfinite(vectors).all(-1)
    length = jnp.where(finite, jnp.linalg.norm(vectors, axis=-1), 0)

    positions = geometry.locations(offset, kernel_size, window)
    regular = geometry.reads(geometry.grid(offset.shape[-dims - 1 : -1], kernel_size, window), image_size, window)
    nan = reduce(operator.or_, map(jnp.isnan, positions))
    lost = regular & ~geometry.reads(positions, image_size, window) & ~nan

    def ratio(total: jax.Array, count: jax.Array) -> jax.Array:
        return total / jnp.maximum(count, 1)

    return {
        "max_length": length.max(initial=0),
        "mean_length": ratio(length.sum(), finite.sum()),
        "not_finite": (~finite).sum(dtype=jnp.int32),
        "outside": ratio(lost.sum(dtype=length.dtype), jnp.broadcast_to(regular, lost.shape).sum()),
    }


def warn_of_offsets(layers: Mapping[str, Mapping[str, Any]], *, most_outside: float = 0.1) -> None:
    """Warns about layers whose offsets diverge, and says what helps.

    Call it where training is logged, outside of `jit`. Python shows one warning per layer and kind of problem. With
    ``warnings.filterwarnings("error", "offsets")``, a warning stops the training.

    Args:
      layers: the result of `offset_statistics` for each layer, under any names.
      most_outside: the largest fraction of samples outside the image that gives no warning.

    Raises:
      TypeError: a statistic is traced. Call the function with what the jitted function returns.

    Example:
      >>> import jax.numpy as jnp, warnings
      >>> from jax_dcn import offset_statistics, warn_of_offsets
      >>> lost = offset_statistics(jnp.full((8, 8, 18), 20.0), (8, 8), 3)
      >>> with warnings.catch_warnings(record=True) as shown:
      ...     warnings.simplefilter("always")
      ...     warn_of_offsets({"conv1": lost})
      >>> print(shown[0].message)  # doctest: +ELLIPSIS
      offsets of conv1 have moved more than 10% of its samples out of the image, where they read zero and have no ...
    """
    for name, statistics in layers.items():
        if any(isinstance(number, jax.core.Tracer) for number in statistics.values()):
            raise TypeError(f"the statistics of {name} must be known, got traced: warn of what the jitted step returns")
        if statistics["not_finite"] > 0:
            warnings.warn(
                f"offsets of {name} are not finite: what the layer samples is NaN or zero, and training will not "
                "recover from the parameters it has; lower the learning rate, at least that of offsets "
                "(jax_dcn.offset_labels), or clip gradients",
                stacklevel=2,
            )
        if statistics["outside"] > most_outside:
            warnings.warn(
                f"offsets of {name} have moved more than {most_outside:.0%} of its samples out of the image, where "
                "they read zero and have no gradient to come back by; lower the learning rate of offsets "
                "(jax_dcn.offset_labels, optax.multi_transform), or bound them (offset_bound of DeformConv)",
                stacklevel=2,
            )
