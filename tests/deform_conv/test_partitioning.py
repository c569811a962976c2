"""Plain jit over sharded arrays: XLA's partitioner shards the operator by its rule, and nothing is gathered.

A wrong rule causes no error. The values may stay right while the devices exchange everything or all compute the same,
or they may be wrong on only some devices. So every test checks both the collectives of the compiled program and the
values.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.lowering.hlo import collectives
from tests.helpers.deform_conv.cases import Case, Operands, assert_close, cast, convolve
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.sharding import AXIS_TYPES, check, is_split, make_mesh, place

pytestmark = pytest.mark.platforms("cpu")

CASE = Case("split", (9, 7), 4, 4, (3, 3), 2, (8,), Convolution((2, 1), ((2, 1), (1, 2)), (1, 2)))
GROUPED = Case("grouped", (9, 7), 8, 16, (3, 3), 4, (8,), Convolution(padding=((1, 0), (1, 2)), feature_group_count=4))
SHARED_OFFSETS = Case("shared_offsets", (4, 5), 4, 8, (1, 3), 1, (8,), Convolution((1, 1), "SAME", (1, 1), 4))
SAME = Case("rows", (16, 4), 2, 4, (3, 3), 1, (2,), Convolution(padding="SAME"))


class Split(NamedTuple):
    """The shardings of the operands over a mesh of 4 x 2 devices, and what follows from them.

    These are the sharding of the result, and the gradients that are all-reduced.
    """

    name: str
    case: Case
    operands: Operands
    result: P
    summed: tuple[str, ...]

    def __str__(self):
        return self.name


def split(name, result, summed, case=CASE, **operands):
    return Split(name, case, Operands(**dict.fromkeys(Operands._fields, P()) | operands), result, summed)


def over_images(*axes):
    return dict.fromkeys(("x", "offset", "mask"), P(*axes))


def grouped(groups, offset_groups):
    convolution = Convolution((1, 1), "SAME", (1, 1), groups)
    return Case("grouped", (4, 3), 12, 12, (3, 1), offset_groups, (8,), convolution)


CHANNELS = dict.fromkeys(("x", "offset", "weight", "mask"), P(None, None, None, "b")) | {"bias": P("b")}
SPATIAL = P(None, "a", "b")
FEATURES = {"weight": P(None, None, None, "b"), "bias": P("b")}
GROUPS = FEATURES | dict.fromkeys(("x", "offset", "mask"), P("a", None, None, "b"))
SPLITS = [
    split("images", P("a"), ("weight", "bias"), **over_images("a")),
    split("images_over_both_axes", P(("b", "a")), ("weight", "bias"), **over_images(("b", "a"))),
    split("features", P(None, None, None, "b"), ("x", "offset", "mask"), **FEATURES),
    split("images_and_features", P("a", None, None, "b"), Operands._fields, **over_images("a") | FEATURES),
    split("rows", P(None, "a"), ("x", "weight", "bias"), SAME, offset=P(None, "a"), mask=P(None, "a")),
    split("rows_and_columns", SPATIAL, ("x", "weight", "bias"), SAME, offset=SPATIAL, mask=SPATIAL),
    split(
        "images_and_rows",
        P("b", "a"),
        ("x", "weight", "bias"),
        SAME,
        x=P("b"),
        offset=P("b", "a"),
        mask=P("b", "a"),
    ),
    split("groups", P("a", None, None, "b"), ("weight", "bias"), GROUPED, **GROUPS),
    split("groups_and_half_as_many_offsets", P(None, None, None, "b"), (), grouped(4, 2), **CHANNELS),
    split("groups_and_other_offset_groups", P(None, None, None, "b"), (), grouped(4, 6), **CHANNELS),
    split("images_of_groups_that_do_not_split", P("a"), ("weight", "bias"), grouped(3, 2), **over_images("a")),
    split(
        "groups_of_common_offsets",
        P(None, None, None, "b"),
        ("offset", "mask"),
        SHARED_OFFSETS,
        x=P(None, None, None, "b"),
        **FEATURES,
    ),
]


def shared_by(case, backend=None):
    return functools.partial(convolve, backend=backend, **case.keywords)


def gradients(case, operands, backend=None):
    return jax.grad(lambda operands: jnp.sin(shared_by(case, backend)(operands)).sum())(operands)


@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_values_and_gradients(split, axis_type):
    """Guards against unnoticed all-gathers, replicated results, and wrong all-reduces.

    An all-reduce may miss the term of a device or count it several times. Each device may also treat its rows as the
    first rows.
    """
    mesh, operands = make_mesh(axis_type), cast(split.case.operands(), np.float32)
    placed = place(mesh, operands, split.operands)
    exchanged, y = check(mesh, shared_by(split.case), placed, operands)
    assert exchanged == []
    assert is_split(y, mesh, split.result)
    exchanged, grads = check(mesh, functools.partial(gradients, split.case), placed, operands, 1e-3)
    assert {c.kind for c in exchanged} <= {"all-reduce"}
    own = {name: getattr(placed, name).sharding.shard_shape(getattr(placed, name).shape) for name in split.summed}
    assert sorted(c.shape for c in exchanged) == sorted(own.values())
    assert all(map(is_split, grads, [mesh] * 5, split.operands))


def exchanged_by(split, function, axis_type="Auto", tolerance=1e-3):
    """The collectives of `function` on the sharded operands. Its values are checked."""
    mesh, operands = make_mesh(axis_type), cast(split.case.operands(), np.float32)
    return check(mesh, function, place(mesh, operands, split.operands), operands, tolerance)


def named(name):
    return next(split for split in SPLITS if split.name == name)


@pytest.mark.parametrize(
    "name, axis_type", [("images", "Auto"), ("features", "Explicit"), ("rows", "Auto"), ("groups", "Explicit")]
)
def test_tangents(name, axis_type):
    """Guards against a forward derivative that gathers although the value does not."""
    split = named(name)
    function = shared_by(split.case)

    def push(operands):
        return jax.jvp(function, (operands,), (jax.tree.map(jnp.cos, operands),))

    exchanged, (_, tangent) = exchanged_by(split, push, axis_type)
    assert exchanged == []
    assert is_split(tangent, make_mesh(axis_type), split.result)


@pytest.mark.parametrize("backend, axis_type", [(None, "Auto"), ("reference", "Explicit")])
def test_second_derivatives(backend, axis_type):
    """A gradient penalty. Guards against: a derivative of a sum over devices that sums again."""
    split = named("images_and_features")

    def penalty(operands):
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients(split.case, operands, backend)))

    exchanged, _ = exchanged_by(split, jax.grad(penalty), axis_type, 1e-2)
    assert {c.kind for c in exchanged} == {"all-reduce"}


@pytest.mark.parametrize("backend", [None, "reference"])
def test_what_is_asked_for_is_all_that_is_summed(backend):
    """Guards against: sums of gradients that nobody asked for."""
    split = named("images_and_features")

    def of_weight(operands):
        return jax.grad(lambda w: jnp.sin(shared_by(split.case, backend)(operands._replace(weight=w))).sum())(
            operands.weight
        )

    exchanged, _ = exchanged_by(split, of_weight)
    assert [c.shape for c in exchanged] == [(3, 3, 4, 2)]


def test_a_cotangent_that_is_not_split():
    """Guards against a device that pulls back the whole replicated cotangent with its shard of x."""
    split = named("images")
    keywords = split.case.keywords
    cotangent = split.case.cotangent().astype(np.float32)

    def pull(operands):
        return jax.vjp(lambda operands: convolve(operands, **keywords), operands)[1](cotangent)[0]

    exchanged, grads = exchanged_by(split, pull)
    assert sorted(c.shape for c in exchanged) == [(3, 3, 4, 4), (4,)]
    assert is_split(grads.x, make_mesh(), P("a"))


@pytest.mark.parametrize(
    "name, spec", [("images", P("a")), ("rows", P(None, "a")), ("features", P(None, None, None, "a"))]
)
def test_uneven_parts(name, spec):
    """Guards against sums over the padding of unequal shards, which makes only the gradients wrong."""
    case = Case("uneven", (6, 4), 3, 5, (3, 3), 1, (7,), Convolution((1, 1), "SAME"))
    mesh, operands = make_mesh(), cast(case.operands(), np.float32)

    def loss(operands, constrain=lambda y: y):
        return jnp.sin(constrain(shared_by(case)(operands))).sum()

    def split_loss(operands):
        return loss(operands, lambda y: jax.lax.with_sharding_constraint(y, NamedSharding(mesh, spec)))

    check(mesh, jax.grad(split_loss), place(mesh, operands, [P()] * 5), operands, 1e-3, whole=jax.grad(loss))


def test_more_devices_than_groups():
    """Guards against a program that does not compile if Shardy shards a dimension over a part of a mesh axis."""
    case = Case("grouped", (4, 3), 4, 8, (3, 1), 1, (4,), Convolution((1, 1), "SAME", (1, 1), 2))
    split = Split("", case, Operands(P(), P(), P(None, None, None, "a"), P("a"), P()), P(), ())
    exchanged_by(split, functools.partial(gradients, case))


def test_accumulated_gradients():
    """A loop over parts of a sharded batch, which also makes Shardy use a part of a mesh axis."""
    mesh, operands = make_mesh(shape=(8,)), cast(dataclasses.replace(SAME, batch=(16,)).operands(), np.float32)

    def accumulate(operands):
        def body(total, part):
            return total + gradients(SAME, operands._replace(**part)).weight, None

        parts = {name: getattr(operands, name) for name in ("x", "offset", "mask")}
        parts = jax.tree.map(lambda array: array.reshape(2, 8, *array.shape[1:]), parts)
        return jax.lax.scan(body, jnp.zeros_like(operands.weight), parts)[0]

    placed = place(mesh, operands, [P("a"), P("a"), P(), P(), P("a")])
    check(mesh, accumulate, placed, operands, 1e-3)


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("name", ["images_over_both_axes", "features", "rows"])
def test_sums_are_rounded_once(name, backend):
    """Guards against: gradients rounded to 16 bits on every device before they are summed."""
    split = named(name)
    operands, cotangent = cast((split.case.operands(), split.case.cotangent()), jnp.bfloat16)
    pull = jax.jit(lambda operands: jax.vjp(shared_by(split.case, backend), operands)[1](cotangent)[0])
    ours, whole = (pull(o) for o in (place(make_mesh(), operands, split.operands), operands))
    for summed in split.summed:
        equal = np.asarray(getattr(ours, summed)) == np.asarray(getattr(whole, summed))
        assert np.mean(equal) > 0.95, summed  # but for the order of the sums


@pytest.mark.parametrize("axis_types", [("Auto", "Explicit", "Auto"), ("Explicit", "Auto", "Explicit")], ids="+".join)
def test_three_axes_of_two_types(axis_types):
    """Without `set_mesh`, only the arrays know the mesh. Guards against mesh axes that are confused."""
    types = tuple(getattr(jax.sharding.AxisType, axis_type) for axis_type in axis_types)
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=types, devices=jax.devices("cpu")[:8])
    case = dataclasses.replace(SAME, batch=(2, 4))
    operands, rows = cast(case.operands(), np.float32), P("b", "a", "c")
    placed = place(mesh, operands, [P("b", "a"), rows, P(), P(), rows])
    pull = jax.jit(functools.partial(gradients, case))
    assert_close(pull(placed), pull(operands), 1e-3, 1e-3)
    assert {c.kind for c in collectives(pull.lower(placed).compile())} == {"all-reduce"}


@pytest.mark.skipif(not hasattr(jax.config, "jax_use_shardy_partitioner"), reason="this jax has no other partitioner")
def test_the_partitioner_before_shardy():
    """The partitioner before Shardy would abort on the rule. The result is right, and the operands are gathered."""
    split = named("images")
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        exchanged_by(split, functools.partial(gradients, split.case))
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)


def test_the_first_array_decides():
    """Images and features share a mesh axis, as with sharded parameters (FSDP): the weight is gathered.

    Guards against a mesh axis that shards two names: each device would compute only a block of the diagonal.
    """
    split = named("images")._replace(operands=Operands(P("a"), P("a"), P(None, None, None, "a"), P("a"), P("a")))
    exchanged, y = exchanged_by(split, shared_by(split.case))
    assert sorted(c.shape for c in exchanged) == [(3, 3, 4, 4), (4,)]
    assert {c.kind for c in exchanged} == {"all-gather"}
    assert is_split(y, make_mesh(), P("a"))
    _, grads = exchanged_by(split, functools.partial(gradients, split.case))
    assert all(map(is_split, grads, [make_mesh()] * 5, split.operands))


@pytest.mark.parametrize("specs", [over_images("b") | {"offset": P(None, "b")}, {"x": P(None, "a", "b")}], ids=str)
def test_operands_that_disagree(specs):
    """Guards against shards that do not belong together if a user shards the operands inconsistently."""
    split = named("rows")._replace(operands=Operands(**dict.fromkeys(Operands._fields, P()) | specs))
    exchanged_by(split, functools.partial(gradients, split.case))


@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@pytest.mark.parametrize("split_names", [("x", "offset", "mask"), Operands._fields], ids=["data", "all"])
def test_gradients_of_examples(split_names, axis_type):
    """vmap over a sharded dimension, with shared or mapped weights.

    Guards against examples that are gathered, or computed by every device, because vmap adds their dimension in front.
    """
    case = Case("example", (4, 3), 2, 3, (2, 2), 1, (2,), Convolution(padding=1))
    mesh = make_mesh(axis_type, (4,))
    examples = [cast(case.operands(seed), np.float32) for seed in range(8)]
    mapped = Operands(*(0 if name in split_names else None for name in Operands._fields))
    arrays = zip(mapped, zip(*examples, strict=True), strict=True)
    operands = Operands(*(np.stack(some) if axis == 0 else some[0] for axis, some in arrays))
    placed = place(mesh, operands, [P() if axis is None else P("a") for axis in mapped])
    exchanged, grads = check(mesh, jax.vmap(functools.partial(gradients, case), (mapped,)), placed, operands, 1e-3)
    assert exchanged == []
    assert all(is_split(grad, mesh, P("a")) for grad in grads)


def test_in_loops_and_rematerialised():
    """A recurrent layer. Guards against a sharding that is lost at the border of a loop, so that each step gathers."""
    case = Case("recurrent", (4, 3), 2, 2, (3, 3), 1, (8,), Convolution(padding="SAME"))
    mesh, operands = make_mesh(), cast(case.operands(), np.float32)

    def loss(operands):
        def body(x, _):
            return jnp.tanh(shared_by(case)(operands._replace(x=x))), None

        x, _ = jax.lax.scan(jax.checkpoint(body), operands.x, None, length=3)
        return jnp.sum(x**2)

    placed = place(mesh, operands, [P("a"), P("a"), P(), P(), P("a")])
    exchanged, _ = check(mesh, jax.grad(loss), placed, operands, 1e-3)
    assert {c.kind for c in exchanged} == {"all-reduce"}
    assert (8, 4, 3, 2) not in {c.shape for c in exchanged}


def test_eager_calls():
    split = named("images_and_features")
    operands = cast(split.case.operands(), np.float32)
    y = shared_by(split.case)(place(make_mesh(), operands, split.operands))
    assert is_split(y, make_mesh(), split.result)
    assert_close(y, shared_by(split.case)(operands), 1e-4, 1e-4)
