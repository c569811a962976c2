"""Switches for tests and benchmarks. What is traced has their values as static parameters."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allow_fused = ContextVar("allow_fused", default=True)


def is_fused_path_allowed() -> bool:
    return _allow_fused.get()


@contextmanager
def without_fused_path() -> Iterator[None]:
    """Has deformable convolutions that are traced within take the plain path.

    What was traced before keeps its path, because `jax.jit`, `jax.lax.scan`, `jax.checkpoint` and other
    transformations cache what they traced by the function object. `without_fused_path()(function)` is another function
    object, with cache entries of its own: `jax.jit(without_fused_path()(function))` takes the plain path.
    """
    token = _allow_fused.set(False)
    try:
        yield
    finally:
        _allow_fused.reset(token)
