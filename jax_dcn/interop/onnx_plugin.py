"""The plugin for jax2onnx: how it lowers the primitives of this package."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jax_dcn import boxes
from jax_dcn._operators.aggregation.primitive import deform_aggregation
from jax_dcn._operators.deform_conv.on_grid import conv_on_grid
from jax_dcn._operators.deform_conv.primitive import deform_conv, deform_conv_of_volumes
from jax_dcn._operators.roi_pool.primitive import deform_roi_max_pool, deform_roi_pool
from jax_dcn._operators.sampling.primitive import deform_sampling
from jax_dcn._primitive.operator import Operator
from jax_dcn._primitive.primitive import Primitive
from jax_dcn.interop import onnx_functions


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within it, jax2onnx has the lowerings of this plugin, and `nms` is traced as its primitive."""
    from jax2onnx.plugins.plugin_system import PLUGIN_REGISTRY, import_all_plugins

    with _libraries_restored():
        import_all_plugins()
    lowerings = mock.patch.dict(PLUGIN_REGISTRY, _lowerings(PLUGIN_REGISTRY))
    with _libraries_restored(), lowerings, boxes.SUPPRESSOR(onnx_functions.nms):
        yield


@contextlib.contextmanager
def _libraries_restored() -> Iterator[None]:
    """Restores the public modules of jax and Flax and their classes.

    jax2onnx replaces `jax.numpy.cumsum` when its plugins are imported. After an export it leaves functions in classes
    that had inherited them, such as `flax.linen.MultiHeadAttention`.
    """
    libraries = "jax.", "flax."
    modules = [module for name, module in sys.modules.items() if name.startswith(libraries) and "._" not in name]
    values = (value for module in modules for value in vars(module).values())
    classes = {value for value in values if isinstance(value, type) and value.__module__.startswith(libraries)}
    before = [(owner, dict(vars(owner))) for owner in (*modules, *classes)]
    try:
        yield
    finally:
        for owner, attributes in before:
            for name, value in list(vars(owner).items()):
                if name not in attributes and not isinstance(value, ModuleType):
                    delattr(owner, name)
                elif value is not attributes.get(name, value):
                    setattr(owner, name, attributes[name])


class _Function:
    """Lowers a primitive by tracing a function of its operands, whose equations take its place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def lower(self, ctx: Any, eqn: Any) -> None:
        from jax2onnx.converter.lowering_dispatch import lower_jaxpr_with_plugins
        from jax2onnx.plugins.plugin_system import PLUGIN_REGISTRY

        shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in eqn.invars]
        closed = jax.make_jaxpr(partial(self.function, **eqn.params))(*shapes)
        jaxpr = closed.jaxpr
        for var, constant in zip(jaxpr.constvars, closed.consts, strict=True):
            ctx.bind_const_for_var(var, np.asarray(constant))
        for var, operand in zip(jaxpr.invars, eqn.invars, strict=True):
            ctx.bind_value_for_var(var, ctx.get_value_for_var(operand))
        lower_jaxpr_with_plugins(ctx=ctx, jaxpr=jaxpr, registry=PLUGIN_REGISTRY, source=__name__)
        for value, result in zip(jaxpr.outvars, eqn.outvars, strict=True):
            ctx.bind_value_for_var(result, ctx.get_value_for_var(value))


class _Replacement(_Function):
    """Takes the place of a lowering of jax2onnx for the equations that it applies to."""

    def __init__(self, function: Callable[..., Any], applies: Callable[..., bool], other: Any) -> None:
        super().__init__(function)
        self.applies, self.other = applies, other

    def lower(self, ctx: Any, eqn: Any) -> None:
        if self.applies(eqn.invars[0].aval, **eqn.params):
            super().lower(ctx, eqn)
        else:
            self.other.lower(ctx, eqn)


class _Node:
    """Lowers `onnx_functions.NODE`."""

    def lower(self, ctx: Any, eqn: Any) -> None:
        import onnx_ir

        (result,) = eqn.outvars
        value = eqn.params["write"](_Builder(ctx), *map(ctx.get_value_for_var, eqn.invars))
        value.type = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
        value.shape = onnx_ir.Shape([size if isinstance(size, int) else str(size) for size in result.aval.shape])
        ctx.bind_value_for_var(result, value)


class _Builder:
    """Adds nodes to a model: `build.Add(a, b)` returns the sum."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def constant(self, value: Any, dtype: Any = np.int64) -> Any:
        name = self.ctx.fresh_name("jax_dcn_constant")
        return self.ctx.builder.add_initializer_from_array(name, np.array(value, dtype))

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return partial(getattr(self.ctx.builder, op_type), _outputs=[self.ctx.fresh_name(f"jax_dcn_{op_type}")])


_PRIMITIVES: tuple[tuple[Primitive[Any], Callable[..., Any]], ...] = (
    (deform_conv, onnx_functions.deform_conv),
    (deform_conv_of_volumes, onnx_functions.deform_conv),
    *((primitive, onnx_functions.conv_on_grid) for primitive in conv_on_grid.values()),
    (deform_aggregation, onnx_functions.aggregation),
    (deform_sampling, onnx_functions.sampling),
    (deform_roi_pool, onnx_functions.pooling),
    (deform_roi_max_pool, partial(onnx_functions.pooling, is_max=True)),
)


def _of_operator(operator: Operator[Any], function: Callable[..., Any]) -> Callable[..., list[jax.Array]]:
    def of_equation(*arrays: jax.Array, present: Any, chain: Any, spec: Any, backend: Any) -> list[jax.Array]:
        if chain:
            raise ValueError(f"a derivative of {operator.name} cannot be exported to ONNX")
        return [function(operator.operands_of(dict(zip(present, arrays, strict=True))), spec)]

    return of_equation


def _windows_images(
    x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any, window_dilation: Any
) -> bool:
    """Whether the windows are of images [N, H, W, C]. jax2onnx writes pools of four axes, which no runtime has."""
    if x.ndim != 4 or x.dtype != jnp.float32 or any(padding[0] + padding[3]):
        return False
    ends = [sizes[axis] for sizes in (window_dimensions, window_strides) for axis in (0, 3)]
    return {*ends, *base_dilation, *window_dilation} == {1}


def _pads_symbolic(x: Any, *, padding_config: Any) -> bool:
    """Whether sizes are symbolic, for which jax2onnx fails."""
    is_known = all(isinstance(size, int) for size in x.shape)
    return not is_known and x.dtype == jnp.float32 and not any(interior for *_, interior in padding_config)


def _depends_on_platform(index: Any, *, branches_platforms: Any = None, **params: Any) -> bool:
    """Whether the branches are those of `jax.lax.platform_dependent`."""
    return branches_platforms is not None


_REPLACEMENTS: tuple[tuple[Callable[..., Any], Callable[..., bool]], ...] = (
    (onnx_functions.reduce_window_max, _windows_images),
    (onnx_functions.reduce_window_sum, _windows_images),
    (onnx_functions.pad, _pads_symbolic),
    (onnx_functions.cond, _depends_on_platform),
)


def _lowerings(others: Mapping[str, Any]) -> dict[str, Any]:
    """The lowerings of this plugin, by the names of primitives, given those of jax2onnx."""
    lowerings: dict[str, Any] = {
        primitive.operator.name: _Function(_of_operator(primitive.operator, function))
        for primitive, function in _PRIMITIVES
    }
    for function, applies in _REPLACEMENTS:
        name = function.__name__
        lowerings[name] = _Replacement(function, applies, others[name])
    return lowerings | {
        onnx_functions.NODE.name: _Node(),
        onnx_functions.NMS.name: _Function(onnx_functions.nms_of_examples),
        "platform_index": _Function(onnx_functions.platform_index),
    }
