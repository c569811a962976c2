"""The parser of all commands."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

REPEATABLE = {"--set"}


class Parser(argparse.ArgumentParser):
    """A parser that takes options only by their whole names and, unless they are REPEATABLE, only once."""

    def __init__(self, program: str, description: str):
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(program, description=description, formatter_class=as_written, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """As of the base class. Ends the command with an error if an option is given twice."""
        args = sys.argv[1:] if args is None else args
        options = super().parse_args(args)
        names = Counter(text.partition("=")[0] for text in takewhile(lambda text: text != "--", args))
        for name, count in names.items():
            if name.startswith("--") and count > 1 and name not in REPEATABLE:
                self.error(f"{name} must be given once, got it {count} times")
        return options
