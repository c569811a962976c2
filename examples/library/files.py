"""Files that are complete whenever they exist, their digests, and JSON that every reader takes."""

import contextlib
import hashlib
import json
import shutil
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


def delete(path: Path) -> None:
    """Deletes a file, or a folder and what is in it."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def digest(path: Path) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def to_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON, in which NaN and infinity, which JSON lacks, are null. default: as of `json.dumps`.

    >>> to_json({"AP": float("nan"), "AP50": 0.5})
    '{"AP": null, "AP50": 0.5}'
    """
    finite = json.loads(json.dumps(value, default=default), parse_constant=lambda _: None)
    return json.dumps(finite, allow_nan=False)
