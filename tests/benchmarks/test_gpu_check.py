"""`make gpu-check` with commands that are simulated; the real ones need a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import record, steps
from benchmarks.gpu_check.process import run as run_process
from benchmarks.reports import gpu_check as report
from benchmarks.support import sources

pytestmark = pytest.mark.platforms("cpu")


def lines_of(page):
    """The lines of a page, with the cells of its tables separated by one space."""
    return [" ".join(line.split()) for line in page.splitlines()]


def test_only_the_tests_of_a_platform_run_and_name_it(tmp_path):
    results = tmp_path / "results.xml"
    command = [*steps.PYTEST, f"--junitxml={results}", "--platform=cpu", "tests/test_platforms.py"]
    subprocess.run(command, capture_output=True, cwd=sources.ROOT)
    assert steps.read_tests(ElementTree.parse(results))["backends"] == {"cpu": {"passed": 1}}


def test_outcomes_are_on_the_page():
    cases = ("<failure message='it is wrong'/>", "<skipped message='no reason'/>", "")
    outcome = steps.read_tests(
        ElementTree.fromstring("".join(map(TEST_RESULTS.__mod__, cases)).join(("<all>", "</all>")))
    )
    assert outcome["backends"] == {"cuda": {"passed": 1, "skipped": 1, "failed": 1}}
    step = {"ok": True, "seconds": 3, "stopped at its limit": False}
    tests = step | outcome | {"ok": False, "stopped at its limit": True}
    head = {"gpu": {"name": "a GPU"}, "date": "today", "commit": "abc"}
    lines = lines_of(report.page(head | {"steps": {"build": step, "tests": tests}}))
    assert "today, commit abc, name a GPU; 6 s in all." in lines
    assert "| build | passed | 3 |" in lines
    assert "| tests | **failed**, stopped at its limit | 3 |" in lines
    assert "| ratios | not reached | |" in lines
    assert "| cuda | 1 | 1 | 1 |" in lines
    assert "- 1 skipped: no reason" in lines
    assert "- **failed** `test::cuda`: it is wrong" in lines


def test_the_shapes_of_the_ratios_exist():
    args = benchmarks.parse(["operators", "--shapes", *steps.RATIO_SHAPES, "--dtypes", steps.RATIO_DTYPE])
    assert list(args.shapes) == list(steps.RATIO_SHAPES)


def test_a_command_is_stopped_at_its_limit():
    sleep = "import time; time.sleep(600)"
    step = run_process(sys.executable, "-c", sleep, limit=1)
    assert step["stopped at its limit"] and not step["ok"] and step["seconds"] < 300
    assert run_process(sys.executable, "-c", "", limit=600)["ok"]
    assert not run_process(sys.executable, "-c", "raise SystemExit(3)", limit=600)["ok"]
    assert run_process(sys.executable, "-c", "print('some text')", limit=600, captured=True)["output"] == "some text\n"


TEST_RESULTS = """<testsuites><testsuite>
  <testcase classname="test" name="cuda"><properties><property name="backend" value="cuda"/></properties>%s</testcase>
</testsuite></testsuites>"""
NVIDIA_SMI = """#!/bin/sh
case "$1" in
-q) cat <<'END'
<nvidia_smi_log>
  <driver_version>600.1</driver_version> <cuda_version>13.0</cuda_version>
  <gpu>
    <product_name>Fast GPU</product_name>
    <mig_mode> <current_mig>Disabled</current_mig> </mig_mode>
    <gpu_power_readings> <current_power_limit>700.00 W</current_power_limit> </gpu_power_readings>
    <clocks> <sm_clock>1755 MHz</sm_clock> </clocks>
    <max_clocks> <sm_clock>1980 MHz</sm_clock> </max_clocks>
  </gpu>
</nvidia_smi_log>
END
;;
*) echo '%s' ;;
esac
"""
GPU = "Fast GPU H200, 9.0, 600.1, 1 MiB"
LAUNCH = {"kernel": "A<half>", "call": "dcn_fused_forward", "shape": "A", "batch": 16, "architecture": "sm_90"}
LAUNCH |= {"gpu": "H200", "milliseconds": 0.25, "bound_by": "issue"}
MEASURED = {"call": "dcn_fused_forward", "shape": "A", "batch": 16, "milliseconds": 0.5, "SM clock": "1755 MHz"}
MEASURED["kernels"] = {
    "A<half>": {"milliseconds": 0.5, "launches": 1.0, "own": True},
    "fusion": {"milliseconds": 0.01, "launches": 1.0, "own": False},
}
MEASURED |= {"program milliseconds": {"median": 0.6, "min": 0.55, "max": 0.7}}
SMOKE = {"calls": ["dcn_sample"], "rows": [], "not reached": ["plain small float32"]}
PROFILE = """==PROF== Connected to process 7
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void dcn::FusedForwardKernel<__half, 128>(int)","Issue Slots Busy","%","61.5"
"0","void dcn::FusedForwardKernel<__half, 128>(int)","Waves Per SM","","2"
==PROF== Disconnected
"""
ORDER = ["pip", "benchmarks.smoke", "pytest", "sanitizers", "benchmarks.kernel_times", "benchmarks", "ncu"]


class Machine:
    """A machine whose nvidia-smi prints `line`, or fails, and on which commands are only recorded."""

    def __init__(self, folder, monkeypatch):
        self.out = folder / "out"
        self.results = folder / "results"
        self.results.mkdir()
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.clock = 0.0
        self.set_gpu(GPU)
        self.install("ncu")
        self.commands = []  # name, words, limit and the steps that were written down before
        self.skips, self.refused, self.fails, self.stopped, self.takes = (), {}, (), (), {}
        monkeypatch.setenv("PATH", str(self.bin), prepend=":")
        monkeypatch.setattr(steps, "run", self.run)
        monkeypatch.setattr(steps, "RESULTS", self.results)
        monkeypatch.setattr(gpu_check.time, "perf_counter", lambda: self.clock)
        monkeypatch.setattr(record, "digest_of_sources", lambda: self.sources)
        self.sources = "these"

    def install(self, name, script="#!/bin/sh\n"):
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def set_gpu(self, line):
        self.install("nvidia-smi", NVIDIA_SMI % line if line else "#!/bin/sh\nexit 9\n")

    def check(self, *arguments):
        """Exit status of `make gpu-check`, and the names of the commands that it ran."""
        self.commands.clear()
        self.clock = 0.0
        status = gpu_check.main([*arguments, "--out", str(self.out)])
        return status, [name for name, *_ in self.commands]

    def read(self, suffix):
        return max(self.out.glob(f"*-gpu-*{suffix}"), key=lambda path: path.stat().st_mtime_ns).read_text()

    @property
    def report(self):
        return json.loads(self.read(".json"))

    @property
    def page(self):
        return self.read(".md")

    def run(self, *command, limit, captured=False):
        words = [str(word) for word in command]
        name = next(name for name in ORDER if name in [Path(word).name for word in words])
        if name == "pytest" and steps.SANITIZERS in words:
            name = "sanitizers"
        if "--once" in words:
            name = "ncu"
        written = set(self.report["steps"]) if list(self.out.iterdir()) else set()
        self.commands.append((name, words, limit, written))
        self.clock += self.takes.get(name, 1)
        if name in ("pytest", "sanitizers"):
            (path,) = (Path(word.removeprefix("--junitxml=")) for word in words if word.startswith("--junitxml="))
            path.write_text(TEST_RESULTS % ("<skipped message='none'/>" if name in self.skips else ""))
        elif "--out" in words:
            path = Path(words[words.index("--out") + 1])
            if name == "benchmarks":
                (path / "results.json").write_text(json.dumps({"operators": [{"refused": self.refused}]}))
                (path / "results.md").write_text("as tables")
                (path / "plot.png").touch()
            else:
                rows = {"benchmarks.smoke": SMOKE, "benchmarks.kernel_times": {"rows": [MEASURED]}}
                path.write_text(json.dumps(rows[name]))
        result = {"ok": name not in self.fails, "seconds": 1, "stopped at its limit": name in self.stopped}
        return result | ({"output": PROFILE} if captured else {})


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_without_a_gpu_nothing_is_run(machine, capsys):
    machine.set_gpu(None)
    assert machine.check() == (0, [])
    assert "Skipped: no NVIDIA GPU here" in capsys.readouterr().out
    assert not machine.out.exists()


def test_steps_run_in_order_and_are_written_down_before_the_next(machine, capsys):
    assert machine.check() == (0, ORDER)
    names = list(steps.STEPS)
    assert names == list(report.SECTIONS)
    for number, (*_, written) in enumerate(machine.commands, 1):  # the first step, the facts, runs no command
        assert written == set(names[:number])
    assert "-Ccmake.define.JAX_DCN_CUDA_CODE=90" in machine.commands[0][1]
    assert {"--platform=cuda", f"--ignore={steps.SANITIZERS}"} <= set(machine.commands[2][1])
    assert machine.report["gpu"]["name"] == "Fast GPU H200"
    assert machine.page in capsys.readouterr().out
    assert "as tables" in machine.page
    assert (machine.out / "plot.png").exists()


def test_the_facts_of_the_gpu_are_read(machine):
    machine.check("--only", "facts")
    facts = machine.report["steps"]["facts"]["facts"]
    assert facts["CUDA of the driver"] == "13.0"
    assert facts["SM clock"] == "1755 MHz" and facts["largest SM clock"] == "1980 MHz"
    assert facts["MIG"] == "Disabled" and facts["power limit"] == "700.00 W"
    assert facts["memory clock"] is None  # nvidia-smi does not say it here
    assert facts["ncu"] is True and facts["compute-sanitizer"] in (True, False)
    assert "| SM clock | 1755 MHz |" in lines_of(machine.page)
    assert "| memory clock | unknown |" in lines_of(machine.page)


def test_results_of_each_step_are_on_the_page(machine):
    path = machine.results / "2026-01-01-machine-code.json"
    path.write_text(json.dumps({"launches": [LAUNCH]}))
    machine.check()
    lines = lines_of(machine.page)
    assert "Not reached: plain small float32." in lines  # of the smoke test
    assert "| A | `dcn_fused_forward` | 0.50 | 0.25 | 2.00 | issue | 0.60 (0.55 to 0.70) |" in lines
    assert "| A | `A<half>` | 1 | 0.50 | 0.25 | 2.00 |" in lines
    assert not any("`fusion`" in line for line in lines)  # it is XLA's
    assert "Clock of the SMs after each shape was timed: 1755 MHz." in lines
    assert "Measured times, and the estimates of 2026-01-01-machine-code.json." in lines
    assert "There are no estimates" not in machine.page
    assert "| 1 | `FusedForwardKernel<half, 128>` | Issue Slots Busy | 61.5 % |" in lines
    assert "Waves Per SM" not in machine.page  # it is in the JSON file
    (launch,) = machine.report["steps"]["profile"]["launches"]
    assert launch["metrics"]["Waves Per SM"] == ["2", ""]


def test_without_estimates_or_a_profiler_the_page_says_so(machine):
    (machine.bin / "ncu").unlink()
    assert machine.check() == (0, ORDER[:-1])
    assert "There are no estimates for Fast GPU H200: `python -m benchmarks.machine_code` writes" in machine.page
    assert "| A | `dcn_fused_forward` | 0.50 | - | - | - | 0.60 (0.55 to 0.70) |" in lines_of(machine.page)
    assert "There is no profile: ncu is not installed." in machine.page


def test_time_that_is_left_over_is_for_later_steps(machine):
    shares = {name: step.seconds for name, step in steps.STEPS.items()}
    assert sum(shares.values()) <= gpu_check.MINUTES * 60
    machine.takes = {"pip": 20}
    machine.check("--only", "build,tests,profile")
    limits = {name: limit for name, _, limit, _ in machine.commands}
    left_over = gpu_check.MINUTES * 60 - shares["tests"] - shares["profile"]
    assert limits["pip"] == left_over
    assert limits["pytest"] == left_over - 20 + shares["tests"]
    assert limits["ncu"] == gpu_check.MINUTES * 60 - 20 - 1


def test_only_some_steps(machine, capsys):
    assert machine.check("--only", "smoke,tests") == (0, ["benchmarks.smoke", "pytest"])
    assert list(machine.report["steps"]) == ["smoke", "tests"]
    assert machine.check("--only", "smoke") == (0, ["benchmarks.smoke"])  # again, because it is named
    with pytest.raises(SystemExit):
        machine.check("--only", "smoke,teste")
    assert "no such step: teste; there are facts, build, smoke" in capsys.readouterr().err


def test_a_second_run_continues(machine):
    machine.stopped = ["pytest"]
    machine.check()
    machine.stopped = []
    # The build is repeated, because the report does not show that it is still there.
    assert machine.check() == (0, ["pip", "pytest"])
    assert machine.check() == (0, ["pip"])
    assert set(machine.report["steps"]) == set(steps.STEPS)
    assert machine.check("--again") == (0, ORDER)


@pytest.mark.parametrize("changed", ["sources", "driver", "GPU"])
def test_results_of_something_else_are_not_continued(machine, changed):
    machine.check()
    before = set(machine.out.iterdir())
    if changed == "sources":
        machine.sources = "those"
    else:
        machine.set_gpu(GPU.replace(*{"driver": ("600.1", "600.2"), "GPU": ("Fast", "Slow")}[changed]))
    assert machine.check() == (0, ORDER)
    assert (set(machine.out.iterdir()) != before) == (changed == "GPU")  # the other GPU's results are kept


def test_an_unreadable_report_is_replaced(machine):
    machine.check()
    (path,) = machine.out.glob("*-gpu-*.json")
    path.write_text(path.read_text()[:-20])
    assert machine.check() == (0, ORDER)


@pytest.mark.parametrize(
    "what",
    [
        {"fails": ["benchmarks.smoke"]},
        {"fails": ["sanitizers"]},
        {"skips": ["pytest"]},
        {"skips": ["sanitizers"]},
        {"refused": {"jax_dcn": "MemoryError: no"}},
        {"refused": {"pure JAX": "differs from jax_dcn in y by 40%"}},
    ],
    ids=str,
)
def test_what_fails_the_check_and_stops_no_later_step(machine, what):
    vars(machine).update(what)
    assert machine.check() == (1, ORDER)
    assert "**failed**" in machine.page
    assert ("No test passed on the GPU" in machine.page) == ("skips" in what)


def test_nothing_runs_after_a_build_that_failed(machine):
    machine.fails = ["pip"]
    assert machine.check() == (1, ["pip"])


def test_a_step_that_raises_an_error_stops_no_later_step(machine, monkeypatch):
    def broken(path, name):
        raise KeyError("launches")

    (machine.results / "2026-01-01-machine-code.json").write_text("{}")
    monkeypatch.setattr(steps.estimates, "read", broken)
    assert machine.check() == (1, ORDER)
    assert "KeyError: 'launches'" in machine.page


def test_a_baseline_that_fails_or_a_limit_does_not_fail_the_check(machine):
    machine.refused, machine.fails = {"torchvision": "MemoryError: no"}, ["benchmarks", "ncu"]
    assert machine.check() == (0, ORDER)


def test_sources_decide_what_is_continued():
    names = {str(path.relative_to(sources.ROOT)) for pattern in sources.SOURCES for path in sources.ROOT.glob(pattern)}
    assert {"lib/cuda/deform_conv.cu", "jax_dcn/__init__.py", "tests/conftest.py", "CMakeLists.txt"} <= names


def test_it_starts_where_nothing_is_installed():
    """Without a GPU there may be no jax, and before the build there is no module of jax_dcn."""
    absent = "import sys; sys.modules |= dict.fromkeys(['jax', 'jax_dcn', 'numpy', 'pytest']); "
    start = "from benchmarks.gpu_check.__main__ import main; sys.exit(main(['--only', 'facts']))"
    environment = os.environ | {"PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", absent + start], capture_output=True, text=True, cwd=sources.ROOT, env=environment
    )
    assert "Skipped: no NVIDIA GPU here" in result.stdout, result.stderr
