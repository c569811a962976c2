"""What `jax.export` needs to export functions that call this package."""

from jax.export import DisabledSafetyCheck

from jax_dcn._primitive import extension


def disabled_checks() -> list[DisabledSafetyCheck]:
    """The checks that `jax.export` must leave out to export functions that call this package.

    It refuses custom calls that it does not know. The list names all custom calls of this package on all platforms,
    whether or not their kernels were built on this machine.

    Returns:
      A new list, to which checks for other packages may be added.

    Example:
      >>> import jax, jax.numpy as jnp, jax_dcn
      >>> x, offset, weight = jnp.ones((1, 5, 5, 2)), jnp.zeros((1, 5, 5, 18)), jnp.ones((3, 3, 2, 4))
      >>> exported = jax.export.export(
      ...     jax.jit(jax_dcn.deform_conv2d),
      ...     platforms=["cpu", "cuda", "tpu"],
      ...     disabled_checks=jax_dcn.export.disabled_checks(),
      ... )(x, offset, weight)
      >>> restored = jax.export.deserialize(exported.serialize())
      >>> float(restored.call(x, offset, weight)[0, 2, 2, 0])
      18.0
    """
    return [DisabledSafetyCheck.custom_call(name) for name in extension.custom_calls]
