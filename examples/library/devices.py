"""The devices that share a batch, of one or several processes, and what processes tell each other."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .batches import own_share
from .checkpoints import StartError


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of devices that share each batch."""
    return jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)


def chosen(most: int | None) -> list[jax.Device]:
    """The first `most` devices of each process; by default all."""
    return [device for process in range(jax.process_count()) for device in jax.local_devices(process)[:most]]


def own_rows(size: int) -> list[int]:
    """The rows of a batch of this size that belong to this process: all, unless a mesh of several is set."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        return list(range(size))
    slices = _split(mesh).addressable_devices_indices_map((size,)).values()
    return sorted({row for (rows,) in slices for row in range(size)[rows]})


def shared(batch: Any) -> Any:
    """A batch, of which each process has its `own_rows`, divided among the devices of the mesh that is set, if any."""
    mesh = jax.sharding.get_mesh()
    return batch if mesh.empty else jax.make_array_from_process_local_data(_split(mesh), batch)


def _split(mesh):
    return NamedSharding(mesh, P(mesh.axis_names))


def on_own(devices: Sequence[jax.Device], images: int, use: Callable[..., Any], variables: Any) -> Any:
    """The result of `use`, which gets variables on those of the devices that belong to this process.

    images: in a batch of all processes; only so many devices are used as can share this process's part of it.
    """
    own = [device for device in devices if device.process_index == jax.process_index()]
    mesh = mesh_of(own[: math.gcd(len(own), own_share(images))])
    with jax.set_mesh(mesh):
        return use(jax.device_put(jax.device_get(variables), NamedSharding(mesh, P())))


def check_same(settings: Mapping[str, Any]) -> None:
    """Raises StartError on all processes unless the settings are the same on all of them."""
    own = [json.loads(json.dumps(settings))]
    first, *others = gathered(own)
    for name in first:
        if different := [other[name] for other in others if other[name] != first[name]]:
            raise StartError(f"{name} must be the same on all processes, got {first[name]} and {different[0]}")


def gathered(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of all processes, which JSON must be able to hold, on each of them."""
    text = np.frombuffer(json.dumps(items).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.pad(text, (0, sizes.max() - len(text)))
    texts = multihost_utils.process_allgather(padded)
    return [item for text, size in zip(texts, sizes, strict=True) for item in json.loads(text[:size].tobytes())]
