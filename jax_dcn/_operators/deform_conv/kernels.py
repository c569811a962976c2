"""The operator by kernels: each computation by the path that `paths` chooses for it."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv import cpu_fused, fused, paths, plain
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._primitive.chunks import flat
from jax_dcn._primitive.target import Target

LINEAR = ("x", "weight", "mask")  # the operands in each of which the result is linear


def forward(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
    fill: float = plain.VALUE_FILL,
) -> jax.Array:
    """The rows and columns of the output from `origin` on, as many as `offset` has."""
    batch = x.shape[:-3]
    x, offset, mask = flat(x, 3), flat(offset, 3), flat(mask, 3)
    if paths.choose("forward", x, offset, weight, spec, target).path == "fused":
        kernels = cpu_fused if target.platform == "cpu" else fused
        y = kernels.forward(x, offset, weight, bias, mask, spec=spec, origin=origin)
    else:
        y = plain.forward(x, offset, weight, bias, mask, spec=spec, origin=origin, target=target, fill=fill)
    return y.reshape(*batch, *y.shape[1:])


def tangent(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    tangents: Mapping[str, jax.Array],
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
) -> jax.Array:
    """The tangent of the result, from the tangents of those operands that have one."""
    operands: dict[str, Any] = {"x": x, "offset": offset, "weight": weight, "bias": None, "mask": mask}
    keywords: dict[str, Any] = {"spec": spec, "origin": origin, "target": target}
    moving = tangents.keys() - {"bias"}
    if not moving:
        return jnp.broadcast_to(tangents["bias"], (*offset.shape[:-1], weight.shape[-1])).astype(spec.dtype)
    if len(moving) == 1 and not moving.isdisjoint(LINEAR):
        return forward(**{**operands, **tangents}, **keywords, fill=plain.TANGENT_FILL)
    flat_tangents = {name: array if name in ("weight", "bias") else flat(array, 3) for name, array in tangents.items()}
    d_y = plain.tangent(flat(x, 3), flat(offset, 3), weight, flat(mask, 3), flat_tangents, **keywords)
    return d_y.reshape(*x.shape[:-3], *d_y.shape[1:])


def cotangent(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    ct: jax.Array,
    *,
    requested: Collection[str],
    all_reduced: Collection[str],
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
) -> dict[str, jax.Array]:
    """The cotangents in the dtype of the sums. That of x has x's dtype, unless it is all-reduced and not fused."""
    shapes = {"x": x.shape, "offset": offset.shape, "weight": weight.shape}
    shapes |= {name: array.shape for name, array in (("bias", bias), ("mask", mask)) if array is not None}
    x, offset, mask, ct = flat(x, 3), flat(offset, 3), flat(mask, 3), flat(ct, 3)
    # A sum over devices follows, before which the fused kernels of the CPU would round the cotangent of x.
    is_x_plain = target.platform == "cpu" and "x" in all_reduced and x.dtype.itemsize == 2 and spec.path is None
    by_path: dict[str, list[str]] = {}
    for name in requested:
        path = paths.choose(name, x, offset, weight, spec, target).path
        by_path.setdefault("plain" if name == "x" and is_x_plain else path, []).append(name)
    keywords: dict[str, Any] = {"spec": spec, "origin": origin}
    out: dict[str, jax.Array] = {}
    fused_names = by_path.get("fused", [])
    if fused_names and target.platform == "cpu":
        out |= cpu_fused.cotangents(x, offset, weight, mask, ct, requested=fused_names, **keywords)
    elif fused_names:
        num_splits = paths.num_splits(x, offset, weight, spec, target) if "weight" in fused_names else 1
        out |= fused.cotangents(x, offset, weight, mask, ct, requested=fused_names, num_splits=num_splits, **keywords)
    if plain_names := by_path.get("plain"):
        keywords |= {"x_dtype": offset.dtype if "x" in all_reduced else x.dtype, "target": target}
        out |= plain.cotangents(x, offset, weight, mask, ct, requested=plain_names, **keywords)
    if "bias" in requested:
        out["bias"] = ct.sum((0, 1, 2), dtype=offset.dtype)
    return {name: out[name].reshape(shapes[name]) for name in requested}
