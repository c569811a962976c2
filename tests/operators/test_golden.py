"""Results and gradients of other people's operators, from golden files."""

import functools

import jax
import pytest

from tests.helpers import golden
from tests.helpers.deform_conv.cases import assert_close, cast
from tests.helpers.operators import pull_back

# The reference, whose programs take long to compile, computes one file of each function by default, and every third one
# in continuous integration. In float32, the kernels compute every third file.
ONE_OF_EACH = {path.parent: path for path in golden.FILES}.values()


def marks_of_reference(index, path):
    if path in ONE_OF_EACH:
        return ()
    return pytest.mark.slow if index % 3 == 0 else pytest.mark.thorough


VARIANTS = [
    pytest.param(path, dtype, backend, marks=marks, id=f"{path.parent.name}_{path.stem}-{dtype}-{backend}")
    for k, path in enumerate(golden.FILES)
    for dtype, backend, marks in (
        ("float64", None, ()),
        ("float32", None, () if k % 3 == 1 else pytest.mark.thorough),
        ("float64", "reference", marks_of_reference(k, path)),
    )
]


@pytest.mark.parametrize("path, dtype, backend", VARIANTS)
def test_golden_files(path, dtype, backend):
    file = golden.read(path)
    with jax.enable_x64(dtype == "float64"):
        arguments = cast((file.cotangent, file.operands), dtype)
        actual = pull_back(functools.partial(file.function, backend=backend), *arguments)
    tolerance = {"float64": 1e-10, "float32": 1e-4}[dtype]
    assert_close(actual, (file.result, file.gradients), tolerance, tolerance)
