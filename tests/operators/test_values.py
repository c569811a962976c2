"""Results and gradients against the numpy references, of all operators: each case, all types, problems of any shape."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.helpers.aggregation import cases as aggregation
from tests.helpers.aggregation.cases import Attention
from tests.helpers.aggregation.cases import Convolution as Window
from tests.helpers.deform_conv import cases as convolution
from tests.helpers.deform_conv.cases import BACKENDS, assert_close, cast
from tests.helpers.operators import OPERATORS, check, compiled_pull_back, narrowed, pull_back
from tests.helpers.roi_pool import cases as pooling
from tests.helpers.roi_pool.cases import PSRoIPool, RoIAlign
from tests.helpers.roi_pool.numpy_reference import Align
from tests.helpers.sampling import cases as sampling
from tests.helpers.sampling.cases import Grid
from tests.helpers.slow import slow_unless

CASES = {name: operator.case for name, operator in OPERATORS.items()} | {
    f"{operator}-{name}": case
    for operator, cases in {
        "convolution": convolution.CASES,
        "pooling": pooling.CASES,
        "aggregation": aggregation.CASES,
        "sampling": sampling.CASES,
    }.items()
    for name, case in cases.items()
}
# What the reference, whose programs take long to compile, computes by default.
BY_REFERENCE = {
    *OPERATORS,
    *(f"convolution-{name}" for name in ("strided_dilated", "6_groups_4_offset_groups", "circular", "unbatched")),
    *(f"convolution-{name}" for name in ("signal", "volume")),
    *(f"pooling-{name}" for name in ("max", "many_features_of_one_class", "ps_roi_pool_on_pixels")),
    "pooling-deform_roi_pool_on_pixels",
    *(f"aggregation-{name}" for name in ("attention_on_pixels", "discrete", "remove_center", "strided_dilated")),
    *(f"sampling-{name}" for name in ("four_channels", "bicubic_of_two_channels", "nearest", "one_axis")),
}


@pytest.mark.parametrize(
    "name, backend",
    [slow_unless(backend is None or name in BY_REFERENCE, name, backend) for name in CASES for backend in BACKENDS],
)
def test_numpy_reference(name, backend, x64):
    case = CASES[name]
    for cotangent, operands in case.problems():
        assert_close(compiled_pull_back(case, backend)(cotangent, operands), case.expected(cotangent, operands))


# The types of the result and of the operands. Those of convolutions are in tests/deform_conv/test_dtypes.py.
TYPES = [
    *(
        (case, (dtype, dtype, "float32", "float32"))
        for case in (
            PSRoIPool(),
            *(aggregation.CASES[name] for name in ("attention", "many_channels", "discrete", "dcnv3")),
        )
        for dtype in ("float32", "bfloat16", "float16")
    ),
    (RoIAlign(), ("bfloat16", "bfloat16", "float32")),
    (pooling.CASES["max"], ("bfloat16", "bfloat16", "float32")),
    *(
        (Grid((9, 7), (40,), channels, padding_mode="border"), (dtype, dtype, "float32"))
        for channels in (1, 3, 8, 37)
        for dtype in ("float32", "bfloat16", "float16")
    ),
    (PSRoIPool(), ("bfloat16", "bfloat16", "float32", "bfloat16")),
    (aggregation.CASES["dcnv3"], ("bfloat16",) * 4),
]


@pytest.mark.parametrize("case, types", TYPES, ids=lambda value: "-".join(value) if isinstance(value, tuple) else None)
def test_types(case, types):
    """Operands may be of 16 bits, and positions of float32; a result and a gradient of 16 bits is rounded once."""
    operands, structure = jax.tree.flatten(case.operands())
    operands = structure.unflatten(map(jnp.asarray, operands, types[1:]))
    cotangent = jnp.asarray(case.cotangent(), types[0])
    actual = jax.tree.leaves(compiled_pull_back(case, None)(cotangent, operands))
    expected = jax.tree.leaves(case.expected(*cast((cotangent, operands), np.float64)))
    assert tuple(array.dtype for array in actual) == types
    for a, e, dtype in zip(actual, expected, types, strict=True):
        assert_close(a, e, 0.51 * float(jnp.finfo(dtype).eps), 1e-5 * np.abs(e).max(initial=1))


EMPTY = {
    "attention": [Attention(queries=0), Attention(channels=0), Attention(heads=0)],
    "window": [Window(image=size, padding=((n, n),) * 2) for size, n in (((2, 2), 0), ((0, 3), 2), ((3, 0), 2))],
    "deformable": [PSRoIPool(count=0), PSRoIPool(images=0), PSRoIPool(image=(0, 4)), PSRoIPool(image=(3, 0))],
    **{
        mode: [RoIAlign(Align(mode=mode), **{name: 0}) for name in ("count", "images", "features")]
        + [RoIAlign(Align(mode=mode), image=image) for image in ((0, 4), (3, 0))]
        for mode in ("avg", "max")
    },
    "points": [Grid(channels=0), Grid(points=(0,)), Grid(image=(0, 4)), Grid((0, 4), padding_mode="reflection")],
}


@pytest.mark.parametrize("backend", [None, pytest.param("reference", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", EMPTY)
def test_nothing_to_compute(name, backend):
    """Without queries, regions, pixels or channels, results and gradients are zeros."""
    problems = cast([(case.cotangent(), case.operands()) for case in EMPTY[name]], np.float32)

    def run(problems):  # in one program
        for case, (cotangent, operands) in zip(EMPTY[name], problems, strict=True):
            yield pull_back(case.with_backend(backend), cotangent, operands)

    results = jax.jit(lambda problems: list(run(problems)))(problems)
    for (result, gradients), (cotangent, operands) in zip(results, problems, strict=True):
        assert jax.tree.map(jnp.shape, (result, gradients)) == jax.tree.map(jnp.shape, (cotangent, operands))
        assert not any(np.any(array) for array in jax.tree.leaves((result, gradients)))


@pytest.mark.parametrize("case", [Attention(), Window(), Grid()], ids=str)
def test_no_images(case):
    problem = cast((case.cotangent(lead=(0,)), case.operands(lead=(0,))), np.float32)
    assert jax.tree.map(jnp.shape, pull_back(case.with_backend(), *problem)) == jax.tree.map(jnp.shape, problem)


PROBLEMS = {
    "convolution": convolution.cases(),
    "pooling": pooling.aligns(),
    "aggregation": aggregation.cases(),
    "sampling": sampling.cases(),
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("problems", PROBLEMS)
def test_random_problems(problems, count):
    @hypothesis.settings(max_examples=count)
    @hypothesis.given(PROBLEMS[problems], st.sampled_from(sorted(TOLERANCE)))
    def run(case, dtype):
        if dtype != "float64":  # where rounding does not decide whether a location is inside, or in which pixel
            hypothesis.assume(getattr(case, "on_grid", True))
        paths = [None, "reference"] if dtype == "float64" else [None]
        paths += ["im2col", *(["fused"] if dtype != "float64" else [])] * (problems == "convolution")
        with jax.enable_x64(True):
            for path in paths:
                try:
                    # Operands are about one; sums of them that cancel are as exact as they are, not as the little left.
                    check(case, path, *narrowed(case, dtype), TOLERANCE[dtype], least=1)
                except ValueError as error:
                    assert path == "fused" and "fused" in str(error)

    run()
