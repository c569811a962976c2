"""The code that all layers share: predicting offsets and masks, or using the ones that are passed."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax.typing import Dtype

Branch = Callable[[jax.Array], jax.Array]


class HasDtype(Protocol):
    """All layers have the dtype of their computation."""

    dtype: Dtype | None


class ReturnsOffsets(Protocol):
    """Layers that can return the offset and the mask have this attribute."""

    return_offsets: bool


class Settings(HasDtype, ReturnsOffsets, Protocol):
    """The attributes of a layer that control how it predicts offsets and masks."""

    modulated: bool
    mask_scale: float


def numbers_per_sample(modulated: bool) -> int:
    """How many channels a branch predicts per sample: two coordinates and, if modulated, a mask logit."""
    return 3 if modulated else 2


def check_branch(name: str, branch: Branch | None, mask: jax.Array | None) -> Branch:
    """The branch, which must exist in a call without an offset."""
    if mask is not None:
        raise ValueError("mask was given without an offset: give both, or neither to have both predicted")
    if branch is None:
        raise ValueError(f"offset must be given to a layer whose {name} is None")
    return branch


def check_offset(offset: jax.Array, channels: int, owners: str) -> None:
    if jnp.shape(offset)[-1:] != (channels,):
        raise ValueError(f"offset must have {channels} channels, two for each {owners}, got shape {jnp.shape(offset)}")


def widen(layer: HasDtype, inputs: jax.Array) -> jax.Array:
    """The inputs of a branch in float32 or wider, because the precision of a 16-bit offset falls as it grows."""
    dtype = inputs.dtype if layer.dtype is None else layer.dtype
    return jnp.asarray(inputs, jnp.promote_types(dtype, jnp.float32))


def offset_and_mask(layer: Settings, raw: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Splits the output of a branch, which has first all coordinates, then all logits."""
    samples = raw.shape[-1] // numbers_per_sample(layer.modulated)
    offset, logits = jnp.split(raw, [2 * samples], axis=-1)
    return offset, layer.mask_scale * jax.nn.sigmoid(logits) if layer.modulated else None


def result(layer: ReturnsOffsets, y: jax.Array, offset: Any, mask: Any, return_offsets: bool | None) -> Any:
    """The output of the layer, with the offset and the mask if they are requested."""
    if return_offsets is None:
        return_offsets = layer.return_offsets
    return (y, offset, mask) if return_offsets else y
