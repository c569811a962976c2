"""Derivatives: of any order, in both modes, at kinks by the written rule, and no more of them than were asked for."""

import functools
import itertools
import re

import jax
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_dcn
from tests.helpers.deform_conv.cases import (
    BACKENDS,
    CASE,
    Case,
    Operands,
    assert_close,
    cast,
    compiled_pull_back,
    convolve,
    explicit_gradients,
)
from tests.helpers.deform_conv.numpy_reference import Convolution

NAMES = Operands._fields
SMOOTH_CASES = [
    Case("zero_padded", (3, 4), 2, 2, (2, 1), 2, (1,), Convolution((1, 2), 1)),
    Case("circular", (3, 2), 2, 2, (1, 2), 1, (), Convolution((1, 1), "CIRCULAR", (1, 1), 2)),
]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("case, masked", [(SMOOTH_CASES[0], True), (SMOOTH_CASES[1], False)], ids=str)
def test_finite_differences(case, masked, order, x64):
    operands = [a for a in case.smooth_operands(masked=masked) if a is not None]

    @jax.jit
    def apply(*operands):
        return convolve(operands, **case.keywords)

    check_grads(apply, operands, order, ["fwd", "rev"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", SMOOTH_CASES, ids=str)
def test_forward_mode_agrees_with_reverse_mode(case, backend, x64):
    """<cotangent, J tangent> by the one equals <Jᵀ cotangent, tangent> by the other, kinks or not."""
    operands, tangents, cotangent = case.operands(0, grid=1), case.operands(1), case.cotangent()
    apply = jax.jit(lambda *operands: convolve(operands, backend=backend, **case.keywords))
    _, tangent = jax.jvp(apply, operands, tangents)
    _, gradients = compiled_pull_back(case, backend)(cotangent, operands)
    pulled = sum(np.vdot(g, t) for g, t in zip(gradients, tangents, strict=True))
    np.testing.assert_allclose(np.vdot(cotangent, tangent), pulled, rtol=1e-10)


IMAGE = np.array([[1.0, 4.0, 9.0], [16.0, 25.0, 36.0]])
KINKS = [
    # position (y, x), derivative in (dy, dx): right-handed at an integer, zero at and beyond -1 and the size
    ((0, 0), (16 - 1, 4 - 1)),
    ((0, 1.5), ((25 + 36) / 2 - (4 + 9) / 2, 9 - 4)),
    ((1, 2), (-36, -36)),
    ((1, 0), (-16, 25 - 16)),
    ((0, 2), (36 - 9, -9)),
    ((-0.5, 0), (1, (4 - 1) / 2)),
    ((0.5, -0.5), ((16 - 1) / 2, (1 + 16) / 2)),
    ((-1, 0), (0, 0)),
    ((-1, -1), (0, 0)),
    ((0, -1), (0, 0)),
    ((2, 1), (0, 0)),
    ((1, 3), (0, 0)),
    ((-1, 1.5), (0, 0)),
    ((2, 0.5), (0, 0)),
    ((0.5, 3), (0, 0)),
    ((-2, 0), (0, 0)),
    ((1.5, 0), (-16, (25 - 16) / 2)),
    ((0, 2.5), ((36 - 9) / 2, -9)),
]


@pytest.mark.parametrize("dtype, backend", [("float32", None), ("float64", None), ("float32", "reference")])
def test_offset_derivative_at_kinks(dtype, backend):
    positions, derivatives = (np.array(column, dtype) for column in zip(*KINKS, strict=True))
    with jax.enable_x64(dtype == "float64"):
        x = np.broadcast_to(IMAGE.astype(dtype)[..., None], (len(KINKS), 2, 3, 1))
        offset = np.zeros((len(KINKS), 2, 3, 2), dtype)
        offset[:, 0, 0] = positions
        cotangent = np.zeros((len(KINKS), 2, 3, 1), dtype)
        cotangent[:, 0, 0] = 1
        weight = np.ones((1, 1, 1, 1), dtype)
        pull_back = jax.jit(functools.partial(jax_dcn.deform_conv2d_offset_grad, backend=backend))
        reverse = pull_back(cotangent, x, offset, weight)
        np.testing.assert_array_equal(reverse[:, 0, 0], derivatives)
        apply = jax.jit(lambda offset: jax_dcn.deform_conv2d(x, offset, weight, backend=backend))
        for axis in range(2):
            direction = np.zeros_like(offset)
            direction[..., axis] = 1
            _, forward = jax.jvp(apply, (offset,), (direction,))
            np.testing.assert_array_equal(forward[:, 0, 0, 0], derivatives[:, axis])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_second_derivative_is_the_mixed_one(backend, x64):
    """Within a cell the form is bilinear: nothing in dy twice or dx twice, v00 - v01 - v10 + v11 in both."""

    def sample(offset):
        grid = np.zeros((2, 3, 2))
        weight = np.ones((1, 1, 1, 1))
        return jax_dcn.deform_conv2d(IMAGE[..., None], grid + offset, weight, backend=backend)[0, 0, 0]

    hessian = jax.jit(jax.hessian(sample))
    mixed = 1 - 4 - 16 + 25
    for offset in ([0.3, 0.6], [0.0, 0.0]):
        np.testing.assert_allclose(hessian(np.array(offset)), [[0, mixed], [mixed, 0]], atol=1e-12)
    np.testing.assert_array_equal(hessian(np.array([-1.0, 0.5])), np.zeros((2, 2)))


@pytest.mark.parametrize(
    "name, masked, backend",
    [
        ("strided_dilated", True, None),
        ("4_groups_6_offset_groups", False, None),
        ("circular", True, None),
        ("4_groups_6_offset_groups", True, "reference"),
    ],
)
def test_explicit_gradients(name, masked, backend):
    case = CASE[name]
    operands = cast(case.operands(masked=masked), np.float32)
    cotangent = cast(case.cotangent(), np.float32)
    _, gradients = compiled_pull_back(case, backend)(cotangent, operands)
    explicit = jax.jit(lambda *a: explicit_gradients(*a, backend=backend, **case.keywords))(cotangent, operands)
    assert_close(explicit, gradients._replace(bias=None), 1e-5, 1e-5)


def hlo(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def kernels_in(text):
    return set(re.findall(r'custom_call_target="(dcn_\w+)"', text))


def requested_attribute(text, name):
    """The values of a boolean attribute of the package's custom calls."""
    return set(re.findall(rf"{name} = (true|false)", text))


ASKED_CASE = Case("asked", (5, 6), 4, 3, (3, 2), 2, (2,), Convolution(padding="SAME"))
INPUT_KERNELS = {"dcn_input_cotangent"}
POSITION_KERNELS = {"dcn_offset_cotangent"}
SAMPLE_KERNELS = {"dcn_sample"}
BACKWARD_KERNELS = {
    "x": INPUT_KERNELS,
    "offset": POSITION_KERNELS,
    "weight": SAMPLE_KERNELS,
    "bias": set(),
    "mask": POSITION_KERNELS,
}


@pytest.mark.parametrize("name", ["x", "offset", "weight", "mask"])
@pytest.mark.usefixtures("limits_of_the_package")
def test_explicit_gradients_compute_only_themselves(name):
    operands, cotangent = cast((ASKED_CASE.operands(), ASKED_CASE.cotangent()), np.float32)
    function = getattr(jax_dcn, f"deform_conv2d_{'input' if name == 'x' else name}_grad")
    text = hlo(
        lambda ct, x, offset, weight, mask: function(ct, x, offset, weight, mask),
        cotangent,
        *operands_without_bias(operands),
    )
    assert kernels_in(text) == BACKWARD_KERNELS[name]
    if name in ("offset", "mask"):
        assert requested_attribute(text, "offset_requested") == {str(name == "offset").lower()}
        assert requested_attribute(text, "mask_requested") == {str(name == "mask").lower()}


def operands_without_bias(operands):
    return [operand for name, operand in zip(NAMES, operands, strict=True) if name != "bias"]


SUBSETS = [subset for size in range(1, 6) for subset in itertools.combinations(range(5), size)]


def subset_id(subset):
    return "+".join(NAMES[k] for k in subset)


@pytest.mark.parametrize("subset", SUBSETS, ids=subset_id)
@pytest.mark.usefixtures("limits_of_the_package")
def test_grad_computes_only_what_is_asked(subset):
    """The reverse pass holds the kernels of the gradients asked for and no others, and gives the same numbers."""
    operands, cotangent = cast((ASKED_CASE.operands(), ASKED_CASE.cotangent()), np.float32)

    def loss(*operands):
        return (convolve(operands, **ASKED_CASE.keywords) * cotangent).sum()

    compiled = jax.jit(jax.grad(loss, subset)).lower(*operands).compile()
    text = compiled.as_text()
    # The loss is linear in the output, so only the part of the forward pass remains that the gradients need.
    expected = set().union(*(BACKWARD_KERNELS[NAMES[k]] for k in subset))
    if expected >= POSITION_KERNELS:  # which take the samples in passing
        expected -= SAMPLE_KERNELS
        assert requested_attribute(text, "columns_requested") == {str(NAMES.index("weight") in subset).lower()}
    assert kernels_in(text) == expected
    for name in {"offset", "mask"} if "dcn_offset_cotangent" in kernels_in(text) else ():
        assert requested_attribute(text, f"{name}_requested") == {str(NAMES.index(name) in subset).lower()}
    _, gradients = compiled_pull_back(ASKED_CASE, None)(cotangent, operands)
    assert_close(compiled(*operands), tuple(gradients[k] for k in subset), 1e-5, 1e-5)


@pytest.mark.parametrize("subset", SUBSETS, ids=subset_id)
def test_jaxpr_of_grad_holds_only_what_is_asked(subset):
    """One reverse primitive, whose results have the shapes of the operands asked for."""
    operands = cast(ASKED_CASE.operands(), np.float32)
    jaxpr = jax.make_jaxpr(jax.grad(lambda *operands: convolve(operands, **ASKED_CASE.keywords).sum(), subset))(
        *operands
    )
    (cotangent,) = [e for e in jaxpr.jaxpr.eqns if e.primitive.name == "deform_conv" and e.params["chain"]]
    assert [v.aval.shape for v in cotangent.outvars] == [operands[k].shape for k in subset]


def test_the_reference_backend_calls_no_kernel():
    operands, cotangent = cast((ASKED_CASE.operands(), ASKED_CASE.cotangent()), np.float32)
    text = compiled_pull_back(ASKED_CASE, "reference").lower(cotangent, operands).compile().as_text()
    assert not kernels_in(text)
    assert kernels_in(compiled_pull_back(ASKED_CASE, None).lower(cotangent, operands).compile().as_text())
