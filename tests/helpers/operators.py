"""A record of each operator: what the tests of transformations, derivatives, sharding and determinism need to know.

To have a new operator tested by all of `tests/operators/`, add a record of it to `OPERATORS`.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.helpers.aggregation.cases import Attention
from tests.helpers.aggregation.cases import Convolution as Window
from tests.helpers.deform_conv.cases import Case, GridCase, assert_near, cast
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.roi_pool import cases as pooling
from tests.helpers.roi_pool.cases import PSRoIPool, RoIAlign
from tests.helpers.roi_pool.numpy_reference import Align, Pooling
from tests.helpers.sampling.cases import Grid


class Split(NamedTuple):
    """Shardings over a mesh of 4 x 2 devices.

    specs: a named tuple of operands' partition specs; result: that of the result. summed: the operands whose gradients
    are all-reduced, and nothing else is exchanged. lead: batch dimensions in front of the operands of the case.
    """

    name: str
    case: Any
    specs: Any
    result: P
    summed: tuple[str, ...] = ()
    lead: tuple[int, ...] = ()

    def __str__(self):
        return self.name

    def operands(self, dtype=np.float32):
        return cast(self.case.operands(lead=self.lead), dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Operator:
    """An operator, its operands of several kinds, and what is known of its programs.

    A case has operands(seed, lead), cotangent(seed, lead), both of float64; with_backend(backend), the function of
    these operands; and expected(cotangent, operands), the result and the gradients by the operator's numpy reference.

    Args:
      case: an ordinary problem.
      small: a problem that is small enough for derivatives of all orders.
      smooth: operands of `small`, away from non-differentiable points.
      kernels: the custom call of the gradient with respect to each operand; the gradient of others is zero.
      forward: the custom call of the result.
      splits: how its operands may be sharded without gathering them.
      uneven: a problem whose result is constrained to a sharding with unequal shards.
      linear: the operands in each of which it is linear.
      shared: the operands that have no batch dimensions.
    """

    name: str
    case: Any
    small: Any
    smooth: Any
    kernels: Mapping[str, str]
    splits: tuple[Split, ...]
    uneven: Split
    forward: str
    linear: tuple[str, ...]
    shared: tuple[str, ...] = ()

    def __str__(self):
        return self.name

    @property
    def names(self):
        """The names of the operands that are present."""
        return [name for name, array in self.case.operands()._asdict().items() if array is not None]

    @property
    def differentiable(self):
        """The names of the operands that have a gradient; that of a bias needs no kernel."""
        return (*self.kernels, *({"bias"} & set(self.names)))


@functools.partial(jax.jit, static_argnums=0)
def pull_back(function, cotangent, operands):
    """(result, gradients with respect to all operands) of a function of these operands."""
    result, pullback = jax.vjp(lambda operands: function(*operands), operands)
    return result, pullback(cotangent)[0]


@functools.cache
def compiled_pull_back(case, backend):
    """`pull_back` of a case, which the tests of its gradients and of its special values share."""
    return jax.jit(functools.partial(pull_back, case.with_backend(backend)))


POSITIONS = {"offset", "mask", "rois", "locations", "weights"}


def narrowed(case, dtype):
    """A cotangent and operands whose values `dtype` has, and positions in float32 or wider."""
    wide = jnp.promote_types(dtype, jnp.float32)
    operands = {
        name: None if array is None else jnp.asarray(array, wide if name in POSITIONS else dtype)
        for name, array in case.operands()._asdict().items()
    }
    return jnp.asarray(case.cotangent(), dtype), type(case.operands())(**operands)


def check(case, backend, cotangent, operands, tolerance, least=0):
    """Compares with the numpy reference of the same operands as `assert_near` does."""
    actual = compiled_pull_back(case, backend)(cotangent, operands)
    assert_near(actual, case.expected(*cast((cotangent, operands), np.float64)), tolerance, least)


def of_some(function, operands, names):
    """`function` as a function of the operands in `names`."""
    return lambda *some: function(*operands._replace(**dict(zip(names, some, strict=True))))


def loss(function, operands):
    """A loss whose cotangent differs for each element of the result."""
    return jnp.sin(function(*operands)).sum()


def alike(what, *names):
    """The specs of operands that are sharded alike, or their kernels."""
    return dict.fromkeys(names, what)


def split(name, case, result, summed=(), lead=(), **specs):
    """A `Split`, in which the operands that are not named are replicated."""
    operands = type(case.operands())
    return Split(name, case, operands(**alike(P(), *operands._fields) | specs), result, summed, lead)


def batched_split(name, case, result, summed=(), **specs):
    """A `split` of an operator whose operands have no batch dimension of their own."""
    return split(name, case, result, summed, (4,), **specs)


IMAGES, LAST = P("a"), P(None, None, None, "b")
DATA = "x", "offset", "mask"
PARAMETERS = "weight", "bias"
TAPS = "locations", "weights"


def _convolution():
    plain = Case("split", (9, 7), 4, 4, (3, 3), 2, (8,), Convolution((2, 1), ((2, 1), (1, 2)), (1, 2)))
    grouped_options = Convolution(padding=((1, 0), (1, 2)), feature_group_count=4)
    grouped = Case("grouped", (9, 7), 8, 16, (3, 3), 4, (8,), grouped_options)
    common_offsets = Case("common_offsets", (4, 5), 4, 8, (1, 3), 1, (8,), Convolution((1, 1), "SAME", (1, 1), 4))
    half_as_many, others, three_groups = (
        Case("groups", (4, 3), 12, 12, (3, 1), offset_groups, (8,), Convolution((1, 1), "SAME", (1, 1), groups))
        for groups, offset_groups in ((4, 2), (4, 6), (3, 2))
    )
    same = Case("rows", (16, 4), 2, 4, (3, 3), 1, (2,), Convolution(padding="SAME"))
    both_axes, both, rows, spatial = P(("b", "a")), P("a", None, None, "b"), P(None, "a"), P(None, "a", "b")
    features = {"weight": LAST, "bias": P("b")}
    channels = features | alike(LAST, *DATA)
    sums = ("x", *PARAMETERS)
    small = Case("small", (2, 3), 2, 2, (2, 1), 2, (), Convolution((1, 2), 1))
    return Operator(
        "deform_conv2d",
        case=Case("layer", (3, 4), 2, 2, (2, 3), 2, (2,), Convolution(padding="SAME", feature_group_count=2)),
        small=small,
        smooth=small.smooth_operands(),
        forward="dcn_sample",
        kernels={"x": "dcn_cpu_x_cotangent", "weight": "dcn_sample", **alike("dcn_offset_cotangent", "offset", "mask")},
        splits=(
            split("images", plain, IMAGES, PARAMETERS, **alike(IMAGES, *DATA)),
            split("images_over_both_axes", plain, both_axes, PARAMETERS, **alike(both_axes, *DATA)),
            split("features", plain, LAST, DATA, **features),
            split("images_and_features", plain, both, (*DATA, *PARAMETERS), **features, **alike(IMAGES, *DATA)),
            split("rows", same, rows, sums, offset=rows, mask=rows),
            split("rows_and_columns", same, spatial, sums, offset=spatial, mask=spatial),
            split("images_and_rows", same, P("b", "a"), sums, x=P("b"), offset=P("b", "a"), mask=P("b", "a")),
            split("groups", grouped, both, PARAMETERS, **features, **alike(both, *DATA)),
            split("groups_and_half_as_many_offsets", half_as_many, LAST, **channels),
            split("groups_and_other_offset_groups", others, LAST, **channels),
            split("images_of_groups_that_do_not_split", three_groups, IMAGES, PARAMETERS, **alike(IMAGES, *DATA)),
            split("groups_of_common_offsets", common_offsets, LAST, ("offset", "mask"), x=LAST, **features),
        ),
        uneven=split("uneven", Case("uneven", (6, 4), 3, 5, (3, 3), 1, (7,), Convolution((1, 1), "SAME")), rows),
        linear=("x", "weight", "mask"),
        shared=PARAMETERS,
    )


# What CUDA has in place of a custom call of the CPU: nothing for an ordinary convolution.
ON_CUDA = {
    "dcn_cpu_x_cotangent": ("dcn_sort_samples", "dcn_gather_samples"),
    "dcn_cpu_fused_forward": (),
    "dcn_cpu_fused_cotangents": (),
}


def custom_calls_on(platform, names):
    """The custom calls that a platform has for those of the CPU."""
    return {call for name in names for call in (ON_CUDA.get(name, [name]) if platform == "cuda" else [name])}


def custom_calls(compiled):
    """The custom calls of the package in a compiled program."""
    return set(re.findall(r'custom_call_target="(dcn_\w+)"', compiled.as_text()))


def _convolution_of_volumes():
    case = Case("volumes", (8, 3, 4), 4, 4, (2, 3, 1), 2, (4,), Convolution(1, "SAME", 1, 2))
    small = Case("small", (2, 2, 3), 2, 2, (1, 2, 1), 1, (), Convolution((1, 2, 1), 1))
    last, planes = P(None, None, None, None, "b"), P(None, "a")
    return Operator(
        "deform_conv3d",
        case=Case("volume", (2, 3, 2), 4, 2, (2, 1, 2), 2, (2,), Convolution(1, "SAME", 1, 2)),
        small=small,
        smooth=small.smooth_operands(),
        forward="dcn_sampling",
        kernels={"x": "dcn_sampling_x_cotangent", "offset": "dcn_sampling_locations_cotangent"}
        | alike("dcn_sampling", "weight", "mask"),
        splits=(
            split("images", case, IMAGES, PARAMETERS, **alike(IMAGES, *DATA)),
            split("planes", case, planes, ("x", *PARAMETERS), offset=planes, mask=planes),
            split("groups", case, last, bias=P("b"), **alike(last, *DATA, "weight")),
        ),
        uneven=split("uneven", case, planes),
        linear=("x", "weight", "mask"),
        shared=PARAMETERS,
    )


def _convolution_on_grid():
    def case(name, groups=1, batch=(8,)):
        options = Convolution(padding="SAME", feature_group_count=groups)
        return GridCase(Case(name, (3, 4), 16 * groups, 32 * groups, (2, 3), batch=batch, convolution=options))

    small = GridCase(Case("small", (2, 3), 2, 2, (2, 1), batch=(), convolution=Convolution((1, 2), 1)))
    return Operator(
        "conv_on_grid",
        case=case("layer", batch=(2,)),
        small=small,
        smooth=small.operands(3),
        forward="dcn_cpu_fused_forward",
        kernels=alike("dcn_cpu_fused_cotangents", "x", "weight"),
        splits=(
            split("images", case("plain"), IMAGES, PARAMETERS, x=IMAGES),
            split("features", case("plain"), LAST, ("x",), weight=LAST, bias=P("b")),
            split("groups", case("grouped", 4), LAST, x=LAST, weight=LAST, bias=P("b")),
        ),
        uneven=split("uneven", case("uneven", batch=(7,)), IMAGES),
        linear=("x", "weight"),
        shared=PARAMETERS,
    )


def _pooling(name, case, kernel="dcn_roi_pool", linear=("x",), **known):
    names = ("x", "offset") if case.operands().offset is not None else ("x",)
    kernels = {name: f"{kernel}_{name}_cotangent" for name in names}
    uneven = batched_split("uneven", case, P(None, "a"))
    return Operator(name, case, uneven=uneven, kernels=kernels, forward=kernel, linear=linear, **known)


def _ps_roi_pool():
    features, regions, both = P(None, None, None, None, "b"), P(None, "b"), P("a", "b")
    three, one, two = (PSRoIPool(classes=classes) for classes in (3, 1, 2))
    random = np.random.default_rng(3)
    smooth = pooling.Operands(
        random.normal(size=(1, 5, 6, 4)),
        np.array([[0.0, 1, 0, 4, 3], [0, -2, 1, 3, 9]]),
        random.uniform(-1, 1, size=(2, 2, 2, 2)),
    )
    return _pooling(
        "deform_psroi_pool",
        three,
        small=PSRoIPool(Pooling((2, 2), (1, 2), (2, 2), (2, 2), spatial_scale=0.5, trans_std=0.2), classes=1),
        smooth=smooth,
        splits=(
            batched_split("batch", three, IMAGES, **alike(IMAGES, "x", "rois", "offset")),
            batched_split("regions", three, regions, ("x",), rois=regions, offset=regions),
            batched_split("batch_and_regions", three, both, ("x",), x=IMAGES, rois=both, offset=both),
            batched_split("features", one, features, ("offset",), x=features),
            batched_split("classes", two, features, x=features, offset=features),
        ),
    )


def _roi_align(name, align, **known):
    case, small = (RoIAlign(align, *sizes) for sizes in [(False, (7, 9)), (False, (4, 5), 2, 3)])
    both = P("a", None, None, None, "b")
    split = batched_split("batch_and_features", case, both, x=both, rois=IMAGES)
    return _pooling(name, case, small=small, smooth=small.operands(), splits=(split,), **known)


def _deform_roi_pool():
    align = Align((2, 1), sampling_ratio=(0, 1), spatial_scale=0.4, gamma=0.2)
    case, small = (RoIAlign(align, *sizes) for sizes in [(True, (7, 9)), (True, (4, 5), 2, 3)])
    both = P("a", "b")
    split = batched_split("batch_and_regions", case, both, ("x",), x=IMAGES, rois=both, offset=both)
    return _pooling("deform_roi_pool", case, small=small, smooth=small.operands(), splits=(split,))


def _aggregation(name, case, small, splits, uneven):
    taps = "dcn_aggregation_tap_cotangents"
    return Operator(
        name,
        case=case,
        small=small,
        smooth=small.operands(3),
        kernels={"value": "dcn_aggregation_value_cotangent", "locations": taps, "weights": taps},
        splits=splits,
        uneven=batched_split("uneven", uneven, P(None, "a")),
        linear=("value", "weights"),
        forward="dcn_aggregate",
    )


def _attention():
    case, queries, heads = Attention(queries=8), P(None, "a"), P("a", None, "b")
    splits = (
        batched_split("batch", case, IMAGES, **alike(IMAGES, "value", *TAPS)),
        batched_split("queries", case, queries, ("value",), **alike(queries, *TAPS)),
        batched_split("batch_and_heads", case, heads, **alike(heads, "value", *TAPS)),
    )
    small = Attention(((3, 4), (2, 2)), (1, 2), queries=2, heads=2, channels=2)
    return _aggregation("multi_scale_deformable_attention", Attention(), small, splits, Attention(queries=6))


def _dcnv3():
    case, rows, columns, both = Window(image=(8, 8)), P(None, "a"), P(None, None, "b"), P(None, "a", None, "b")
    splits = (
        batched_split("batch", case, IMAGES, **alike(IMAGES, "value", *TAPS)),
        batched_split("rows", case, rows, ("value",), **alike(rows, *TAPS)),
        batched_split("columns", case, columns, ("value",), **alike(columns, *TAPS)),
        batched_split("rows_and_groups", case, both, ("value",), value=LAST, **alike(both, *TAPS)),
    )
    small = Window((2, 2), groups=2, channels=2, image=(3, 2))
    return _aggregation("dcnv3", Window(), small, splits, Window())


def _grid_sample():
    case, points, both = Grid((4, 5), (8, 3), 4), P(None, "a"), P("a", None, None, "b")
    small = Grid((3, 2, 2), (2,), 2)
    return Operator(
        "grid_sample",
        case=Grid((3, 4, 5), (2, 3), 6, padding_mode="reflection"),
        small=small,
        smooth=small.operands(3),
        kernels={"x": "dcn_sampling_x_cotangent", "locations": "dcn_sampling_locations_cotangent"},
        splits=(
            batched_split("batch", case, IMAGES, x=IMAGES, locations=IMAGES),
            batched_split("points", case, points, ("x",), locations=points),
            batched_split("batch_and_channels", case, both, ("locations",), x=both, locations=IMAGES),
        ),
        uneven=batched_split("uneven", Grid((4, 5), (6,), 4), P(None, "a")),
        linear=("x",),
        forward="dcn_sampling",
    )


OPERATORS = {
    operator.name: operator
    for operator in (
        _convolution(),
        _convolution_of_volumes(),
        _convolution_on_grid(),
        _ps_roi_pool(),
        _attention(),
        _dcnv3(),
        _grid_sample(),
        _roi_align("roi_align", Align(spatial_scale=0.4)),
        _roi_align("roi_max_align", Align(spatial_scale=0.4, mode="max"), kernel="dcn_roi_max_pool", linear=()),
        _deform_roi_pool(),
    )
}
CONVOLUTION = OPERATORS["deform_conv2d"]
EACH_PRIMITIVE = (
    "deform_conv2d",
    "deform_psroi_pool",
    "roi_max_align",
    "multi_scale_deformable_attention",
    "grid_sample",
)


def each_operator(*by_default, others=pytest.mark.thorough):
    """Parametrises a test by `operator`. If some are named, the others have this mark.

    That suits tests of rules that all operators share.
    """
    marks = {name: () if name in (by_default or OPERATORS) else others for name in OPERATORS}
    params = [pytest.param(operator, id=name, marks=marks[name]) for name, operator in OPERATORS.items()]
    return pytest.mark.parametrize("operator", params)
