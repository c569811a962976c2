"""The training loop: a run that ends early, in whatever way, can be resumed."""

import csv
import gc
import json
import logging
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tqdm import tqdm

from examples.library.batches import ahead
from examples.library.checkpoints import locked
from examples.library.loop import Options, StartError, Work, fit
from examples.library.recipe import Recipe
from tests.helpers.slow import slow

pytestmark = pytest.mark.platforms("cpu")

LOGS = {"log.jsonl", "log.csv"}
RECIPE = Recipe(6, decays=(0.5, 0.25), checkpoint_every=2, evaluate_every=3)


def step(state, batch):
    """Gradient descent on (x - batch)²."""
    error = state["x"] - batch
    return state | {"step": state["step"] + 1, "x": state["x"] - error / 2}, {"loss": jnp.square(error)}


def run(folder, recipe=RECIPE, *, load=float, change=lambda *of: of, evaluate=None, best="", outputs=(), **options):
    """A training whose batches are what `load` makes of their numbers; `change` alters what a step returns."""
    large = jax.random.normal(jax.random.key(0), 5000)
    first = {"step": jnp.zeros((), int), "x": jnp.ones(()), "large": large}
    batches = partial(ahead, load, workers=2)
    work = Work(lambda *of: change(*step(*of)), lambda: first, first, batches, evaluate, best)
    return fit(work, recipe, folder, Options(**options), outputs)


def saved(folder):
    """What is in the folder of the checkpoints."""
    return {path.name for path in (folder / "checkpoints").iterdir()}


def strict_json(text):
    def refuse(constant):
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def test_a_run_goes_on_as_if_never_interrupted(tmp_path):
    """Also with a recipe that has tuples, which JSON does not know, and with more steps."""
    whole = run(tmp_path / "whole")
    run(tmp_path / "parts", replace(RECIPE, steps=3))
    with pytest.raises(StartError, match=r"has checkpoints of a run: resume it \(--resume\), or overwrite it"):
        run(tmp_path / "parts")
    resumed = run(tmp_path / "parts", existing="resume")
    assert resumed.losses == whole.losses and float(resumed.state["x"]) == float(whole.state["x"])
    assert run(tmp_path / "parts", replace(RECIPE, steps=8), existing="resume").losses[:6] == whole.losses
    with pytest.raises(ValueError, match=r"decays must be \[0.5, 0.25\] to go on from .*, got \[0.5\]"):
        run(tmp_path / "parts", replace(RECIPE, steps=9, decays=(0.5,)), existing="resume")
    with pytest.raises(StartError, match="--steps must be at least the 8 that are saved, got 7"):
        run(tmp_path / "parts", replace(RECIPE, steps=7), existing="resume")
    assert len(run(tmp_path / "parts", existing="overwrite").losses) == 6


A, B = {"data": "a"}, {"data": "b"}


@pytest.mark.parametrize(("before", "after"), [(A, {}), ({}, A), (A, B)])
def test_settings_of_a_run_that_goes_on(before, after, tmp_path):
    run(tmp_path, settings=before)
    message = f"data must be {before.get('data', 'nothing')} to go on from .*, got {after.get('data', 'nothing')}"
    with pytest.raises(StartError, match=message):
        run(tmp_path, settings=after, existing="resume")
    assert len(run(tmp_path, settings=after, existing="resume", changeable=["data"]).losses) == 6


def test_results_of_another_run(tmp_path, capsys):
    """They are neither kept beside the new ones nor replaced without a word."""
    run(tmp_path / "whole", existing="resume")
    said = f"{tmp_path}/whole/checkpoints has no checkpoints; the run starts from its first step.\n"
    assert capsys.readouterr().out == said
    outputs = [tmp_path / name for name in ("best", "results.json", "missing")]
    outputs[0].mkdir()
    (outputs[0] / "model").touch()
    outputs[1].touch()
    for existing in ("refuse", "resume"):
        with pytest.raises(StartError, match=r"there are results of another run: .*/best, .*/results.json. Move or"):
            run(tmp_path / "run", outputs=outputs, existing=existing)
    assert len(run(tmp_path / "whole", outputs=outputs, existing="resume").losses) == 6
    assert outputs[0].exists() and outputs[1].exists()
    run(tmp_path / "run", outputs=outputs, existing="overwrite")
    assert not outputs[0].exists() and not outputs[1].exists() and capsys.readouterr().out == ""


def test_evaluations_and_the_log(tmp_path):
    """Each step is logged once, also if the run was interrupted."""

    def evaluate(state, count, scores):
        return {"count": count, "before": len(scores)}

    run(tmp_path, replace(RECIPE, steps=3), evaluate=evaluate)
    found = run(tmp_path, evaluate=evaluate, existing="resume")
    assert found.scores == {"3": {"count": 3, "before": 0}, "6": {"count": 6, "before": 1}}
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 7)] and found.losses == [line["loss"] for line in lines]
    assert lines[-1].keys() == {"step", "loss", "milliseconds", "waited"} and 0 <= found.log.waiting() < 1
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(StartError, match=r"there are results of another run: .*log.jsonl. Move or overwrite"):
        run(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_saves_the_last_state(number, tmp_path):
    def interrupt(state, count, scores):
        if count == 3:
            signal.raise_signal(number)
        return {}

    assert threading.current_thread() is threading.main_thread()
    usual = signal.getsignal(number)
    with pytest.raises(SystemExit, match=r"Interrupted after step 3, which is saved. Continue with --resume."):
        run(tmp_path, evaluate=interrupt)
    assert saved(tmp_path) == {"3", "scores.json"}
    assert signal.getsignal(number) is usual
    assert run(tmp_path, existing="resume").losses == run(tmp_path / "whole").losses


def test_an_evaluation_is_left_to_the_run_that_goes_on(tmp_path):
    """If the signal came in the step before it, because it may take longer than a cluster waits."""

    def change(state, measured):
        if state["step"] == 3:
            signal.raise_signal(signal.SIGTERM)
        return state, measured

    with pytest.raises(SystemExit, match="Interrupted after step 3"):
        run(tmp_path, change=change, evaluate=lambda *_: pytest.fail("it is too late to evaluate"))
    found = run(tmp_path, evaluate=lambda state, count, scores: {"count": count}, existing="resume")
    assert found.scores == {"3": {"count": 3}, "6": {"count": 6}}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite(bad, tmp_path):
    """They end the run, with their names, and are in the log, but in no checkpoint."""

    def change(state, measured):
        return state, {"mean": measured["loss"] / 2, **measured, "rate": 0.5}

    log = tmp_path / "run/log.jsonl"
    message = (
        rf"Step 4 measured numbers that are not finite: loss {bad}, mean {bad}. In step 3 they were loss 1.562, "
        r"mean 0.7812. Step 2 is saved. Continue with --resume."
    )
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", load=lambda number: bad if number == 3 else float(number), change=change)
    lines = [strict_json(line) for line in log.read_text().splitlines()]
    assert [line["loss"] for line in lines][2:] == [1.5625, None] and lines[-1]["step"] == 4
    found = run(tmp_path / "run", existing="resume", change=change)
    assert found.losses == run(tmp_path / "whole").losses
    assert [strict_json(line)["loss"] for line in log.read_text().splitlines()] == found.losses
    message = rf"Step 1 measured numbers that are not finite: loss {bad}. No step is saved."
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "first", load=lambda _: bad)


def test_a_state_that_is_not_finite_is_not_saved(tmp_path):
    """As after a gradient that is not finite, whose step had a finite loss."""

    def change(state, measured):
        return (state | {"x": jnp.full((), jnp.nan)} if state["step"] == 4 else state), measured

    with pytest.raises(SystemExit, match=r"after step 4 is not finite in x, and is not saved. Step 2 is saved."):
        run(tmp_path, change=change)
    assert run(tmp_path, existing="resume").losses == run(tmp_path / "whole").losses


def ends_with_an_error(directory, error, steps, **options):
    with pytest.raises(error) as caught:
        run(directory, **options)
    note = f"Step {steps[-1]} is saved. Continue with --resume." if steps else "No step is saved."
    assert caught.value.__notes__ == [note]
    assert saved(directory) == {*steps}
    assert run(directory, existing="resume").losses == run(directory / "whole").losses


def test_errors_of_batches(tmp_path):
    """The state of the last complete step is saved."""
    ends_with_an_error(tmp_path / "batch", ZeroDivisionError, ["3"], load=lambda number: number / (number != 3))
    ends_with_an_error(tmp_path / "first", ZeroDivisionError, [], load=lambda number: 1 / number)


def test_errors_of_evaluations(tmp_path):
    """The state is saved before, and its evaluation is repeated. Earlier scores are kept."""
    calls = []

    def evaluate(state, count, scores):
        calls.append((count, len(scores)))
        assert (tmp_path / "checkpoints" / str(count)).is_dir()
        if len(calls) == 2:
            raise ZeroDivisionError
        return {"AP": math.nan if count == 3 else 0.5}

    with pytest.raises(ZeroDivisionError) as caught:
        run(tmp_path, evaluate=evaluate)
    assert caught.value.__notes__ == ["Step 6 is saved. Continue with --resume."]
    assert strict_json((tmp_path / "checkpoints/scores.json").read_text())["scores"] == {"3": {"AP": None}}
    found = run(tmp_path, evaluate=evaluate, existing="resume")
    assert calls == [(3, 0), (6, 1), (6, 1)]
    assert math.isnan(found.scores["3"]["AP"]) and found.scores["6"] == {"AP": 0.5}
    assert run(tmp_path, evaluate=evaluate, existing="resume").scores.keys() == {"3", "6"} and len(calls) == 3
    run(tmp_path, existing="overwrite")
    assert not run(tmp_path, existing="resume").scores


@pytest.fixture
def silenced(monkeypatch):
    """For tests of failures that end a program, and silence what is left of them."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    for name in ("absl", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
    yield
    gc.collect()


@pytest.mark.parametrize("limit", [100, 10000])
@pytest.mark.usefixtures("silenced", "capsys")  # the latter so that no output goes to a file
def test_a_full_disk(limit, tmp_path, caplog):
    """The checkpoint before stays, whatever file the operating system refuses to write. Only the error is printed."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def change(state, measured):
        if state["step"] == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
        return state, measured

    try:
        with pytest.raises(OSError, match=r"step [34] cannot be (saved|written to the log): .*File too") as caught:
            run(tmp_path, change=change)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert caught.value.__notes__ == ["Step 2 is saved. Continue with --resume."]
    assert "\n" not in str(caught.value) and not caplog.records
    found = run(tmp_path, replace(RECIPE, checkpoint_every=3), existing="resume")
    assert found.losses == run(tmp_path / "whole").losses
    assert saved(tmp_path) == {"6"}  # and nothing unfinished


@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGKILL)])
def test_a_process_that_is_ended(number, tmp_path):
    """SIGKILL may come while a checkpoint is written: each step writes one. No lock is left."""
    program = f"""
from tests.examples.test_loop import *
with locked(Path({str(tmp_path)!r})):
    run(Path({str(tmp_path)!r}), Recipe(10**6, checkpoint_every=1))
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True) as process:
        patience = time.monotonic() + 60
        while not any(tmp_path.glob("checkpoints/[3-9]")) and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.01)
        with pytest.raises(StartError, match="another run is writing"), locked(tmp_path):
            pass
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    last = max(int(name) for name in saved(tmp_path) if name.isdigit())
    if number == signal.SIGTERM:
        assert process.returncode == 1
        assert f"Interrupted after step {last}, which is saved. Continue with --resume." in errors
    else:
        assert process.returncode == -signal.SIGKILL
    recipe = Recipe(last + 3, checkpoint_every=1)
    with locked(tmp_path):
        assert run(tmp_path, recipe, existing="resume").losses == run(tmp_path / "whole", recipe).losses
    assert saved(tmp_path) == {str(last + 3)}
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "whole", ".lock", *LOGS}


def test_patience(tmp_path):
    """The run ends when the best score has not risen for some evaluations. NaN is below all scores."""
    recipe = Recipe(8, evaluate_every=1)
    values = dict(enumerate([math.nan, 0.2, 0.1, 0.2, 0.1, 0.3, 0.1, 0.1], 1))
    options = {"evaluate": lambda state, count, scores: {"AP": values[count], "AP50": count / 8}}
    assert len(run(tmp_path, recipe, best="AP", patience=2, **options).losses) == 4
    assert len(run(tmp_path, recipe, best="AP", patience=2, existing="resume", **options).losses) == 4
    assert len(run(tmp_path, recipe, best="AP", patience=3, existing="resume", **options).losses) == 5
    assert len(run(tmp_path, recipe, best="AP", patience=4, existing="resume", **options).losses) == 8
    assert len(run(tmp_path / "rising", recipe, best="AP50", patience=1, **options).losses) == 8


def test_errors_of_threads_reach_the_caller():
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda step: 1 // (3 - step), range(6), 2))
    assert list(ahead(str, range(2, 7), 3)) == list("23456") and list(ahead(str, range(0), 2)) == []


@pytest.mark.slow
def test_processes_that_make_batches():
    """They are others than this one, their errors reach the caller, and so does their end."""
    batches = ahead(partial(divmod, 12), [5, 7, 0], processes=True)
    assert [next(batches), next(batches)] == [(2, 2), (1, 5)]
    with pytest.raises(ZeroDivisionError):
        next(batches)
    with pytest.raises(ChildProcessError, match="a process that prepares batches ended"):
        next(ahead(os._exit, [1], processes=True))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.slow
def test_processes_end_with_the_one_that_they_serve(number, tmp_path):
    """Terminals and clusters signal all of them. They still make the batches of steps that are running."""
    program = f"""
import jax.numpy as jnp, os
from pathlib import Path
from examples.library.batches import ahead
from tests.examples.test_loop import *

def step(state, batch):
    print(batch, flush=True)
    return state, {{"loss": jnp.zeros(())}}

state = {{"x": jnp.zeros(())}}
work = Work(step, lambda: state, state, lambda steps: ahead(float, steps, 2, processes=True))
fit(work, Recipe(10**9, checkpoint_every=10**9), Path({str(tmp_path)!r}))
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes, text=True, start_new_session=True)
    with process:
        for _ in range(5):
            process.stdout.readline()
        os.kill(process.pid, number) if number == signal.SIGKILL else os.killpg(process.pid, number)
        _, errors = process.communicate()  # which ends when all processes that have the pipes have ended
    is_saved = re.search(r"Interrupted after step \d+, which is saved", errors)
    assert bool(is_saved) == (number != signal.SIGKILL), errors


def test_a_log_that_is_damaged(tmp_path, capsys):
    """The run goes on, and says which steps it lacks."""
    whole = run(tmp_path / "whole")
    left_out = " Lines that cannot be read are left out: 2."
    changes = {
        "lost": (lambda log: b"", 4, ""),
        "torn": (lambda log: log[: log.index(b"\n") + 5], 3, left_out),
        "bytes": (lambda log: log.replace(b'"step": 2', b'"step": \xff'), 1, left_out),
        "name": (lambda log: log.replace(b'2, "loss"', b'2, "lost"'), 1, left_out),
    }
    for name, (change, lacking, said) in changes.items():
        run(tmp_path / name, replace(RECIPE, steps=4))
        log = tmp_path / name / "log.jsonl"
        log.write_bytes(change(log.read_bytes()))
        found = run(tmp_path / name, existing="resume")
        left = {4: [4, 5], 3: [0, 4, 5], 1: [0, 2, 3, 4, 5]}[lacking]
        assert found.losses == [whole.losses[step] for step in left]
        _, *rows = csv.reader((tmp_path / name / "log.csv").read_text().splitlines())
        assert [int(row[0]) for row in rows] == [step + 1 for step in left]
        assert f"log.jsonl lacks {lacking} of the 4 steps that are saved.{said}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("silenced")
def test_damaged_files(tmp_path, caplog):
    """A damaged file of a checkpoint is an error that names its folder, or changes nothing. So is one of scores."""
    whole, failed = tmp_path / "whole", set()
    expected = run(whole, replace(RECIPE, steps=3), evaluate=lambda *_: {"AP": 0.5}).state
    damages = {
        "truncated": lambda data: data[: len(data) // 2],
        "emptied": lambda data: b"",
        "changed": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
        "deleted": None,
    }
    names = [file.relative_to(whole) for file in whole.rglob("*") if file.is_file() and file.name not in LOGS]
    for number, (name, damage) in enumerate((name, damage) for name in names for damage in damages.values()):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        caplog.clear()
        (folder / name).write_bytes(damage((whole / name).read_bytes())) if damage else (folder / name).unlink()
        try:
            found = run(folder, replace(RECIPE, steps=3), existing="resume")
        except StartError as error:
            assert "\n" not in str(error) and not caplog.records
            if name.name == "scores.json":
                assert f"{folder / name} cannot be read (" in str(error)
                (folder / name).unlink()
                found = run(folder, replace(RECIPE, steps=3), existing="resume")
                assert not found.scores and all(map(np.array_equal, *map(jax.tree.leaves, (found.state, expected))))
            else:
                assert f"from {folder / 'checkpoints/3'} (" in str(error) or "to go on from" in str(error)
            failed.add(str(Path(*name.parts[1:4])))
        else:
            assert all(map(np.array_equal, jax.tree.leaves(found.state), jax.tree.leaves(expected)))
            is_lost = name.name == "scores.json" and damage is None
            assert found.scores == ({} if is_lost else {"3": {"AP": 0.5}})
    needed = {f"3/state/{name}" for name in ("d", "manifest.ocdbt", "_METADATA")}
    assert needed | {"scores.json", "3/settings/metadata"} <= failed


def test_the_time_that_remains_is_without_compilation(tmp_path, monkeypatch):
    """And without evaluations: both take longer than the line of progress counts."""
    bars, seconds = [], 0.3

    def bar(*arguments, **options):
        bars.append(tqdm(*arguments, **options))
        return bars[-1]

    @jax.jit
    def step(state, batch):
        time.sleep(seconds)  # while jax traces
        return state, {"loss": jnp.sum(batch)}

    def evaluate(*_):
        time.sleep(seconds)
        return {"AP": 0.5}

    monkeypatch.setattr("examples.library.measurements.tqdm", bar)
    began = time.time()
    sizes = [1, 1, 2]  # two programs
    load = lambda steps: (jnp.ones(sizes[number]) for number in steps)  # noqa: E731
    state = {"x": jnp.ones(())}
    fit(Work(step, lambda: state, state, load, evaluate), Recipe(3, evaluate_every=2), tmp_path)
    assert bars[0].format_dict["elapsed"] < time.time() - began - 4 * seconds


def test_steps_are_started_before_earlier_ones_are_fetched(tmp_path):
    """Two more, but none after one that is saved."""
    events = []

    class Loss:
        def __init__(self, number):
            self.number = number

        def __array__(self, *_, **__):
            events.append(f"fetch {self.number}")
            return np.float32(0)

    def step(state, batch):
        events.append(f"start {batch}")
        return state, {"loss": Loss(batch)}

    state = {"x": jnp.zeros(())}
    fit(Work(step, lambda: state, state, iter), Recipe(6, checkpoint_every=5), tmp_path)
    expected = (
        "start 0, fetch 0, start 1, start 2, start 3, fetch 1, start 4, fetch 2, fetch 3, fetch 4, start 5, fetch 5"
    )
    assert events == expected.split(", ")


@pytest.mark.slow
def test_twenty_thousand_steps(tmp_path):
    """Neither checkpoints nor the memory of the process grow with the steps."""
    sizes, memory = {}, {}

    @jax.jit
    def step(state, batch):
        return {"sum": state["sum"] + batch}, {"loss": state["sum"]}

    def evaluate(state, count, scores):
        sizes[count] = sum(file.stat().st_size for file in (tmp_path / "checkpoints" / str(count)).rglob("*"))
        memory[count] = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        return {}

    recipe = Recipe(20_000, checkpoint_every=10_000, evaluate_every=5000)
    zero = {"sum": jnp.zeros(())}
    found = fit(Work(step, lambda: zero, zero, partial(map, float), evaluate), recipe, tmp_path)
    assert found.losses[-1] == np.cumsum(np.arange(19_999), dtype=np.float32)[-1] and len(found.losses) == 20_000
    assert max(sizes.values()) - min(sizes.values()) < 100
    assert memory[20_000] - memory[10_000] < 2**22
