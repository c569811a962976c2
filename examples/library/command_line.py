"""The parser of all commands, which also keeps their compiled programs for later starts."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import jax

REPEATABLE = {"--set"}


class Parser(argparse.ArgumentParser):
    """A parser that takes options only by their whole names and, unless they are REPEATABLE, only once.

    compiles: whether the command compiles programs.
    """

    def __init__(self, program: str, description: str, *, compiles: bool = True):
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(program, description=description, formatter_class=as_written, allow_abbrev=False)
        self._compiles = compiles
        if compiles:
            cache_help = "compile all programs anew, and keep none for later starts"
            self.add_argument("--no-cache", action="store_true", help=cache_help)

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """As of the base class. Ends the command with an error if an option is given twice.

        From then on JAX keeps compiled programs, unless the command line or JAX's own settings say otherwise.
        """
        args = sys.argv[1:] if args is None else args
        options = super().parse_args(args)
        names = Counter(text.partition("=")[0] for text in takewhile(lambda text: text != "--", args))
        for name, count in names.items():
            if name.startswith("--") and count > 1 and name not in REPEATABLE:
                self.error(f"{name} must be given once, got it {count} times")
        if self._compiles:
            if options.no_cache:
                jax.config.update("jax_enable_compilation_cache", False)
            _keep_programs()
        return options


def _keep_programs():
    """Makes JAX keep compiled programs in one folder per user, and prints it, unless JAX's settings forbid it."""
    if not jax.config.jax_enable_compilation_cache:
        return
    if not jax.config.jax_compilation_cache_dir:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(caches, "jax_dcn", "programs")))
    folder = jax.config.jax_compilation_cache_dir
    print(f"Compiled programs are kept in {folder} for later starts; --no-cache keeps none.")
