"""The smoke test of `make gpu-check`, on the compiled kernels, executed on the CPU."""

import itertools
import re

import pytest

from benchmarks import smoke
from jax_dcn._operators.deform_conv import fused
from jax_dcn._primitive import extension

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.usefixtures("executed_kernels")]


ALL_TYPES = smoke.DTYPES


@pytest.mark.parametrize(
    "dtypes",
    [
        ("bfloat16",),
        pytest.param(("bfloat16", "float64"), marks=pytest.mark.slow),
        pytest.param(ALL_TYPES, marks=pytest.mark.thorough),
    ],
)
def test_every_custom_call_is_checked(dtypes):
    calls = smoke.custom_calls_of("cuda")
    assert calls == list(extension.cuda_custom_calls)
    rows = [row for of_case in smoke.run(smoke.cases("cuda", smoke.SHAPES, dtypes), calls) for row in of_case]
    assert [row for row in rows if not row["ok"]] == []
    assert {(row["call"], row["shape"]) for row in rows} == set(itertools.product(calls, ("small", "ragged")))
    assert {row["dtype"] for row in rows} == set(dtypes)
    # An error of a tenth of the tolerance is expected of 16-bit types; an error of none would say that nothing ran.
    assert all(row["error / tolerance"] < 0.3 for row in rows)
    assert any(row["error / tolerance"] > 0.01 for row in rows)


@pytest.mark.thorough
def test_a_wrong_kernel_is_named(monkeypatch, capsys):
    right = fused.cuda_forward
    monkeypatch.setattr(fused, "cuda_forward", lambda *args, **options: 1.1 * right(*args, **options))
    monkeypatch.setattr(smoke, "DTYPES", ("bfloat16",))
    monkeypatch.setattr(smoke, "SHAPES", ("small",))
    assert smoke.main([], platform="cuda") == 1
    output = capsys.readouterr().out
    (wrong,) = re.findall(r"^\| (.*) \|.*\|.*\| (`.*) \|$", output, re.MULTILINE)
    assert wrong == ("fused | small | bfloat16", "`dcn_fused_forward`, y: differs from the reference")


@pytest.mark.thorough
def test_a_kernel_that_is_not_reached_fails_the_test(monkeypatch, capsys):
    monkeypatch.setattr(smoke, "DTYPES", ("float32",))  # the fused gradient of the weight needs 16 bits
    monkeypatch.setattr(smoke, "SHAPES", ("small",))
    assert smoke.main([], platform="cuda") == 1
    assert capsys.readouterr().out.endswith("**not reached**: `dcn_fused_weight_cotangent`\n")
