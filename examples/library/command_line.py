"""The parser of all commands, which also connects processes and keeps compiled programs for later starts."""

import argparse
import atexit
import contextlib
import logging
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import jax

REPEATABLE = {"--set"}
# The others end if a process sends no heartbeat for this time, or waits for them so long after an error of its own.
TIMEOUT_SECONDS = 20
OF_OTHERS = ("heartbeat", "coordination service", "Gloo", "Barrier failed")  # in errors because another one has ended
LAST_LINE = (
    "error: this process was killed, or another process of this run has ended, whose messages say why. "
    "Start all of them again; a training goes on from the last checkpoint with --resume."
)


class Parser(argparse.ArgumentParser):
    """A parser that takes options only by their whole names and, unless they are REPEATABLE, only once.

    compiles: whether the command compiles programs. distributed: whether several processes can run it together.
    """

    def __init__(self, program: str, description: str, *, compiles: bool = True, distributed: bool = False):
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(program, description=description, formatter_class=as_written, allow_abbrev=False)
        self._compiles = compiles
        if compiles:
            cache_help = "compile all programs anew, and keep none for later starts"
            self.add_argument("--no-cache", action="store_true", help=cache_help)
        if distributed:
            distributed_help = (
                "share each batch among the devices of several processes: HOST:PORT where the first one listens, how "
                "many there are, and which one this is, from 0 on; nothing where JAX knows the cluster, as on Slurm"
            )
            self.add_argument("--distributed", nargs="*", metavar="PLACE", help=distributed_help)

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """As of the base class. Ends the command with an error if an option is given twice.

        From then on warnings are printed as their text only, the process is connected with the others of
        `--distributed`, of which only the first one prints, and JAX keeps compiled programs, unless the command line or
        JAX's own settings say otherwise.
        """
        logging.basicConfig()  # adds a handler, unless there is one
        for handler in logging.root.handlers:
            handler.setFormatter(logging.Formatter("%(message)s"))
        args = sys.argv[1:] if args is None else args
        options = super().parse_args(args)
        names = Counter(text.partition("=")[0] for text in takewhile(lambda text: text != "--", args))
        self.given = {name for name in names if name.startswith("--")}
        for name in self.given:
            if names[name] > 1 and name not in REPEATABLE:
                self.error(f"{name} must be given once, got it {names[name]} times")
        if (places := getattr(options, "distributed", None)) is not None:
            self._connect(places)
        if self._compiles:
            if options.no_cache:
                jax.config.update("jax_enable_compilation_cache", False)
            _keep_programs()
        return options

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Ends the command with a message after an error of its files, of data, or of a package that is missing."""
        try:
            yield
        except (ImportError, OSError, ValueError) as error:
            self.error(str(error))

    def _connect(self, places: Sequence[str]) -> None:
        if len(places) not in (0, 3) or (places and ":" not in places[0]):
            self.error("--distributed takes HOST:PORT, the number of processes and the number of this one, or nothing")
        timeouts = {f"{what}_timeout_seconds": TIMEOUT_SECONDS for what in ("heartbeat", "shutdown")}
        try:
            jax.distributed.initialize(*places[:1], *map(int, places[1:]), **timeouts)
        except (RuntimeError, ValueError) as error:
            self.error(f"--distributed {' '.join(places)}: {error}")
        _watch()
        if jax.process_index() > 0:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def number(kind: type, low: float = 0, high: float = math.inf) -> Callable[[str], Any]:
    """A converter for `add_argument`, from a text to a finite number in a range."""

    def converted(text):
        found = kind(text)
        if not (math.isfinite(found) and low <= found <= high):
            of_range = "positive" if low == 1 and high == math.inf else f"between {low} and {high}"
            raise argparse.ArgumentTypeError(f"must be {of_range}, got {text}")
        return found

    converted.__name__ = kind.__name__  # which messages about other texts have
    return converted


COUNT, FRACTION = number(int, 1), number(float, 0, 1)


def _watch():
    """Has another process print LAST_LINE unless this one ends in an orderly way.

    XLA aborts this process when another one has ended, often while Python waits in a collective operation.
    """
    script = f"trap '' INT TERM; read line || printf '\\n%s\\n' '{LAST_LINE}' >&2"
    shell = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    atexit.register(shell.communicate, b"\n")  # before JAX, which may abort too, disconnects


@contextlib.contextmanager
def ending_with_others() -> Iterator[None]:
    """Ends this process at once if an operation fails because another process of `--distributed` has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() > 1 and any(word in str(error) for word in OF_OTHERS):
            os._exit(1)  # to disconnect would take time, and messages
        raise


def _keep_programs():
    """Makes JAX keep compiled programs in one folder per user, and prints it, unless JAX's settings forbid it."""
    if not jax.config.jax_enable_compilation_cache:
        return
    if not jax.config.jax_compilation_cache_dir:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(caches, "jax_dcn", "programs")))
    folder = jax.config.jax_compilation_cache_dir
    try:
        if "://" not in folder:  # JAX also takes folders of clouds
            Path(folder).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        jax.config.update("jax_enable_compilation_cache", False)
        print(f"Compiled programs are not kept for later starts: {error}")
    else:
        print(f"Compiled programs are kept in {folder} for later starts; --no-cache keeps none.")
