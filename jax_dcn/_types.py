"""Types that several functions take."""

from typing import Any, Literal, Protocol, TypeVar

A = TypeVar("A", covariant=True)  # an array, or its shape and type
Pair = int | tuple[int, int]
Sizes = int | tuple[int, ...]  # one for all axes, or one for each
Padding = str | int | tuple[int, ...] | tuple[tuple[int, int], ...]
Backend = Literal["fused", "im2col", "reference"] | None  # of a convolution; None: its `plan` chooses


class Shaped(Protocol):
    """An array, or a `jax.ShapeDtypeStruct`. Sizes may be symbolic dimensions of `jax.export`, which act like ints."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...
