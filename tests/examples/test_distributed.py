"""Training by two processes of two CPU devices each, as on two hosts."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from examples.detr.train import main
from examples.library import precision
from examples.library.command_line import LAST_LINE
from tests.helpers import detr_training

pytestmark = pytest.mark.platforms("cpu")

STEPS = 8
PROGRAM = """
from examples.detr.train import main
from examples.library import precision
from tests.examples.test_distributed import summary

precision.average_precision = summary
main()
"""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # optimizations take longer than they save
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
}


def summary(truth, listed, **_):
    """In place of the average precision, which is 0 before a long training: numbers that lack no detection."""
    images = {found["image_id"] for found in listed}
    return {"AP": sum(found["score"] for found in listed), "AP50": len(listed), "AP75": len(images)}


@pytest.fixture
def options(digits_folder):
    data = [str(digits_folder / name) for name in ("train.json", "train")]
    validation = [str(digits_folder / name) for name in ("validation.json", "validation")]
    start = str(detr_training.FOLDER / "rt_detr_v2")
    few = ["--sizes", "64", "--batch-size", "4", "--steps", str(STEPS), "--warmup", "0", "--objects", "5"]
    few += ["--checkpoint-every", "3", "--evaluate-every", "4"]
    return [*data, "--checkpoint", start, "--validation", *validation, *few]


@contextlib.contextmanager
def two_processes(cache, arguments):
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    with contextlib.ExitStack() as stack:
        processes = []
        for number in "01":
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments, "--distributed", address, "2", number],
                cwd=Path(__file__).parents[2],
                env=os.environ | ENVIRONMENT | {"XDG_CACHE_HOME": str(cache)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        yield processes


def printed_by(processes):
    output, errors = zip(*(process.communicate(timeout=300) for process in processes), strict=True)
    assert not re.search("AP|rates|Classes|checkpoint", output[1])
    return output[0], errors


def saved_step(out):
    return max((int(folder.name) for folder in (out / "checkpoints").glob("*") if folder.name.isdigit()), default=0)


def train_until(step, number, out, cache, arguments):
    """Trains with two processes until a step is saved. Then one of them gets a signal, after which both end."""
    with two_processes(cache, [*arguments, "--resume"]) as (first, second):
        patience = time.monotonic() + 300
        while saved_step(out) < step and first.poll() is second.poll() is None and time.monotonic() < patience:
            time.sleep(0.05)
        second.send_signal(number)
        first.wait(30)
        printed, errors = printed_by([first, second])
    assert first.returncode != 0 and second.returncode != 0
    saved = saved_step(out)
    assert step <= saved < STEPS, errors
    for text in errors:
        assert (f"Interrupted after step {saved}, which is saved." in text) == (number == signal.SIGTERM), text
        assert (text.splitlines()[-1] == LAST_LINE) == (number == signal.SIGKILL), text
    return printed


@pytest.mark.thorough
def test_two_processes_do_what_one_does(options, digits_folder, tmp_path, monkeypatch):
    """Losses, batch norms that are trained, and detections are those of one process with one device.

    A run of two processes, which SIGTERM ends, goes on with two until one of them is killed, and then with one.
    """
    monkeypatch.setattr(precision, "average_precision", summary)
    main([*options, "--devices", "1", "--out", str(tmp_path / "one")])
    out, several = tmp_path / "several", [*options, "--out", str(tmp_path / "several")]
    printed = train_until(2, signal.SIGTERM, out, digits_folder, several)
    assert "Peak learning rates: " in printed
    train_until(saved_step(out) + 1, signal.SIGKILL, out, digits_folder, several)
    main([*several, "--devices", "1", "--resume"])
    logs = ((tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("several", "one"))
    assert_allclose(*([json.loads(step)["loss"] for step in log] for log in logs), rtol=1e-5)
    expected, found = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "several"))
    assert found["scores"].keys() == expected["scores"].keys() == {"4", "8"}
    for step, scores in found["scores"].items():
        assert_allclose([*scores.values()], [*expected["scores"][step].values()], rtol=1e-4)
    assert len((out / "log.jsonl").read_text().splitlines()) == saved_step(out) == STEPS

    data, (start, validation) = options[:2], (options.index(name) for name in ("--checkpoint", "--validation"))
    evaluation = [*data, *options[validation : validation + 3], options[start], str(out / "model"), "--evaluate-only"]
    with two_processes(digits_folder, [*evaluation, "--sizes", "64", "--batch-size", "4"]) as processes:
        printed, errors = printed_by(processes)
        assert [process.wait() for process in processes] == [0, 0], errors
    assert printed.splitlines()[-1].startswith("AP ") and "AP75 200.0" in printed
