"""A training whose batches are shared by several devices, each of which has the whole state."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .loop import Run, Start, StartError, fit


def fit_on(
    devices: Sequence[jax.Device] | None,
    step: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]],
    make: Callable[[Any], Any],
    variables: Any,
    batches: Callable[[range], Iterator[Any]],
    recipe: Any,
    directory: Path,
    **options: Any,
) -> Run:
    """`fit` on devices, by default all of the process. Evaluations see their mesh, which `shared` uses.

    make: from variables to the first state. recipe: has a `batch_size`, which must be a multiple of the devices times
    `accumulate`. options: of `fit`.
    """
    devices = devices or jax.devices()
    if recipe.batch_size % (len(devices) * recipe.accumulate):
        raise StartError(
            f"batch_size must be a multiple of {len(devices)} devices times accumulate={recipe.accumulate}, got "
            f"{recipe.batch_size}"
        )
    mesh = mesh_of(devices)
    whole = NamedSharding(mesh, P())
    make = jax.jit(make, out_shardings=whole)
    with jax.set_mesh(mesh):
        shapes = make.eval_shape(variables)
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), shapes)
        start = Start(lambda: make(variables), like)
        return fit(step, start, lambda steps: map(shared, batches(steps)), recipe, directory, **options)


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of devices that share each batch."""
    return jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)


def shared(batch: Any) -> Any:
    """A batch, whose images are divided among the devices of the mesh that is set, if any."""
    mesh = jax.sharding.get_mesh()
    return batch if mesh.empty else jax.device_put(batch, NamedSharding(mesh, P(mesh.axis_names)))
