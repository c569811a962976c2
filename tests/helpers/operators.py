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

from tests.helpers.aggregation import cases as aggregation
from tests.helpers.deform_conv import cases as convolution
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.roi_pool import cases as pooling
from tests.helpers.roi_pool.numpy_reference import Align, Pooling
from tests.helpers.sampling import cases as sampling


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
        return convolution.cast(self.case.operands(lead=self.lead), dtype)


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


def of_some(function, operands, names):
    """`function` as a function of the operands in `names`."""
    return lambda *some: function(*operands._replace(**dict(zip(names, some, strict=True))))


def loss(function, operands):
    """A loss whose cotangent differs for each element of the result."""
    return jnp.sin(function(*operands)).sum()


def _split(name, case, result, summed=(), **specs):
    """A split of a convolution, whose other operands are replicated."""
    Operands = convolution.Operands
    return Split(name, case, Operands(**dict.fromkeys(Operands._fields, P()) | specs), result, summed)


def _convolution():
    Case, Operands = convolution.Case, convolution.Operands
    split_case = Case("split", (9, 7), 4, 4, (3, 3), 2, (8,), Convolution((2, 1), ((2, 1), (1, 2)), (1, 2)))
    grouped_options = Convolution(padding=((1, 0), (1, 2)), feature_group_count=4)
    grouped = Case("grouped", (9, 7), 8, 16, (3, 3), 4, (8,), grouped_options)
    shared_offsets = Case("shared_offsets", (4, 5), 4, 8, (1, 3), 1, (8,), Convolution((1, 1), "SAME", (1, 1), 4))
    same = Case("rows", (16, 4), 2, 4, (3, 3), 1, (2,), Convolution(padding="SAME"))

    def of_groups(groups, offset_groups):
        options = Convolution((1, 1), "SAME", (1, 1), groups)
        return Case("grouped", (4, 3), 12, 12, (3, 1), offset_groups, (8,), options)

    def split(name, result, summed=(), case=split_case, **specs):
        return _split(name, case, result, summed, **specs)

    def data(*axes):
        return dict.fromkeys(("x", "offset", "mask"), P(*axes))

    last, spatial = P(None, None, None, "b"), P(None, "a", "b")
    features = {"weight": last, "bias": P("b")}
    channels = dict.fromkeys(("x", "offset", "weight", "mask"), last) | {"bias": P("b")}
    parameters, sums = ("weight", "bias"), ("x", "weight", "bias")
    splits = (
        split("images", P("a"), parameters, **data("a")),
        split("images_over_both_axes", P(("b", "a")), parameters, **data(("b", "a"))),
        split("features", last, ("x", "offset", "mask"), **features),
        split("images_and_features", P("a", None, None, "b"), Operands._fields, **data("a") | features),
        split("rows", P(None, "a"), sums, same, offset=P(None, "a"), mask=P(None, "a")),
        split("rows_and_columns", spatial, sums, same, offset=spatial, mask=spatial),
        split("images_and_rows", P("b", "a"), sums, same, x=P("b"), offset=P("b", "a"), mask=P("b", "a")),
        split("groups", P("a", None, None, "b"), parameters, grouped, **features | data("a", None, None, "b")),
        split("groups_and_half_as_many_offsets", last, (), of_groups(4, 2), **channels),
        split("groups_and_other_offset_groups", last, (), of_groups(4, 6), **channels),
        split("images_of_groups_that_do_not_split", P("a"), parameters, of_groups(3, 2), **data("a")),
        split("groups_of_common_offsets", last, ("offset", "mask"), shared_offsets, **features | {"x": last}),
    )
    small = Case("small", (2, 3), 2, 2, (2, 1), 2, (), Convolution((1, 2), 1))
    uneven = Case("uneven", (6, 4), 3, 5, (3, 3), 1, (7,), Convolution((1, 1), "SAME"))
    return Operator(
        "deform_conv2d",
        case=Case("layer", (3, 4), 2, 2, (2, 3), 2, (2,), Convolution(padding="SAME", feature_group_count=2)),
        small=small,
        smooth=small.smooth_operands(),
        forward="dcn_sample",
        kernels={
            "x": "dcn_cpu_x_cotangent",
            "offset": "dcn_offset_cotangent",
            "weight": "dcn_sample",
            "mask": "dcn_offset_cotangent",
        },
        splits=splits,
        uneven=split("uneven", P(None, "a"), case=uneven),
        linear=("x", "weight", "mask"),
        shared=("weight", "bias"),
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
    Case = convolution.Case
    case = Case("volumes", (8, 3, 4), 4, 4, (2, 3, 1), 2, (4,), Convolution(1, "SAME", 1, 2))
    small = Case("small", (2, 2, 3), 2, 2, (1, 2, 1), 1, (), Convolution((1, 2, 1), 1))
    last, planes = P(None, None, None, None, "b"), P(None, "a")
    data = {"offset": planes, "mask": planes}

    splits = (
        _split("images", case, P("a"), ("weight", "bias"), x=P("a"), offset=P("a"), mask=P("a")),
        _split("planes", case, planes, ("x", "weight", "bias"), **data),
        _split("groups", case, last, **dict.fromkeys(("x", "offset", "weight", "mask"), last) | {"bias": P("b")}),
    )
    return Operator(
        "deform_conv3d",
        case=Case("volume", (2, 3, 2), 4, 2, (2, 1, 2), 2, (2,), Convolution(1, "SAME", 1, 2)),
        small=small,
        smooth=small.smooth_operands(),
        forward="dcn_sampling",
        kernels={
            "x": "dcn_sampling_x_cotangent",
            "offset": "dcn_sampling_locations_cotangent",
            "weight": "dcn_sampling",
            "mask": "dcn_sampling",
        },
        splits=splits,
        uneven=_split("uneven", case, planes),
        linear=("x", "weight", "mask"),
        shared=("weight", "bias"),
    )


def _convolution_on_grid():
    Case, GridCase, Operands = convolution.Case, convolution.GridCase, convolution.GridOperands

    def case(name, groups=1, batch=(8,)):
        options = Convolution(padding="SAME", feature_group_count=groups)
        return GridCase(Case(name, (3, 4), 16 * groups, 32 * groups, (2, 3), batch=batch, convolution=options))

    def split(name, case, result, summed=(), **specs):
        return Split(name, case, Operands(**dict.fromkeys(Operands._fields, P()) | specs), result, summed)

    last = P(None, None, None, "b")
    small = GridCase(Case("small", (2, 3), 2, 2, (2, 1), batch=(), convolution=Convolution((1, 2), 1)))
    return Operator(
        "conv_on_grid",
        case=case("layer", batch=(2,)),
        small=small,
        smooth=small.operands(3),
        forward="dcn_cpu_fused_forward",
        kernels=dict.fromkeys(("x", "weight"), "dcn_cpu_fused_cotangents"),
        splits=(
            split("images", case("plain"), P("a"), ("weight", "bias"), x=P("a")),
            split("features", case("plain"), last, ("x",), weight=last, bias=P("b")),
            split("groups", case("grouped", 4), last, (), x=last, weight=last, bias=P("b")),
        ),
        uneven=split("uneven", case("uneven", batch=(7,)), P("a")),
        linear=("x", "weight"),
        shared=("weight", "bias"),
    )


def _pooling(name, case, **known):
    uneven = Split("uneven", case, pooling.Operands(P(), P(), P()), P(None, "a"), (), (4,))
    return Operator(name, case, uneven=uneven, **{"forward": "dcn_roi_pool", "linear": ("x",)} | known)


def _ps_roi_pool():
    Operands = pooling.Operands
    features = P(None, None, None, None, "b")
    three, one, two = (pooling.PSRoIPool(classes=classes) for classes in (3, 1, 2))
    splits = (
        Split("batch", three, Operands(P("a"), P("a"), P("a")), P("a"), (), (4,)),
        Split("regions", three, Operands(P(), P(None, "b"), P(None, "b")), P(None, "b"), ("x",), (4,)),
        Split("batch_and_regions", three, Operands(P("a"), P("a", "b"), P("a", "b")), P("a", "b"), ("x",), (4,)),
        Split("features", one, Operands(features, P(), P()), features, ("offset",), (4,)),
        Split("classes", two, Operands(features, P(), features), features, (), (4,)),
    )
    random = np.random.default_rng(3)
    smooth = Operands(
        random.normal(size=(1, 5, 6, 4)),
        np.array([[0.0, 1, 0, 4, 3], [0, -2, 1, 3, 9]]),
        random.uniform(-1, 1, size=(2, 2, 2, 2)),
    )
    small = pooling.PSRoIPool(Pooling((2, 2), (1, 2), (2, 2), (2, 2), spatial_scale=0.5, trans_std=0.2), classes=1)
    kernels = {"x": "dcn_roi_pool_x_cotangent", "offset": "dcn_roi_pool_offset_cotangent"}
    return _pooling("deform_psroi_pool", three, small=small, smooth=smooth, splits=splits, kernels=kernels)


def _roi_align(name, align, has_offset=False):
    Operands = pooling.Operands
    case, small = (pooling.RoIAlign(align, has_offset, *sizes) for sizes in [((7, 9),), ((4, 5), 2, 3)])
    smooth = small.operands()
    features, regions = P("a", None, None, None, "b"), P("a", "b")
    split = Split("batch_and_features", case, Operands(features, P("a"), P()), features, (), (4,))
    kernels = {"x": "dcn_roi_pool_x_cotangent"}
    if has_offset:
        split = Split("batch_and_regions", case, Operands(P("a"), regions, regions), regions, ("x",), (4,))
        kernels["offset"] = "dcn_roi_pool_offset_cotangent"
    known = {"small": small, "smooth": smooth, "splits": (split,), "kernels": kernels}
    if align.mode == "max":
        known |= {"kernels": {"x": "dcn_roi_max_pool_x_cotangent"}, "forward": "dcn_roi_max_pool", "linear": ()}
    return _pooling(name, case, **known)


def _aggregation(name, case, small, splits, uneven):
    taps = "dcn_aggregation_tap_cotangents"
    return Operator(
        name,
        case=case,
        small=small,
        smooth=small.operands(3),
        kernels={"value": "dcn_aggregation_value_cotangent", "locations": taps, "weights": taps},
        splits=splits,
        uneven=uneven,
        linear=("value", "weights"),
        forward="dcn_aggregate",
    )


def _attention():
    Attention, Operands = aggregation.Attention, aggregation.Operands
    case, queries, heads = Attention(queries=8), P(None, "a"), P("a", None, "b")
    splits = (
        Split("batch", case, Operands(P("a"), P("a"), P("a")), P("a"), (), (4,)),
        Split("queries", case, Operands(P(), queries, queries), queries, ("value",), (4,)),
        Split("batch_and_heads", case, Operands(heads, heads, heads), heads, (), (4,)),
    )
    small = Attention(((3, 4), (2, 2)), (1, 2), queries=2, heads=2, channels=2)
    uneven = Split("uneven", Attention(queries=6), Operands(P(), P(), P()), P(None, "a"), (), (4,))
    return _aggregation("multi_scale_deformable_attention", Attention(), small, splits, uneven)


def _dcnv3():
    Window, Operands = aggregation.Convolution, aggregation.Operands
    case, rows, columns = Window(image=(8, 8)), P(None, "a"), P(None, None, "b")
    groups = P(None, None, None, "b"), P(None, "a", None, "b")
    splits = (
        Split("batch", case, Operands(P("a"), P("a"), P("a")), P("a"), (), (4,)),
        Split("rows", case, Operands(P(), rows, rows), rows, ("value",), (4,)),
        Split("columns", case, Operands(P(), columns, columns), columns, ("value",), (4,)),
        Split("rows_and_groups", case, Operands(groups[0], groups[1], groups[1]), groups[1], ("value",), (4,)),
    )
    small = Window((2, 2), groups=2, channels=2, image=(3, 2))
    uneven = Split("uneven", Window(), Operands(P(), P(), P()), P(None, "a"), (), (4,))
    return _aggregation("dcnv3", Window(), small, splits, uneven)


def _grid_sample():
    Grid, Operands = sampling.Grid, sampling.Operands
    case = Grid((4, 5), (8, 3), 4)
    points, both = P(None, "a"), P("a", None, None, "b")
    splits = (
        Split("batch", case, Operands(P("a"), P("a")), P("a"), (), (4,)),
        Split("points", case, Operands(P(), points), points, ("x",), (4,)),
        Split("batch_and_channels", case, Operands(both, P("a")), both, ("locations",), (4,)),
    )
    small = Grid((3, 2, 2), (2,), 2)
    return Operator(
        "grid_sample",
        case=Grid((3, 4, 5), (2, 3), 6, padding_mode="reflection"),
        small=small,
        smooth=small.operands(3),
        kernels={"x": "dcn_sampling_x_cotangent", "locations": "dcn_sampling_locations_cotangent"},
        splits=splits,
        uneven=Split("uneven", Grid((4, 5), (6,), 4), Operands(P(), P()), P(None, "a"), (), (4,)),
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
        _roi_align("roi_max_align", Align(spatial_scale=0.4, mode="max")),
        _roi_align("deform_roi_pool", Align((2, 1), sampling_ratio=(0, 1), spatial_scale=0.4, gamma=0.2), True),
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
