"""Ordinary convolutions in operations of XLA: in several forms, of which the plan of `on_grid` chooses the fastest.

Arrays have one batch dimension, and x has its circular padding.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.geometry import Size
from jax_dcn._primitive.chain import Arrays


@dataclass(frozen=True)
class Form:
    """How XLA computes a convolution of arrays of float32 or float64; a plan prints its name.

    forward: `forward(x, weight, spec)`. cotangents: `cotangents(x, weight, ct, requested, spec)`, those of x and weight
    that are requested.
    """

    name: str
    forward: Callable[[jax.Array, jax.Array, Spec], jax.Array]
    cotangents: Callable[[jax.Array, jax.Array, jax.Array, Sequence[str], Spec], Arrays]

    def __str__(self) -> str:
        return self.name


def wrapped(x: jax.Array, spec: Spec) -> jax.Array:
    """x with its circular padding, if it has pixels."""
    pads = [(0, 0), *spec.padding, (0, 0)]
    return jnp.pad(x, pads, mode="constant" if math.prod(x.shape[1:-1]) == 0 else "wrap")


def convolution(x: jax.Array, weight: jax.Array, spec: Spec, dtype: DTypeLike | None = None) -> jax.Array:
    """XLA's convolution, by default of the type of x and weight."""
    spatial = "DHW"[-spec.dims :]
    return lax.conv_general_dilated(
        x,
        weight,
        spec.strides,
        spec.padding,
        rhs_dilation=spec.kernel_dilation,
        dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"),
        feature_group_count=spec.feature_group_count,
        precision=spec.precision,
        preferred_element_type=dtype,
    )


def _convolution_cotangents(
    x: jax.Array, weight: jax.Array, ct: jax.Array, requested: Sequence[str], spec: Spec
) -> Arrays:
    operands = {"x": x, "weight": weight}

    def of_requested(active: Arrays) -> jax.Array:
        return convolution(**operands | active, spec=spec)

    _, pull_back = jax.vjp(of_requested, {name: operands[name] for name in requested})
    return pull_back(ct)[0]


def _product(x: jax.Array, weight: jax.Array, spec: Spec) -> jax.Array:
    size = spec.output_size(x.shape[1:-1], weight.shape[:-2])
    return _dot(_pixels(x, spec, size), _matrix(weight), -1, 0, spec)


def _product_cotangents(x: jax.Array, weight: jax.Array, ct: jax.Array, requested: Sequence[str], spec: Spec) -> Arrays:
    """One product each, of arrays as they are: jax's derivative of a product would transpose its result."""
    out = {}
    if "x" in requested:
        sizes = zip(x.shape[1:-1], ct.shape[1:-1], spec.strides, strict=True)
        spread = [(0, size - (count - 1) * stride - 1, stride - 1) for size, count, stride in sizes]
        out["x"] = _pad(_dot(ct, _matrix(weight), -1, 1, spec), spread)
    if "weight" in requested:
        pixels, cts = (array.reshape(-1, array.shape[-1]) for array in (_pixels(x, spec, ct.shape[1:-1]), ct))
        out["weight"] = _dot(pixels, cts, 0, 0, spec).reshape(weight.shape)
    return out


def _matrix(weight: jax.Array) -> jax.Array:
    return weight.reshape(weight.shape[-2:])


def _dot(a: jax.Array, b: jax.Array, axis_of_a: int, axis_of_b: int, spec: Spec) -> jax.Array:
    """The product over one axis of each."""
    dimensions = ((axis_of_a % a.ndim,), (axis_of_b,)), ((), ())
    return lax.dot_general(a, b, dimensions, precision=spec.precision, preferred_element_type=a.dtype)


def _shifts(x: jax.Array, weight: jax.Array, spec: Spec) -> jax.Array:
    size = spec.output_size(x.shape[1:-1], weight.shape[:-2])
    return _sum_of_shifts(_shifted(x, weight, spec, size), weight)


def _shifts_cotangents(x: jax.Array, weight: jax.Array, ct: jax.Array, requested: Sequence[str], spec: Spec) -> Arrays:
    out = {}
    if "x" in requested:
        # Shifts of the cotangent, too: with zeros between its pixels, and by the flipped weight.
        reach = [(k - 1) * d for k, d in zip(weight.shape[:-2], spec.kernel_dilation, strict=True)]
        sizes = zip(x.shape[1:-1], ct.shape[1:-1], spec.strides, spec.padding, reach, strict=True)
        spread = [
            (r - low, size + low - (count - 1) * stride - 1, stride - 1) for size, count, stride, (low, _), r in sizes
        ]
        steps = replace(spec, strides=(1,) * spec.dims, padding=((0, 0),) * spec.dims)
        shifted = _shifted(_pad(ct, spread), weight, steps, x.shape[1:-1])
        out["x"] = _sum_of_shifts(shifted, jnp.flip(weight, range(spec.dims))).reshape(*x.shape, -1).sum(-1)
    if "weight" in requested:
        out["weight"] = _tap_sums(x, weight, ct, spec).reshape(weight.shape)
    return out


def _tap_sums(x: jax.Array, weight: jax.Array, ct: jax.Array, spec: Spec) -> jax.Array:
    """For each tap, the sums of the products of its pixels and the cotangent: [taps, Cout]."""
    x = _repeated(x, weight, spec)
    firsts = jnp.indices(weight.shape[:-2]).reshape(spec.dims, -1).T * jnp.array(spec.kernel_dilation)
    spans = [(n - 1) * s + 1 for n, s in zip(ct.shape[1:-1], spec.strides, strict=True)]

    def of_tap(first: jax.Array) -> jax.Array:
        pixels = lax.dynamic_slice(x, (0, *first, 0), (x.shape[0], *spans, x.shape[-1]))
        return (_pixels(pixels, spec, ct.shape[1:-1]) * ct).sum(range(ct.ndim - 1))

    return lax.map(of_tap, firsts)  # all at once, XLA for CPUs would store the pixels of all taps


def _repeated(x: jax.Array, weight: jax.Array, spec: Spec) -> jax.Array:
    """x with its padding, and each channel as often as it is convolved."""
    x = jnp.repeat(x, weight.shape[-1] // x.shape[-1], -1)
    return _pad(x, [(*pads, 0) for pads in spec.padding])


def _shifted(x: jax.Array, weight: jax.Array, spec: Spec, size: Size) -> Iterable[jax.Array]:
    """For each tap, the pixels that it reads: [N, *size, Cout]."""
    x = _repeated(x, weight, spec)
    for tap in itertools.product(*map(range, weight.shape[:-2])):
        yield _pixels(x, spec, size, [i * d for i, d in zip(tap, spec.kernel_dilation, strict=True)])


def _pixels(x: jax.Array, spec: Spec, size: Size, first: Size | None = None) -> jax.Array:
    """Those of x at the strides, from `first` on: [N, *size, C]."""
    first = first or (0,) * spec.dims
    last = [i + (n - 1) * s + 1 for i, n, s in zip(first, size, spec.strides, strict=True)]
    return lax.slice(x, (0, *first, 0), (x.shape[0], *last, x.shape[-1]), (1, *spec.strides, 1))


def _sum_of_shifts(shifted: Iterable[jax.Array], weight: jax.Array) -> jax.Array:
    by_tap = weight.reshape(-1, weight.shape[-1])
    return reduce(operator.add, (pixels * row for pixels, row in zip(shifted, by_tap, strict=True)))


def _pad(x: jax.Array, pads: Sequence[Any]) -> jax.Array:
    """x with its spatial axes padded by zeros: before, after and between pixels."""
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])


CONVOLUTION = Form("", convolution, _convolution_cotangents)
PRODUCT = Form("a matrix product", _product, _product_cotangents)
SHIFTS = Form("a sum of shifted products", _shifts, _shifts_cotangents)
