"""What a computation is lowered for."""

from typing import NamedTuple

import jax

from jax_dcn._primitive import jax_internals


class Target(NamedTuple):
    platform: str
    sms: int | None = None  # streaming multiprocessors of a CUDA GPU; None if they are not known


def of_device(platform: str, device: jax.Device | None) -> Target:
    return Target(platform, getattr(device, "core_count", None) if platform == "cuda" else None)


def of_lowering(platform: str, ctx: object) -> Target:
    """The target of a lowering rule's context. The devices of a computation are taken to be alike."""
    return of_device(platform, jax_internals.lowering_device(ctx) or local_device(platform))


def local_device(platform: str) -> jax.Device | None:
    """A device of this process, if jax has already initialized its backends: asking initializes none."""
    if not jax_internals.backends_are_initialized():
        return None
    try:
        return jax.local_devices(backend=platform)[0]
    except RuntimeError:
        return None
