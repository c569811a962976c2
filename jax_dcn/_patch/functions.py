"""The public class, which replaces the functions in the table of `targets`."""

import sys
import threading
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from inspect import Parameter, Signature, signature, unwrap
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Self

import jax

from jax_dcn._patch import adapters
from jax_dcn._patch.targets import BY_NAME, LIBRARIES, TARGETS, Target


class Found(NamedTuple):
    """A function that a `Target` names. It stays the same object, wherever it is kept, and only its code changes."""

    function: FunctionType
    original: CodeType
    new: CodeType


_found: dict[str, list[Found]] = {}  # by library, while at least one `patch` of it is not undone
_count: dict[str, int] = {}  # of those
_originals: dict[str, FunctionType] = {}  # by the name of the target, for calls that are left to them
_calls_left: dict[str, set[str]] = {}  # by library, the kinds of those calls
_lock = threading.RLock()  # protects these and the code of the functions


class patch:
    """Makes the models of another library use the kernels of this package, until `undo` or the end of a `with` block.

    It replaces the functions that sample feature maps: in ``"zeromodels"`` those of RF-DETR, RT-DETR, RT-DETRv2,
    D-FINE, Grounding DINO, Mask2Former, OneFormer and SAM3, in ``"keras_hub"`` that of D-FINE, in ``"scenic"`` those of
    Deformable DETR and CenterNet, in ``"jax_raft"`` that of RAFT, in ``"dm_pix"`` its linear interpolation, and in
    ``"jax"`` itself ``jax.scipy.ndimage.map_coordinates``, by which Keras and many other libraries sample. In
    ``"optax"`` it replaces ``optax.assignment.hungarian_algorithm``. docs/patch.md names the functions and the versions
    that were tried, and says where they gain how much.

    Parameters and checkpoints stay as they are, and values and gradients are the same up to rounding. A patch applies
    to the whole process: a replaced function gets other code and stays the same object, with its name, signature and
    docstring, so that it changes wherever it is kept, also in models that exist. Functions that `jax.jit` has compiled
    change, too, because all of jax's caches are cleared, here and when it is undone; so enter a block once, around all
    calls, and while no other thread traces. What `lower(...).compile()` has returned stays as it is. If a library is
    patched several times, its functions are restored when the last `patch` is undone.

    Args:
      library: the name of a package that can be imported, one of those above.

    Attributes:
      replaced: the full names of the functions that are replaced.
      left: the kinds of calls that were left to the original function, because the kernels do not compute them or would
        give other values; each is the name of the function and why.

    Raises:
      ValueError: the library is none of those above.
      ImportError: the library is not installed, or has none of the functions.
      RuntimeError: Keras has another backend than JAX.

    Warns:
      UserWarning: the version was not tried, or some functions are not in the library or have other parameters. The
        message names these, and they stay as they are.

    Example:
      ::

        jax_dcn.patch("zeromodels")  # for as long as the program runs

        with jax_dcn.patch("keras_hub"):
            model.fit(data)

      >>> import jax_dcn
      >>> with jax_dcn.patch("jax") as patch:
      ...     patch.replaced
      ('jax.scipy.ndimage.map_coordinates',)
    """

    def __init__(self, library: str) -> None:
        if library not in LIBRARIES:
            raise ValueError(f"library must be one of {', '.join(map(repr, LIBRARIES))}, got {library!r}")
        with _lock:
            found = _find(library)
            if found:
                _switch(found, on=True)
            _found[library] = [*_found.get(library, ()), *found]
            _count[library] = _count.get(library, 0) + 1
            self.replaced = tuple(str(target) for target in TARGETS if target.library == library and _is_ours(target))
            self._left = _calls_left.setdefault(library, set())
        self.library = library
        self._is_undone = self._is_entered = False

    @property
    def left(self) -> tuple[str, ...]:
        with _lock:
            return tuple(sorted(self._left))

    def undo(self) -> None:
        """Restores the functions of the library, if no other `patch` of it is active. A second call does nothing."""
        with _lock:
            if not self._is_undone:
                if _count[self.library] == 1:
                    _switch(_found[self.library], on=False)
                    del _found[self.library], _calls_left[self.library]
                self._is_undone = True
                _count[self.library] -= 1

    def __reduce__(self) -> str:
        raise TypeError(f"patch({self.library!r}) cannot be copied or pickled, because it can be undone only once")

    def __enter__(self) -> Self:
        with _lock:
            if self._is_undone or self._is_entered:
                state = "undone" if self._is_undone else "entered"
                raise RuntimeError(
                    f"patch({self.library!r}) has been {state} and cannot be entered: call `patch` again"
                )
            self._is_entered = True
            return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def _find(library: str) -> list[Found]:
    """The functions in the library, which is imported, except those that are replaced already.

    Raises an error or warns if some are missing.
    """
    distribution, tried, uses_keras = LIBRARIES[library]
    if find_spec(library) is None:
        raise ModuleNotFoundError(f"patch({library!r}) needs {distribution}, which is not installed", name=library)
    if uses_keras:
        _check_backend(library)
    found, missing = [], []
    for target in TARGETS:
        if target.library == library and not _is_ours(target):
            try:
                found.append(_checked(target))
            except (ImportError, AttributeError, TypeError) as reason:
                missing.append(f"{target} ({reason})")
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        installed = "of an unknown version"
    not_found = f"did not find {', '.join(missing)}" if missing else "found all that it replaces"
    if not found and library not in _found:
        raise ImportError(f"patch({library!r}) {not_found} in {library} {installed}")
    if missing or (installed not in tried and library not in _found):
        message = f"patch({library!r}), which was tried with {', '.join(tried)}, {not_found} in {library} {installed}"
        warnings.warn(message, stacklevel=3)
    return found


def _is_ours(target: Target) -> bool:
    """Whether the function is replaced. After a reload it is not."""
    try:
        present = unwrap(target.of(sys.modules.get(target.module)))
    except AttributeError:
        return False
    return any(present is one.function for one in _found.get(target.library, ()))


def _check_backend(library: str) -> None:
    needs = f"patch({library!r}) needs Keras on JAX: set KERAS_BACKEND=jax before keras is imported"
    try:
        backend = import_module("keras").config.backend()
    except ImportError as error:  # that of another backend, which is not installed
        raise ImportError(f"{needs} ({error})") from error
    if backend != "jax":
        raise RuntimeError(f"{needs}, its backend is {backend!r}")


def _checked(target: Target) -> Found:
    """Raises an error if the function is not as in the versions that were tried."""
    function: Any = unwrap(target.of(import_module(target.module)))
    if not isinstance(function, FunctionType) or function.__code__.co_freevars:
        raise TypeError(f"it must be a function of a module or a class, got {function!r}")
    theirs, ours = (", ".join(signature(one).parameters) for one in (function, target.replacement))
    if theirs != ours:
        raise TypeError(f"its parameters must be {ours}, got {theirs}")
    original = function.__code__
    _originals[str(target)] = FunctionType(original, function.__globals__)
    return Found(function, original, _code(function, target))


def _code(function: FunctionType, target: Target) -> CodeType:
    """Code with the parameters of a function, which makes a `call`. It runs with the globals of the function."""
    name = function.__name__
    parameters = Signature([Parameter(one.name, one.kind) for one in signature(function).parameters.values()])
    lines = [
        f"def {name}{parameters}:",
        f"    from {__name__} import call",
        f"    return call({str(target)!r}, {', '.join(f'{one}={one}' for one in parameters.parameters)})",
    ]
    names: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<jax_dcn.patch of {target}>", "exec"), names)
    code: CodeType = names[name].__code__
    return code


def call(target: str, /, **arguments: Any) -> Any:
    """The result of what replaces a function, or if that raises `Left`, of the original function."""
    replaced = BY_NAME[target]
    try:
        return replaced.replacement(**arguments)
    except adapters.Left as reason:
        kind = f"{target}: {reason}"
    with _lock:
        _calls_left.get(replaced.library, set()).add(kind)
    return _originals[target](**arguments)


def _switch(found: list[Found], on: bool) -> None:
    """Replaces the code of the functions, or restores it."""
    for function, original, new in found:
        function.__code__ = new if on else original
    jax.clear_caches()
