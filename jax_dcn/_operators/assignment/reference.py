"""The assignment in `jax.numpy`: shortest augmenting paths, as in lib/assignment/shortest_paths.h."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_dcn._primitive.jax_internals import vary_alike

SPAN_EXPONENT = 8  # of scaled costs; with 0, the scale of the largest numbers would be subnormal


class _State(NamedTuple):
    """The assignment of the rows so far, -1 where there is none, and the prices of rows and columns."""

    column_of: jax.Array
    row_of: jax.Array
    row_price: jax.Array
    column_price: jax.Array


class _Search(NamedTuple):
    """The shortest paths from a row. `row_before` is the row before a column, `end` the column of the last path."""

    distance: jax.Array
    row_before: jax.Array
    is_known: jax.Array
    length: jax.Array
    last: jax.Array
    end: jax.Array


def column_of_rows(costs: jax.Array) -> jax.Array:
    """The column of each row, int32 [..., rows], -1 for a row without one, for costs [..., rows, columns]."""
    *batch, rows, columns = costs.shape
    if 0 in costs.shape:
        return jnp.full((*batch, rows), -1, jnp.int32)
    problems = costs.reshape(math.prod(batch), rows, columns)
    if rows <= columns:
        found = jax.vmap(lambda costs: _solve(costs).column_of)(problems)
    else:
        found = jax.vmap(lambda costs: _solve(costs.T).row_of)(problems)
    return found.reshape(*batch, rows)


def _solve(costs: jax.Array) -> _State:
    """The assignment for costs [rows, columns], with no more rows than columns."""
    rows, columns = costs.shape
    is_permitted = jnp.isfinite(costs)
    low = jnp.min(costs, where=is_permitted, initial=jnp.inf)
    high = jnp.max(costs, where=is_permitted, initial=-jnp.inf)
    # Costs are shifted and scaled by a power of two to [0, 256]; the span itself may overflow. A forbidden pair costs
    # more than all others of an assignment together, so one is chosen only if every assignment needs one.
    half_span = jnp.maximum(high / 2 - low / 2, 0)
    _, exponent = jnp.frexp(half_span)
    wanted = jnp.minimum(SPAN_EXPONENT - exponent, jnp.finfo(costs.dtype).maxexp - 2)
    scale = jnp.where(half_span > 0, jnp.ldexp(jnp.asarray(0.5, costs.dtype), wanted), 0)
    scaled = jnp.where(is_permitted, costs * scale - low * scale, (rows + 2) * 2.0**SPAN_EXPONENT)

    def no_prices(count: int) -> jax.Array:
        return jnp.zeros(count, costs.dtype)

    def unassigned(count: int) -> jax.Array:
        return jnp.full(count, -1, jnp.int32)

    # The cost of a row without one would enter the prices, whose rounding grows with it.
    has_pair = is_permitted.any(1)

    def assign(row: jax.Array, state: _State) -> _State:
        after = _extended(state, _search(scaled, row, state), row)
        return jax.tree.map(partial(jnp.where, has_pair[row]), after, state)

    start = _State(unassigned(rows), unassigned(columns), no_prices(rows), no_prices(columns))
    start = _State(*vary_alike([costs, *start])[1:])
    state = jax.lax.fori_loop(jnp.int32(0), jnp.int32(rows), assign, start)
    forbidden = ~jnp.take_along_axis(is_permitted, state.column_of[:, None], 1)[:, 0]
    column_of = jnp.where(forbidden, -1, state.column_of)
    row_of = jnp.where(forbidden[state.row_of], -1, state.row_of)
    return state._replace(column_of=column_of, row_of=row_of)


def _search(costs: jax.Array, row: jax.Array, state: _State) -> _Search:
    """Dijkstra's search from a row for the nearest column without a row."""
    columns = costs.shape[1]

    def extend(search: _Search) -> _Search:
        through = search.length - state.row_price[search.last] + costs[search.last] - state.column_price
        is_shorter = ~search.is_known & (through < search.distance)
        distance = jnp.where(is_shorter, through, search.distance)
        row_before = jnp.where(is_shorter, search.last, search.row_before)
        open_distance = jnp.where(search.is_known, jnp.inf, distance)
        length = open_distance.min()
        # Of the nearest columns, one without a row ends the search.
        nearest = jnp.argmax((open_distance == length) * (1 + (state.row_of < 0))).astype(jnp.int32)
        last = state.row_of[nearest]
        end = jnp.where(last < 0, nearest, -1)
        return _Search(distance, row_before, search.is_known.at[nearest].set(True), length, last, end)

    unreached, length = jnp.full(columns, jnp.inf, costs.dtype), jnp.zeros((), costs.dtype)
    start = _Search(unreached, jnp.zeros(columns, jnp.int32), jnp.zeros(columns, bool), length, row, jnp.int32(-1))
    start = _Search(*vary_alike([costs, *start])[1:])
    return jax.lax.while_loop(lambda search: search.end < 0, extend, start)


def _extended(state: _State, search: _Search, first: jax.Array) -> _State:
    """The state after the path from the row `first` to the column `search.end`."""
    lowered = jnp.where(search.is_known, search.length - search.distance, 0)
    row_price = state.row_price.at[state.row_of].add(jnp.where(state.row_of < 0, 0, lowered))
    row_price = row_price.at[first].add(search.length)

    def augment(carried: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        column_of, row_of, column, _ = carried
        row = search.row_before[column]
        return column_of.at[row].set(column), row_of.at[column].set(row), column_of[row], row

    carried = tuple(vary_alike([state.column_of, state.row_of, search.end, jnp.int32(-1)]))
    column_of, row_of, *_ = jax.lax.while_loop(lambda carried: carried[3] != first, augment, carried)
    return _State(column_of, row_of, row_price, state.column_price - lowered)
