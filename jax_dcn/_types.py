"""Types that several public functions take."""

Pair = int | tuple[int, int]
Padding = str | int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]
