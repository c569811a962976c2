"""The smoke test of `make gpu-check`, on the compiled kernels, executed on the CPU."""

import re

import pytest

from benchmarks import smoke
from benchmarks.reports.report import read_rows
from jax_dcn._operators.deform_conv import custom_calls
from jax_dcn._primitive import extension

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.usefixtures("executed_kernels")]


ALL_TYPES = smoke.DTYPES


@pytest.mark.parametrize("dtypes", [("bfloat16", "float64"), pytest.param(ALL_TYPES, marks=pytest.mark.thorough)])
def test_every_custom_call_is_checked(dtypes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smoke, "DTYPES", dtypes)
    path = tmp_path / "smoke"
    assert smoke.main(["--out", str(path)], platform="cuda") == 0, capsys.readouterr().out
    about, *rows = read_rows(path)
    assert about["calls"] == list(extension.cuda_custom_calls)
    checked = {(row["call"], row["shape"]) for row in rows}
    assert checked == {(call, shape) for call in extension.cuda_custom_calls for shape in ("small", "ragged")}
    assert {row["dtype"] for row in rows} == set(dtypes)
    # An error of a tenth of the tolerance is expected of 16-bit types; an error of none would say that nothing ran.
    assert all(row["error / tolerance"] < 0.3 for row in rows)
    assert any(row["error / tolerance"] > 0.01 for row in rows)


@pytest.mark.thorough
def test_a_wrong_kernel_is_named(monkeypatch, capsys):
    right = custom_calls.fused_forward
    monkeypatch.setattr(custom_calls, "fused_forward", lambda *args, **options: 1.1 * right(*args, **options))
    monkeypatch.setattr(smoke, "DTYPES", ("bfloat16",))
    monkeypatch.setattr(smoke, "SHAPES", ("small",))
    assert smoke.main([], platform="cuda") == 1
    output = capsys.readouterr().out
    assert "- **wrong** `dcn_fused_forward`: y, fused, small, bfloat16: differs from the reference" in output
    assert output.count("**wrong**") == 1


@pytest.mark.thorough
def test_a_kernel_that_is_not_reached_fails_the_test(monkeypatch, capsys):
    monkeypatch.setattr(smoke, "DTYPES", ("float32",))  # the fused gradient of the weight needs 16 bits
    monkeypatch.setattr(smoke, "SHAPES", ("small",))
    assert smoke.main([], platform="cuda") == 1
    assert re.search(r"\| `dcn_fused_weight_cotangent` +\| \*\*no\*\*", capsys.readouterr().out)
