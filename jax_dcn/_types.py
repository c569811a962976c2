"""Types that several functions take."""

from typing import Any, Literal, Protocol

Pair = int | tuple[int, int]
Padding = str | int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]
Backend = Literal["fused", "im2col", "reference"] | None  # of a convolution; None: its `plan` chooses


class Shaped(Protocol):
    """An array, or a `jax.ShapeDtypeStruct`. Sizes may be symbolic dimensions of `jax.export`, which act like ints."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...
