"""Files that are complete whenever they exist, and JSON that every reader takes."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write to. Its file takes the place of `path` at the end, and is deleted after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def to_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON, in which NaN and infinity, which JSON lacks, are null. default: as of `json.dumps`.

    >>> to_json({"AP": float("nan"), "AP50": 0.5})
    '{"AP": null, "AP50": 0.5}'
    """
    finite = json.loads(json.dumps(value, default=default), parse_constant=lambda _: None)
    return json.dumps(finite, allow_nan=False)
