"""The XLA custom calls of the sampling, one function each: operands and static parameters in, arrays out.

All arrays have one batch dimension. The handlers are in lib/sampling/handlers.cc.
"""

from collections.abc import Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_dcn._operators.sampling.geometry import Fold, Method, Outside, Spec, Units
from jax_dcn._operators.sampling.plan import XCotangent
from jax_dcn._primitive import jax_internals


def sample(x: jax.Array, locations: jax.Array, spec: Spec) -> jax.Array:
    """The samples [n, points, C], of x's type."""
    shape = (x.shape[0], spec.points(locations), x.shape[-1])
    (out,) = _call("dcn_sampling", x, locations, spec=spec, results=[(shape, x.dtype)])
    return out


def x_cotangent(
    locations: jax.Array, d_out: jax.Array, spec: Spec, *, shape: Sequence[int], choices: XCotangent
) -> jax.Array:
    """The cotangent of x [n, *sizes, C], of the planned type."""
    results = [(shape, choices.dtype), ((choices.workspace_size,), jnp.int32)]
    d_x, _ = _call("dcn_sampling_x_cotangent", locations, d_out, spec=spec, results=results)
    return d_x


def locations_cotangent(x: jax.Array, locations: jax.Array, d_out: jax.Array, spec: Spec) -> jax.Array:
    """The cotangent of the locations, of their shape and type."""
    results = [(locations.shape, locations.dtype)]
    (d_locations,) = _call("dcn_sampling_locations_cotangent", x, locations, d_out, spec=spec, results=results)
    return d_locations


def _call(
    name: str, *operands: jax.Array, spec: Spec, results: Sequence[tuple[Sequence[int], DTypeLike]]
) -> Sequence[jax.Array]:
    """The custom call `name`; `results` are the shapes and types of its results."""
    arrays = jax_internals.vary_alike(list(operands))
    avals = [jax_internals.result_aval(jax.typeof(arrays[0]), shape, dtype) for shape, dtype in results]
    # The enumerations of lib/sampling/geometry.h have the order of these types.
    choices = {"method": Method, "units": Units, "fold": Fold, "outside": Outside}
    numbers = {name: get_args(names).index(getattr(spec, name)) for name, names in choices.items()}
    outs: Sequence[Any] = jax.ffi.ffi_call(name, avals)(*arrays, **numbers, planar=spec.planar)
    return outs
