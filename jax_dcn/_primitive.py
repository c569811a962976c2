"""Registers an operator with JAX: a family of three primitives from one reference and its kernels.

    forward    operands → result           kernel; JVP: tangent
    tangent    operands, tangents → result jvp of the reference; transpose: cotangent
    cotangent  operands, cotangent → the cotangents wanted   kernel; elsewhere vjp of the reference

So the value and the first reverse derivative run in kernels, and every other derivative comes out of the reference.
On a platform without kernels the reference is all there is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jax_dcn import _compat, _kernels


@dataclass(frozen=True)
class Family:
    """The primitives of one operator. Operands that the operator may do without are passed as None."""

    forward_p: Primitive
    cotangent_p: Primitive

    def __call__(self, *operands, spec):
        given, arrays = _split(operands)
        return self.forward_p.bind(*arrays, given=given, spec=spec)

    def cotangents(self, *operands, cotangent, wanted: tuple[int, ...], spec) -> tuple:
        """The cotangents of the operands numbered in `wanted`."""
        given, arrays = _split(operands)
        positions = tuple(given.index(k) for k in wanted)
        return tuple(self.cotangent_p.bind(*arrays, cotangent, given=given, wanted=positions, spec=spec))


def register_family(
    name: str,
    *,
    result: Callable,
    reference: Callable,
    forward: Callable,
    cotangent: Callable,
    operands: int,
    shared: tuple[int, ...],
    linear: tuple[int, ...],
) -> Family:
    """Makes and registers the primitives of an operator.

    Args:
      name: of the operator; the primitives are called after it.
      result: `result(*avals, spec)`, the type of the result; raises where the operands do not fit.
      reference: `reference(*operands, spec)`, the operator in `jax.numpy`: its meaning, and its derivatives.
      forward: `forward(*operands, spec, platform)`, as `reference`, by the kernels of the platform.
      cotangent: `cotangent(*operands, ct, wanted, spec, platform)`, the cotangents of the operands numbered in
        `wanted`, by the kernels.
      operands: how many operands there are. All functions get None for those that are not given.
      shared: the operands that carry no batch dimensions, as weights; all others may have any number of leading ones.
      linear: the operands that the result is linear in, each by itself.
    """

    def fill(given, arrays):
        full = [None] * operands
        for k, array in zip(given, arrays, strict=True):
            full[k] = array
        return full

    def reference_forward(*arrays, given, spec):
        return reference(*fill(given, arrays), spec=spec)

    def reference_tangent(*args, given, moving, spec):
        arrays, tangents = args[: len(given)], args[len(given) :]
        function = _of_some(partial(reference_forward, given=given, spec=spec), arrays, moving)
        return jax.jvp(function, tuple(arrays[k] for k in moving), tangents)[1]

    def reference_cotangent(*args, given, wanted, spec):
        *arrays, ct = args
        function = _of_some(partial(reference_forward, given=given, spec=spec), arrays, wanted)
        return jax.vjp(function, *(arrays[k] for k in wanted))[1](ct)

    def kernel_forward(*arrays, given, **params):
        return forward(*fill(given, arrays), **params)

    def kernel_cotangent(*args, given, wanted, **params):
        *arrays, ct = args
        return cotangent(*fill(given, arrays), ct, wanted=tuple(given[k] for k in wanted), **params)

    def forward_aval(*avals, given, spec):
        return result(*fill(given, avals), spec=spec)

    def tangent_aval(*avals, given, moving, spec):
        return forward_aval(*avals[: len(given)], given=given, spec=spec)

    def cotangent_avals(*avals, given, wanted, spec):
        return tuple(avals[k].update(weak_type=False) for k in wanted)

    forward_p = _primitive(name, forward_aval, reference_forward, kernel_forward)
    tangent_p = _primitive(f"{name}_tangent", tangent_aval, reference_tangent)
    cotangent_p = _primitive(f"{name}_cotangent", cotangent_avals, reference_cotangent, kernel_cotangent, many=True)

    def forward_jvp(arrays, tangents, *, given, spec):
        moving = tuple(k for k, t in enumerate(tangents) if type(t) is not ad.Zero)
        tangent = tangent_p.bind(*arrays, *(tangents[k] for k in moving), given=given, moving=moving, spec=spec)
        return forward_p.bind(*arrays, given=given, spec=spec), tangent

    def tangent_transpose(ct, *arrays, given, moving, spec):
        arrays, tangents = arrays[: len(given)], arrays[len(given) :]
        # A tangent may be known here (a zero that scan made concrete): it gets None.
        asked = [ad.is_undefined_primal(t) for t in tangents]
        none = [None] * len(given)
        if type(ct) is ad.Zero:
            return [*none, *(ad.Zero(t.aval) if a else None for t, a in zip(tangents, asked, strict=True))]
        wanted = tuple(k for k, a in zip(moving, asked, strict=True) if a)
        cts = iter(cotangent_p.bind(*arrays, ct, given=given, wanted=wanted, spec=spec))
        return [*none, *(next(cts) if a else None for a in asked)]

    def cotangent_transpose(cts, *args, given, wanted, spec):
        *arrays, _ = args
        moving = tuple(k for k, ct in zip(wanted, cts, strict=True) if type(ct) is not ad.Zero)
        tangents = (ct for ct in cts if type(ct) is not ad.Zero)
        return [*[None] * len(given), tangent_p.bind(*arrays, *tangents, given=given, moving=moving, spec=spec)]

    def forward_transpose(ct, *arrays, given, spec):
        asked = [k for k, a in enumerate(arrays) if ad.is_undefined_primal(a)]
        if len(asked) != 1 or given[asked[0]] not in linear:
            raise NotImplementedError(f"{name} is not linear in its operands {[given[k] for k in asked]}")
        # The cotangent of what the result is linear in does not depend on its value.
        known = [jnp.zeros(a.aval.shape, a.aval.dtype) if ad.is_undefined_primal(a) else a for a in arrays]
        (out,) = cotangent_p.bind(*known, ct, given=given, wanted=tuple(asked), spec=spec)
        return [out if k in asked else None for k in range(len(given))]

    ad.primitive_jvps[forward_p] = forward_jvp
    ad.primitive_transposes[forward_p] = forward_transpose
    ad.primitive_transposes[cotangent_p] = cotangent_transpose
    ad.primitive_transposes[tangent_p] = tangent_transpose
    ad.primitive_jvps[tangent_p] = _jvp_of(reference_tangent, tangent_p)
    ad.primitive_jvps[cotangent_p] = _jvp_of(reference_cotangent, cotangent_p)

    def is_shared(position, given, moving=()):
        """Whether an argument of a primitive, or a result numbered like one, carries no batch dimensions."""
        slots = (*given, *(given[k] for k in moving))
        return position < len(slots) and slots[position] in shared

    batching.primitive_batchers[forward_p] = _batcher(forward_p, is_shared)
    batching.primitive_batchers[tangent_p] = _batcher(tangent_p, is_shared)
    batching.primitive_batchers[cotangent_p] = _batcher(cotangent_p, is_shared)
    return Family(forward_p, cotangent_p)


def _split(operands):
    given = tuple(k for k, operand in enumerate(operands) if operand is not None)
    return given, [operands[k] for k in given]


def _primitive(name, avals, reference, kernel=None, many=False):
    primitive = Primitive(name)
    primitive.multiple_results = many
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(avals)
    reference_lowering = mlir.lower_fun(reference, multiple_results=many)
    mlir.register_lowering(primitive, partial(_compat.lower_apart_from_explicit_mesh, reference_lowering))
    for platform in ("cpu", "cuda") if kernel else ():

        def lower(ctx, *args, platform=platform, **params):
            _kernels.require(platform)
            kernel_lowering = mlir.lower_fun(kernel, multiple_results=many)
            return _compat.lower_apart_from_explicit_mesh(kernel_lowering, ctx, *args, platform=platform, **params)

        mlir.register_lowering(primitive, lower, platform=platform)
    return primitive


def _jvp_of(reference, primitive):
    def jvp(arrays, tangents, **params):
        moving = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]
        function = _of_some(partial(reference, **params), arrays, moving)
        tangent = jax.jvp(function, tuple(arrays[k] for k in moving), tuple(tangents[k] for k in moving))[1]
        return primitive.bind(*arrays, **params), tangent

    return jvp


def _of_some(function, arrays, moving):
    """`function(*arrays)` as a function of the arrays numbered in `moving`."""

    def of_moving(*moved):
        full = list(arrays)
        for k, array in zip(moving, moved, strict=True):
            full[k] = array
        return function(*full)

    return of_moving


def _batcher(primitive, is_shared):
    """Batches by one more leading dimension; by one call an example where a shared operand or result is mapped."""

    def batch(arrays, dims, *, wanted=(), **params):
        shared = partial(is_shared, given=params["given"], moving=params.get("moving", ()))
        if primitive.multiple_results:
            params["wanted"] = wanted
        mapped = any(d is not None and shared(k) for k, d in enumerate(dims))
        if mapped or any(shared(k) for k in wanted):
            out = _one_by_one(partial(primitive.bind, **params), arrays, dims)
        else:
            (size,) = {a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None}

            def lead(array, dim):
                if dim is None:
                    return jnp.broadcast_to(array, (size, *array.shape))
                return jnp.moveaxis(array, dim, 0)

            pairs = enumerate(zip(arrays, dims, strict=True))
            out = primitive.bind(*(a if shared(k) else lead(a, d) for k, (a, d) in pairs), **params)
        return (out, [0] * len(out)) if primitive.multiple_results else (out, 0)

    return batch


def _one_by_one(function, arrays, dims):
    def one(mapped):
        mapped = iter(mapped)
        return function(*(a if d is None else next(mapped) for a, d in zip(arrays, dims, strict=True)))

    return jax.lax.map(one, [jnp.moveaxis(a, d, 0) for a, d in zip(arrays, dims, strict=True) if d is not None])
