"""What a computation is lowered for."""

import re
from typing import NamedTuple

import jax

from jax_dcn._primitive import jax_internals


class Target(NamedTuple):
    platform: str
    # The properties of the CUDA GPUs; None if they are not known.
    compute_capability: int | None = None  # as 90 for 9.0
    sms: int | None = None  # streaming multiprocessors


def compute_capability(text: str | None) -> int | None:
    """90 for "9.0", as the devices of jax have it. None for other GPUs' names of their architectures."""
    match = re.fullmatch(r"(\d+)\.(\d)", text or "")
    return int(match[1]) * 10 + int(match[2]) if match else None


def of_device(platform: str, device: jax.Device | None) -> Target:
    capability = compute_capability(getattr(device, "compute_capability", None))
    if capability is None:
        return Target(platform)
    return Target(platform, capability, getattr(device, "core_count", None))


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
