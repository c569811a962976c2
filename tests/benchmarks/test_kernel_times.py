"""Times of custom calls: estimated, measured, and as profilers report them."""

import json
from pathlib import Path

import jax
import pytest

from benchmarks import kernel_times
from benchmarks.baselines import Call
from benchmarks.counting import estimates
from benchmarks.gpu_check import ncu
from benchmarks.measurements import deform_conv
from benchmarks.reports.gpu_check import kernel_lines, times_line

pytestmark = pytest.mark.platforms("cpu")

FORWARD, INPUT = "dcn_fused_forward", "dcn_fused_input_cotangent"
ESTIMATES = Path(__file__).parent / "estimates.json"


def test_estimates_are_summed_over_the_launches_of_a_call():
    found = estimates.read(ESTIMATES, "NVIDIA H200")
    assert set(found) == {(INPUT, "A", 16), (FORWARD, "A", 16), (FORWARD, "B", 16)}
    launches = found[INPUT, "A", 16]
    assert launches.milliseconds == pytest.approx(0.05 + 0.25 + 0.125)
    assert launches.bound_by == "issue"  # as the longest launch
    assert launches.kernels == {"ScanKernel": 0.05, "FusedInputCotangentKernel<bfloat16>": 0.375}
    measured = {"ScanKernel": {"own": True, "launches": 1, "milliseconds": 0.1}}
    row = {"shape": "A", "call": INPUT, "milliseconds": 0.85, "kernels": measured, "estimate": launches._asdict()}
    row["program milliseconds"] = dict.fromkeys(("median", "min", "max"), 0.9)
    assert times_line(row)[2:6] == ["0.85", "0.42", "2.00", "issue"]
    assert next(kernel_lines(row))[3:] == ["0.10", "0.050", "2.00"]


@pytest.mark.parametrize(
    "name, milliseconds",
    [
        ("NVIDIA A100-SXM4-40GB", 1.0),
        ("NVIDIA GeForce RTX 5090", 0.75),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_estimates_are_those_of_the_gpu_itself(name, milliseconds):
    found = estimates.read(ESTIMATES, name)
    assert found[FORWARD, "A", 16].milliseconds == milliseconds if milliseconds else not found


def test_the_newest_estimates_are_found(tmp_path):
    assert estimates.newest(tmp_path) is None
    for name in ("2026-03-01-machine-code.json", "2026-11-01-machine-code.json", "2026-12-01-cpu.json"):
        (tmp_path / name).touch()
    assert estimates.newest(tmp_path).name == "2026-11-01-machine-code.json"


TRACE = """
planes {
  name: "/device:GPU:0"
  lines { name: "Stream #13(Compute)"
    events { metadata_id: 1 duration_ps: 250000000 }
    events { metadata_id: 1 duration_ps: 750000000 }
    events { metadata_id: 2 duration_ps: 5000000 }
  }
  lines { name: "XLA Ops" events { metadata_id: 1 duration_ps: 9000000000 } }
  event_metadata { key: 1 value { id: 1
    name: "void dcn::(anonymous namespace)::FusedForwardKernel<__nv_bfloat16, 128>(dcn::Sizes, dcn::Product)" } }
  event_metadata { key: 2 value { id: 2 name: "input_transpose_fusion" } }
}
planes { name: "/host:CPU"
  lines { name: "Stream" events { metadata_id: 1 duration_ps: 9000000000 } }
  event_metadata { key: 1 value { id: 1 name: "dcn::Call" } }
}
"""


def xspace(text):
    return jax.profiler.ProfileData.text_proto_to_serialized_xspace(text)


def test_each_call_is_timed_by_itself(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(deform_conv.SHAPES, "A", deform_conv.Shape(2, 6, 5, 32, 32))
    monkeypatch.setattr(kernel_times, "BATCH", 3)
    monkeypatch.setenv("XLA_FLAGS", "")
    path = tmp_path / "times.json"
    assert kernel_times.main(["--shapes", "A", "--out", str(path)]) == 0
    results = json.loads(path.read_text())
    assert [(row["call"], row["shape"], row["batch"]) for row in results["rows"]] == [
        (call, "A", 3) for call in kernel_times.CALLS
    ]
    assert results["not reached"] == []
    for row in results["rows"]:
        assert 0 < row["program milliseconds"]["min"] <= row["program milliseconds"]["median"]
        assert row["milliseconds"] is None and row["kernels"] == {}  # no GPU
    assert "| A     | `dcn_fused_forward`          | -           | -            |" in capsys.readouterr().out
    assert kernel_times.main(["--shapes", "A", "--once"]) == 0


def test_times_of_the_trace_are_those_of_one_run(monkeypatch, tmp_path):
    def trace(folder):
        (Path(folder) / "some.xplane.pb").write_bytes(xspace(TRACE))
        return jax.profiler.TraceAnnotation("nothing")

    monkeypatch.setattr(jax.profiler, "trace", trace)
    kernels = kernel_times.traced(Call(lambda: None))
    assert kernels == {
        "FusedForwardKernel<bfloat16, 128>": of_run(1.0, 2, own=True),
        "input_transpose_fusion": of_run(0.005, 1, own=False),
    }


def of_run(milliseconds, launches, own):
    """What a trace of all runs says about one of them."""
    runs = kernel_times.TRACED_RUNS
    return {"milliseconds": pytest.approx(milliseconds / runs), "launches": launches / runs, "own": own}


PROFILE = """==PROF== Connected to process 7 (/usr/bin/python3)
a line of the program
==PROF== Profiling "FusedForwardKernel" - 0: 0%....50%....100% - 10 passes
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"
"0","7","void dcn::<unnamed>::FusedForwardKernel<__half, (int)128>(Call)","Compute","Issue Slots Busy","%","61.5",""
"0","7","void dcn::<unnamed>::FusedForwardKernel<__half, (int)128>(Call)","SpeedOfLight","Duration","us","1,234.5",""
"0","7","void dcn::<unnamed>::FusedForwardKernel<__half, (int)128>(Call)","Compute","","","","Rule"
"1","7","dcn::<unnamed>::FusedWeightCotangentKernel<__half>(int)","Occupancy","Achieved Occupancy","%","24.9",""
==PROF== Disconnected from process 7
"""


def test_the_table_and_the_errors_of_ncu_are_read():
    assert ncu.read(PROFILE) == [
        {
            "kernel": "FusedForwardKernel<half, 128>",
            "metrics": {"Issue Slots Busy": ("61.5", "%"), "Duration": ("1,234.5", "us")},
        },
        {"kernel": "FusedWeightCotangentKernel<half>", "metrics": {"Achieved Occupancy": ("24.9", "%")}},
    ]
    assert ncu.errors(PROFILE) == []
    text = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission.\n"
    assert ncu.read(text) == []
    assert ncu.errors(text) == ["ERR_NVGPUCTRPERM - The user does not have permission."]
