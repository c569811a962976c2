"""The fused kernels of the CPU on each instruction set: values, when they run, and what they do not depend on."""

import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS
from jax_dcn._primitive import extension
from tests.helpers.deform_conv.cases import CASES, Case, Operands, assert_close, assert_near, convolve
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import check, compiled_pull_back, narrowed, of_some
from tests.kernels import build
from tests.operators import test_values as values_of_operators

from .test_vectors import TOLERANCE

pytestmark = pytest.mark.platforms("cpu")

SAME = Convolution(padding="SAME")
TWO_SLICES = Case("offset_group_in_two_slices", (4, 5), 192, 32, (2, 1), 2, convolution=SAME)


@pytest.mark.parametrize("case", [*(case for case in CASES.values() if len(case.kernel) < 3), TWO_SLICES], ids=str)
def test_values_of_all_options(case):
    """Of more sizes, `tests/kernels/test_cpu_fused.py` runs the kernels."""
    check(case, "fused", *narrowed(case, "float32"), TOLERANCE["float32"])


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(dtype, marks=pytest.mark.thorough) for dtype in ("float32", "float16"))]
)
def test_larger_tiles_of_a_large_weight(dtype):
    """More than 4 MiB. The im2col path takes the same operands, since a reference would take long."""
    case = Case("large_weight", (48, 60), 1088, 2058, (1, 1), batch=(1,))
    _, operands = narrowed(case, dtype)
    fused, im2col = (convolve(operands, backend=backend, **case.keywords) for backend in ("fused", "im2col"))
    assert_near(fused, im2col, TOLERANCE[dtype])


@pytest.mark.parametrize("requested", [s for n in (1, 2, 3) for s in itertools.combinations(Operands._fields[:3], n)])
def test_any_of_the_gradients(requested):
    """Those that are requested do not depend on which others are."""
    case = TWO_SLICES
    cotangent, operands = narrowed(case, "float32")
    _, everything = compiled_pull_back(case, "fused")(cotangent, operands)
    some = of_some(case.with_backend("fused"), operands, requested)
    _, pullback = jax.vjp(jax.jit(some), *(getattr(operands, name) for name in requested))
    assert_close(list(pullback(cotangent)), [getattr(everything, name) for name in requested], 0, 0)


def test_bits_of_a_gradient_that_has_several_partial_sums():
    """They do not depend on whether the gradient of x, whose sums take most of the workspace, is requested, too."""
    sizes = {"x": (4, 192, 192, 64), "y": (8, 8, 32), "taps": 1, "groups": 1, "offset_groups": 1}
    requested = {"is_x_requested": False, "are_positions_requested": False, "is_weight_requested": True}
    plan = extension.modules["cpu"].fused_cotangents_plan(dtype="bfloat16", **sizes, **requested)
    assert plan["num_splits"] > 1
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.bfloat16)

    x, weight, cotangent = normal(4, 192, 192, 64), normal(1, 1, 64, 32), normal(4, 8, 8, 32)
    offset = normal(4, 8, 8, 2).astype(jnp.float32)

    def gradients(argnums):
        def loss(x, weight):
            return (jax_dcn.deform_conv2d(x, offset, weight, strides=24, backend="fused") * cotangent).sum()

        return jax.jit(jax.grad(loss, argnums))(x, weight)

    np.testing.assert_array_equal(gradients((0, 1))[1], gradients((1,))[0])


def planned(image=(32, 32), groups=1, offset_groups=1, kernel=(3, 3), dtype="float32", **options):
    """The plan of each computation."""
    x = jax.ShapeDtypeStruct((1, *image, 64), dtype)
    offset = jax.ShapeDtypeStruct((1, *image, 2 * kernel[0] * kernel[1] * offset_groups), "float32")
    weight = jax.ShapeDtypeStruct((*kernel, 64 // groups, 64), dtype)
    options |= {"platform": "cpu", "feature_group_count": groups, "padding": "SAME"}
    return {of.computation: of for of in jax_dcn.kernel_plan(jax_dcn.deform_conv2d, x, offset, weight, **options)}


def test_which_path():
    for dtype in TOLERANCE:
        plan = planned(dtype=dtype)
        assert {of.path for of in plan.values()} == {"fused"}
        assert INSTRUCTIONS in plan["x"].reason
    for reason, arguments in {
        "the data are float64": {"dtype": "float64"},
        "precision names an algorithm": {"precision": jax.lax.DotAlgorithmPreset.F32_F32_F32},
    }.items():
        with jax.enable_x64(True):
            plan = planned(**arguments).values()
        assert all(of.path == "im2col" and of.reason.startswith(reason) for of in plan)
    wide = planned(dtype="bfloat16", preferred_element_type=jnp.float32)
    assert wide["forward"].path == "fused" and wide["x"].path == "im2col"


@pytest.mark.usefixtures("limits_of_the_package")
def test_where_it_is_slow():
    def reason(image, of="forward", **options):
        plan = planned(image, **options)[of]
        assert (plan.path == "fused") == plan.reason.startswith("the processor has")
        return plan.reason

    if INSTRUCTIONS == "portable":
        pytest.skip("no fused kernels are fast here")
    assert reason((1, 1)) == reason((1, 1), of="x") == f"the processor has {INSTRUCTIONS}"
    assert "each group has 2 channels" in reason((32, 32), groups=32)
    assert ("each group has 4 channels" in reason((32, 32), groups=16)) == (INSTRUCTIONS != "avx2")
    assert "the processor has" in reason((32, 32), groups=8)
    assert "there are 800 samples for each pixel" in reason((32, 32), kernel=(5, 5), offset_groups=32)
    assert "the processor has" in reason((32, 32), offset_groups=64)


SETS = build.FUSED_INSTRUCTION_SETS
SECOND = SETS[:2][-1]


@pytest.mark.parametrize(
    "name, some",
    [
        pytest.param(SECOND, "strided", marks=pytest.mark.slow),
        *(pytest.param(name, "", marks=pytest.mark.thorough) for name in SETS),
    ],
)
def test_instruction_sets(name, some):
    """The tests above, and random problems of all operators, or some of them, in a process limited to this one.

    The name is what runs, or the processor lacks it. `tests/kernels/test_cpu_fused.py` runs each set on more shapes.
    """
    environment = {**os.environ, "JAX_DCN_CPU_INSTRUCTIONS": name}
    program = "from jax_dcn._operators.deform_conv import plan; print(plan.INSTRUCTIONS)"
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    if found.stdout.strip() != name:
        pytest.skip(f"the processor has no {name}")
    tests = [f"{__file__}::test_values_of_all_options", f"{values_of_operators.__file__}::test_random_problems"]
    options = ["-q", "-p", "no:cacheprovider", "--platform", "cpu", "-k", some, *([] if some else ["-m", ""])]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:]


def test_an_empty_instruction_set_is_the_default():
    environment = {**os.environ, "JAX_DCN_CPU_INSTRUCTIONS": ""}
    subprocess.run([sys.executable, "-c", "import jax_dcn"], env=environment, check=True)
