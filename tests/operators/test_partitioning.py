"""Plain jit over sharded arrays: XLA's partitioner shards each operator by its rule, and nothing is gathered.

A wrong rule causes no error. The values may stay right while the devices exchange everything or all compute the same,
or they may be wrong on only some devices. So every test checks both the collectives of the compiled program and the
values.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.helpers.aggregation.cases import Convolution as Window
from tests.helpers.deform_conv.cases import Case, Operands, assert_close, cast
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import CONVOLUTION, EACH_PRIMITIVE, OPERATORS, Split, each_operator, loss
from tests.helpers.roi_pool.cases import PSRoIPool
from tests.helpers.roi_pool.numpy_reference import Pooling
from tests.helpers.sharding import check, is_split, make_mesh, place

pytestmark = pytest.mark.platforms("cpu")
thorough = functools.partial(pytest.param, marks=pytest.mark.thorough)


def splits(*by_default):
    """Parametrises a test by `operator` and `split`; if some are named, the others are thorough."""
    pairs = {f"{operator}-{split}": (operator, split) for operator in OPERATORS.values() for split in operator.splits}
    marks = {name: () if name in (by_default or pairs) else pytest.mark.thorough for name in pairs}
    params = [pytest.param(*pair, id=name, marks=marks[name]) for name, pair in pairs.items()]
    return pytest.mark.parametrize("operator, split", params)


def of_conv(name):
    return next(split for split in CONVOLUTION.splits if split.name == name)


def with_gradients(case, operands, backend=None):
    """The result, and the gradients of the loss."""
    result, pullback = jax.vjp(lambda operands: case.with_backend(backend)(*operands), operands)
    return result, pullback(jnp.cos(result))[0]


def gradients(case, operands, backend=None):
    return jax.grad(functools.partial(loss, case.with_backend(backend)))(operands)


def shard_sizes(placed, names):
    arrays = (getattr(placed, name) for name in names)
    return sorted(math.prod(array.sharding.shard_shape(array.shape)) for array in arrays)


def check_split(operator, split, axis_type):
    """Guards against unnoticed all-gathers, replicated results, and wrong all-reduces.

    An all-reduce may miss the term of a device or count it several times. Each device may also treat its rows as the
    first rows, or use the offsets of another class or group.
    """
    mesh, operands = make_mesh(axis_type), split.operands()
    placed = place(mesh, operands, split.specs)
    exchanged, (result, grads) = check(mesh, functools.partial(with_gradients, split.case), placed, operands, 1e-3)
    assert {c.kind for c in exchanged} <= {"all-reduce"}
    assert sorted(math.prod(c.shape) for c in exchanged) == shard_sizes(placed, split.summed)
    assert is_split(result, mesh, split.result)
    for name in operator.differentiable:
        assert is_split(getattr(grads, name), mesh, getattr(split.specs, name)), name


@splits()
def test_values_and_gradients(operator, split):
    check_split(operator, split, "Auto")


@splits("deform_conv2d-images_and_rows", "deform_conv2d-groups", "deform_psroi_pool-classes", "dcnv3-rows_and_groups")
def test_values_and_gradients_over_an_explicit_mesh(operator, split):
    check_split(operator, split, "Explicit")


@each_operator()
def test_types_over_an_explicit_mesh(operator):
    """The shardings in the types of the result and of the gradients, which are known without compiling."""
    mesh = make_mesh("Explicit")
    for split in operator.splits:
        placed = place(mesh, split.operands(), split.specs)
        with jax.set_mesh(mesh):
            result, grads = jax.eval_shape(functools.partial(with_gradients, split.case), placed)
        specs = {"result": split.result} | {name: getattr(split.specs, name) for name in operator.differentiable}
        shapes = {"result": result} | grads._asdict()
        for name, spec in specs.items():
            expected = NamedSharding(mesh.abstract_mesh, spec)
            assert shapes[name].sharding.is_equivalent_to(expected, shapes[name].ndim), (split.name, name)


# Even sizes of the operands, and odd ones of the result.
SMALLER = {
    "strided": Case("strided", (6, 6), 4, 3, (3, 3), convolution=Convolution(2, 1)),
    "without_padding": Case("without_padding", (8, 8), 4, 6, (2, 2), convolution=Convolution(padding="VALID")),
    "windows": Window((2, 2), padding=((0, 0), (0, 0)), groups=2, channels=2, image=(8, 8)),
    "three_groups": Window((2, 2), padding=((0, 0), (0, 0)), groups=3, channels=2, image=(8, 8)),
}
MORE_CASES = {name: operator.case for name, operator in OPERATORS.items()} | SMALLER


@pytest.mark.parametrize("compiled", [False, thorough(True)], ids=["types", "values"])
@pytest.mark.parametrize("name", MORE_CASES)
def test_any_dimension_over_an_explicit_mesh(name, compiled):
    """Guards against an error where the sizes of a result cannot be sharded as those of the operand."""
    case, mesh = MORE_CASES[name], make_mesh("Explicit", (2,))
    is_convolution = "conv" in name or isinstance(case, Case)  # which has a batch of its own
    operands = cast(case.operands(lead=() if is_convolution else (2,)), np.float32)
    run, replicated = functools.partial(with_gradients, case), dict.fromkeys(operands._fields, P())
    whole = run(operands)
    for field, array in operands._asdict().items():
        for dimension in (k for k, size in enumerate(np.shape(array)) if size % 2 == 0):
            spec = P(*[None] * dimension, "a")
            placed = place(mesh, operands, (replicated | {field: spec}).values())
            with jax.set_mesh(mesh):
                _, gradients = jax.eval_shape(run, placed)
                expected = NamedSharding(mesh.abstract_mesh, spec)
                assert getattr(gradients, field).sharding.is_equivalent_to(expected, array.ndim), (field, dimension)
                if compiled:
                    assert_close(jax.jit(run)(placed), whole, 1e-4, 1e-4)


@splits("deform_conv2d-features", "deform_conv2d-rows", "deform_psroi_pool-regions")
def test_tangents(operator, split):
    """Guards against a forward derivative that gathers although the value does not."""
    mesh, operands, function = make_mesh(), split.operands(), split.case.with_backend()

    def push(operands):
        return jax.jvp(lambda operands: function(*operands), (operands,), (jax.tree.map(jnp.cos, operands),))

    exchanged, (_, tangent) = check(mesh, push, place(mesh, operands, split.specs), operands, 1e-3)
    assert exchanged == []
    assert is_split(tangent, mesh, split.result)


@each_operator(*EACH_PRIMITIVE)
def test_unequal_shards(operator):
    """Guards against sums over the padding of unequal shards, which makes only the gradients wrong."""
    split = operator.uneven
    check_unequal_shards(split, split.result)


@pytest.mark.parametrize("spec", [P("a"), P(None, None, None, "a")], ids=["images", "features"])
def test_unequal_shards_of_a_convolution(spec):
    check_unequal_shards(CONVOLUTION.uneven, spec)


def check_unequal_shards(split, spec):
    mesh, operands, function = make_mesh(), split.operands(), split.case.with_backend()

    def constrained(*operands):
        return jax.lax.with_sharding_constraint(function(*operands), NamedSharding(mesh, spec))

    whole = functools.partial(gradients, split.case)
    placed = place(mesh, operands, split.specs)
    check(mesh, jax.grad(functools.partial(loss, constrained)), placed, operands, 1e-3, whole=whole)


ROUNDED = "deform_conv2d-images_over_both_axes", "deform_conv2d-features", "deform_conv2d-rows"


@pytest.mark.parametrize("backend", [None, thorough("reference")])
@splits(*ROUNDED, "deform_psroi_pool-regions", "multi_scale_deformable_attention-queries")
def test_sums_are_rounded_once(operator, split, backend):
    """Guards against gradients that are rounded to 16 bits on every device before they are summed."""
    narrow = {operator.names[0], *operator.shared}
    mesh, operands = make_mesh(), split.operands()
    operands = operands._replace(**{name: jnp.asarray(getattr(operands, name), jnp.bfloat16) for name in narrow})
    cotangent = jnp.asarray(split.case.cotangent(lead=split.lead), jnp.bfloat16)

    def pull(operands):
        return jax.vjp(lambda operands: split.case.with_backend(backend)(*operands), operands)[1](cotangent)[0]

    exchanged, ours = check(mesh, pull, place(mesh, operands, split.specs), operands, 2e-1)
    assert {c.dtype for c in exchanged} <= {"f32"}
    whole = jax.jit(pull)(operands)
    for name in narrow.intersection(split.summed):
        equal = np.asarray(getattr(ours, name)) == np.asarray(getattr(whole, name))
        assert np.mean(equal) > 0.95, name  # but for the order of the sums


def exchanged_by(split, function, axis_type="Auto", tolerance=1e-3):
    """The collectives of `function` on the sharded operands, and its result, whose values are checked."""
    mesh, operands = make_mesh(axis_type), split.operands()
    return check(mesh, function, place(mesh, operands, split.specs), operands, tolerance)


@pytest.mark.parametrize("backend, axis_type", [(None, "Auto"), thorough("reference", "Explicit")])
def test_second_derivatives(backend, axis_type):
    """A gradient penalty. Guards against a derivative of a sum over devices that sums again."""
    split = of_conv("images_and_features")

    def penalty(operands):
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients(split.case, operands, backend)))

    exchanged, _ = exchanged_by(split, jax.grad(penalty), axis_type, 1e-2)
    assert {c.kind for c in exchanged} == {"all-reduce"}


@pytest.mark.parametrize("backend", [None, "reference"])
def test_only_what_is_requested_is_summed(backend):
    split = of_conv("images_and_features")

    def of_weight(operands):
        function = split.case.with_backend(backend)
        return jax.grad(lambda w: loss(function, operands._replace(weight=w)))(operands.weight)

    exchanged, _ = exchanged_by(split, of_weight)
    assert [c.shape for c in exchanged] == [(3, 3, 4, 2)]


def test_a_cotangent_that_is_not_split():
    """Guards against a device that pulls back the whole replicated cotangent with its shard of x."""
    split = of_conv("images")
    cotangent = np.float32(split.case.cotangent())

    def pull(operands):
        return jax.vjp(lambda operands: split.case.with_backend()(*operands), operands)[1](cotangent)[0]

    exchanged, grads = exchanged_by(split, pull)
    assert sorted(c.shape for c in exchanged) == [(3, 3, 4, 4), (4,)]
    assert is_split(grads.x, make_mesh(), P("a"))


def test_more_devices_than_groups():
    """Guards against a program that does not compile if Shardy shards a dimension over a part of a mesh axis."""
    case = Case("grouped", (4, 3), 4, 8, (3, 1), 1, (4,), Convolution((1, 1), "SAME", (1, 1), 2))
    split = Split("", case, Operands(P(), P(), P(None, None, None, "a"), P("a"), P()), P())
    exchanged_by(split, functools.partial(gradients, case))


@pytest.mark.skipif(not hasattr(jax.config, "jax_use_shardy_partitioner"), reason="this jax has no other partitioner")
def test_the_partitioner_before_shardy():
    """The partitioner before Shardy would abort on the rule. The result is right, and the operands are gathered."""
    split = of_conv("images")
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        exchanged_by(split, functools.partial(gradients, split.case))
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)


def test_the_first_array_decides():
    """Images and features share a mesh axis, as with sharded parameters (FSDP): the weight is gathered.

    Guards against a mesh axis that shards two names: each device would compute only a block of the diagonal.
    """
    split = of_conv("images")._replace(specs=Operands(P("a"), P("a"), P(None, None, None, "a"), P("a"), P("a")))
    exchanged, (result, grads) = exchanged_by(split, functools.partial(with_gradients, split.case))
    gathered = [c.shape for c in exchanged if c.kind == "all-gather"]
    assert sorted(gathered) == [(3, 3, 4, 4), (4,)]
    assert is_split(result, make_mesh(), P("a"))
    assert all(map(is_split, grads, [make_mesh()] * 5, split.specs))


@pytest.mark.parametrize("specs", [{"x": P("b"), "offset": P(None, "b"), "mask": P("b")}, {"x": P(None, "a", "b")}])
def test_operands_that_disagree(specs):
    """Guards against shards that do not belong together if a user shards the operands inconsistently."""
    split = of_conv("rows")._replace(specs=Operands(**dict.fromkeys(Operands._fields, P()) | specs))
    exchanged_by(split, functools.partial(gradients, split.case))


@pytest.mark.parametrize(
    "axis_type, split_names", [("Auto", ("x", "offset", "mask")), ("Explicit", Operands._fields)], ids=["data", "all"]
)
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

    def of_last(operands):
        def body(x, _):
            return jnp.tanh(case.with_backend()(*operands._replace(x=x))), None

        x, _ = jax.lax.scan(jax.checkpoint(body), operands.x, None, length=3)
        return jnp.sum(x**2)

    placed = place(mesh, operands, [P("a"), P("a"), P(), P(), P("a")])
    exchanged, _ = check(mesh, jax.grad(of_last), placed, operands, 1e-3)
    assert {c.kind for c in exchanged} == {"all-reduce"}
    assert (8, 4, 3, 2) not in {c.shape for c in exchanged}


@pytest.mark.parametrize("spec", [P("a"), P(None, None, None, None, "a")], ids=["images", "features"])
def test_one_feature(spec):
    """Guards against a program that does not compile for one feature of several channels."""
    mesh, case = make_mesh(), PSRoIPool(Pooling((5, 4), group_size=(2, 2)), features=1)
    operands = cast(case.operands(lead=(4,))._replace(offset=None), np.float32)
    check(mesh, functools.partial(gradients, case), place(mesh, operands, [spec, P(), P()]), operands, 1e-3)


def test_regions_that_name_their_image():
    """Images are sharded along their own dimension, not along a batch dimension: right, but all images are gathered."""
    mesh, operands = make_mesh(), cast(PSRoIPool().operands(), np.float32)
    placed = place(mesh, operands, [P("b")] * 3)
    exchanged, _ = check(mesh, lambda operands: PSRoIPool().with_backend()(*operands), placed, operands)
    assert [(c.kind, c.shape) for c in exchanged] == [("all-gather", operands.x.shape)]


def batched_specs(operator, spec):
    """Shards the operands that have batch dimensions."""
    operands = operator.case.operands()
    return type(operands)(*(P() if name in operator.shared else spec for name in operands._fields))


def of_devices(operator, count):
    operands = operator.case.operands(lead=() if operator.shared else (count,))
    if operator.shared:
        operands = dataclasses.replace(operator.case, batch=(count,)).operands()
    return cast(operands, np.float32)


def shard_map(operator, function, mesh, spec, out_specs=None, **options):
    specs = batched_specs(operator, spec)
    out_specs = specs if out_specs is None else out_specs
    return jax.shard_map(function, mesh=mesh, in_specs=(specs,), out_specs=out_specs, **options)


@pytest.mark.parametrize(
    "operator, axis_type, check_vma, shape",
    [
        (OPERATORS["dcnv3"], "Auto", True, (8,)),
        (CONVOLUTION, "Auto", True, (8,)),
        (CONVOLUTION, "Explicit", True, (8,)),
        (CONVOLUTION, "Auto", False, (4, 2)),
        (CONVOLUTION, "Explicit", True, (4, 2)),
    ],
    ids=str,
)
def test_shard_map(operator, axis_type, check_vma, shape):
    """Each device has its examples; the gradient of a replicated operand sums over the devices.

    Of two mesh axes, the function has only one, and the partitioner the other.
    """
    mesh, operands = make_mesh(axis_type, shape), of_devices(operator, 8)
    of_operator, by_reference = (functools.partial(loss, operator.case.with_backend(b)) for b in (None, "reference"))
    options = {"axis_names": {"a"}, "check_vma": check_vma}
    split = shard_map(operator, lambda o: jax.lax.psum(of_operator(o), "a"), mesh, P("a"), P(), **options)
    placed = place(mesh, operands, batched_specs(operator, P(("a", "b")[: len(shape)])))
    actual, expected = jax.jit(jax.value_and_grad(split))(placed), jax.jit(jax.value_and_grad(by_reference))(operands)
    assert_close(actual, expected, 1e-3, 1e-3)


def test_shard_map_over_some_axes_of_an_abstract_mesh():
    """It has no devices for the partitioner. The values stay right."""
    mesh, operands = make_mesh(), of_devices(CONVOLUTION, 8)
    placed = place(mesh, operands, batched_specs(CONVOLUTION, P("a")))
    convolve = CONVOLUTION.case.with_backend()
    split = shard_map(CONVOLUTION, lambda o: convolve(*o), mesh.abstract_mesh, P("a"), P("a"), axis_names={"a"})
    with pytest.warns(RuntimeWarning, match="jax_dcn cannot be partitioned in a jax.shard_map over some axes"):
        result = jax.jit(split)(placed)
    assert_close(result, convolve(*operands), 1e-4, 1e-4)


def test_derivatives_inside_shard_map():
    """There the gradient of a replicated operand is replicated: summed already."""
    mesh, operands, case = make_mesh(shape=(4,)), of_devices(CONVOLUTION, 4), CONVOLUTION.case
    placed = place(mesh, operands, batched_specs(CONVOLUTION, P("a")))

    def push(operands, backend=None):
        return jax.jvp(lambda o: case.with_backend(backend)(*o), (operands,), (operands,))[1]

    gradient = shard_map(CONVOLUTION, functools.partial(gradients, case), mesh, P("a"))
    tangent = shard_map(CONVOLUTION, push, mesh, P("a"), P("a"))
    by_reference = jax.jit(lambda operands: (gradients(case, operands, "reference"), push(operands, "reference")))
    found = jax.jit(lambda operands: (gradient(operands), tangent(operands)))(placed)
    assert_close(found, by_reference(operands), 1e-4, 1e-4)


@pytest.mark.parametrize(
    "kind, manual, free", [("images", "a", "b"), ("rows", "a", "b"), ("rows", "b", "a"), ("features", "b", "a")]
)
def test_what_a_partial_manual_shard_map_leaves(kind, manual, free):
    """One axis of the mesh is the function's, and the partitioner shards over the other.

    Guards against gathering there, and shards of other axes.
    """
    mesh = make_mesh()
    case = dataclasses.replace(of_conv("rows").case, batch=(8,))
    operands, data = cast(case.operands(), np.float32), P(manual)
    specs = {
        "images": Operands(*[P((manual, free))] * 2, P(), P(), P((manual, free))),
        "rows": Operands(data, P(manual, free), P(), P(), P(manual, free)),
        "features": Operands(data, data, P(None, None, None, free), P(free), data),
    }
    split = jax.shard_map(
        lambda operands: jax.lax.psum(loss(case.with_backend(), operands), manual),
        mesh=mesh,
        in_specs=(Operands(data, data, P(), P(), data),),
        out_specs=P(),
        axis_names={manual},
    )
    placed = place(mesh, operands, specs[kind])
    exchanged, _ = check(mesh, jax.grad(split), placed, operands, 1e-3, whole=functools.partial(gradients, case))
    assert {c.kind for c in exchanged} == {"all-reduce"}
