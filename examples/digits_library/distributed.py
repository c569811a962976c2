"""Training by several processes: their command line options, and how they connect."""

import argparse
import os

import jax

# If a process sends no heartbeat for this time, the others end. By default jax waits for 100 s.
HEARTBEAT_TIMEOUT_SECONDS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--distributed` and the options that go with it."""
    description = "Each is started with the same command but for its --process-id; the first one writes the results."
    add = parser.add_argument_group("several processes", description).add_argument
    add("--distributed", action="store_true", help="share every batch among all devices of all processes")
    add("--coordinator", metavar="HOST:PORT", help="where the first process listens (JAX_COORDINATOR_ADDRESS)")
    add("--processes", type=int, metavar="N", help="how many there are (JAX_NUM_PROCESSES)")
    add("--process-id", type=int, metavar="ID", help="which one this is, from 0 on (JAX_PROCESS_ID)")


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    for name in ("coordinator", "processes", "process_id"):
        if getattr(options, name) is not None and not options.distributed:
            parser.error(f"--{name.replace('_', '-')} needs --distributed")


def start(options: argparse.Namespace) -> list[jax.Device]:
    """The devices to train on: one, or with `--distributed` those of all processes, once they are connected."""
    if not options.distributed:
        return jax.devices()[:1]
    jax.distributed.initialize(
        options.coordinator,
        _number(options.processes, "JAX_NUM_PROCESSES"),
        _number(options.process_id, "JAX_PROCESS_ID"),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
    )
    return jax.devices()


def _number(given, variable):
    """Reads the variable, because jax itself reads only the coordinator's. For None, jax asks the cluster if it can."""
    return int(os.environ[variable]) if given is None and variable in os.environ else given
