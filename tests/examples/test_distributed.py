"""Training by two processes of four CPU devices each, as on two machines."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from numpy.testing import assert_allclose

from examples.detector.losses import loss
from examples.detector.model import Detector
from examples.digits_library.train import Recipe, train

pytestmark = pytest.mark.platforms("cpu")

TINY = {"widths": (8, 8, 8, 8), "blocks": (1, 1, 1)}
MODEL = Detector(10, operator="deformable", **TINY)
RECIPE = Recipe(steps=10, learning_rate=1e-2, checkpoint_every=2)
PROGRAM = f"""
import sys
from functools import partial
from examples.detector import __main__ as detector
detector.Detector = partial(detector.Detector, **{TINY})
detector.main(sys.argv[1:])
"""
OPTIONS = [
    *("--variants", "deformable", "--validation-images", "8"),
    *("--steps", "10", "--learning-rate", "1e-2", "--checkpoint-every", "2"),
]
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # optimizations take longer than they save
    "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4",
}


@contextlib.contextmanager
def two_processes(out, *options):
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    command = [sys.executable, "-c", PROGRAM, *OPTIONS, *options, "--out", out, "--distributed", address, "2"]
    with contextlib.ExitStack() as stack:
        processes = []
        for number in "01":
            process = subprocess.Popen(
                [*command, number],
                cwd=Path(__file__).parents[2],
                env=os.environ | ENVIRONMENT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        yield processes


def saved_steps(checkpoints):
    return [int(folder.name) for folder in checkpoints.glob("*") if folder.name.isdigit()]


def start_and_end(out, checkpoints, number):
    """Starts a run of two processes, one of which gets a signal; the other one ends then."""
    with two_processes(out) as (first, second):
        patience = time.monotonic() + 120
        while not saved_steps(checkpoints) and first.poll() is second.poll() is None and time.monotonic() < patience:
            time.sleep(0.05)
        second.send_signal(number)
        _, errors = first.communicate(timeout=120)
    assert first.returncode != 0
    assert ("Interrupted after step" in errors) == (number == signal.SIGTERM), errors
    assert saved_steps(checkpoints), errors


@pytest.mark.thorough
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_goes_on_on_other_devices_as_if_never_interrupted(number, tmp_path):
    """A run on eight devices of one process, or of two, continues on one device, then on eight of two processes."""
    checkpoints = tmp_path / "checkpoints" / "deformable-0"
    uninterrupted = train(MODEL, loss, RECIPE, 0, tmp_path / "uninterrupted")
    if number:
        start_and_end(tmp_path, checkpoints, number)
    else:
        train(MODEL, loss, RECIPE, 0, checkpoints, stop_after=3, devices=jax.devices()[:8])

    step = max(saved_steps(checkpoints))
    log = json.loads((checkpoints / str(step) / "log" / "metadata").read_text())
    resumed = train(MODEL, loss, RECIPE, 0, checkpoints, resume=True, stop_after=step + 2)
    assert resumed.milliseconds[:step] == [one["milliseconds"] for one in log["history"]]

    with two_processes(tmp_path, "--resume") as processes:
        output, errors = zip(*(process.communicate(timeout=240) for process in processes), strict=True)
    assert [process.returncode for process in processes] == [0, 0], errors
    assert ["AP50" in text for text in output] == [True, False]
    (run,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    # Sums over the batch round differently on several devices. Each update multiplies the difference: on one processor
    # from 1e-7 to 5e-6 two updates after the run went on, and to 1.5e-4 at the end. Losses of different batches differ
    # by 1e-2.
    assert_allclose(run["losses"][: step + 2], uninterrupted.losses[: step + 2], rtol=2e-5)
    assert_allclose(run["losses"], uninterrupted.losses, rtol=1e-3)
    assert [folder.name for folder in checkpoints.iterdir()] == ["10"]


def test_a_batch_that_the_devices_cannot_share_is_refused(tmp_path):
    recipe = dataclasses.replace(RECIPE, batch_size=6)
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 4 devices, got 6"):
        train(MODEL, loss, recipe, 0, tmp_path, devices=jax.devices()[:4])
