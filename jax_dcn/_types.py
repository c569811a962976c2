"""Types that several functions take."""

from typing import Any, Protocol

Pair = int | tuple[int, int]
Padding = str | int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]


class Shaped(Protocol):
    """An array, or a `jax.ShapeDtypeStruct`. Sizes may be symbolic dimensions of `jax.export`, which act like ints."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...
