"""The public function."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.assignment.primitive import Operands, assignment
from jax_dcn._primitive.promotion import sum_dtype


def linear_sum_assignment(
    cost: ArrayLike, *, maximize: bool = False, backend: Literal["reference"] | None = None
) -> jax.Array:
    """Solves the linear sum assignment problem, or weighted bipartite matching: the column assigned to each row.

    A column is assigned to at most one row. As many rows as possible have a column, min(N, M) if all pairs are
    permitted, and among these assignments, the sum of the costs is the least. A pair whose cost is infinite or NaN is
    forbidden. To leave out the padding of a batch, give its rows or columns infinite costs.

    The results of `scipy.optimize.linear_sum_assignment` are ``rows = numpy.flatnonzero(columns >= 0)`` and
    ``columns[rows]``; SciPy raises an error where a row would need a forbidden pair. Of several assignments of the same
    cost, SciPy may find another one. No gradient flows through the function. It works inside `jit` and `vmap`, and a
    sharded batch stays sharded. N and M must be known when it is traced.

    The problems of a batch are solved at the same time, each by one thread of a CPU or one thread block of a GPU, in
    float64. Where no kernels exist, and by ``backend="reference"``, they are solved in the type of the costs. Subnormal
    costs count as zero. The algorithm is the shortest augmenting paths of Jonker and Volgenant (Computing 38, 1987), a
    form of the Hungarian algorithm; its time is O(min(N, M)² · max(N, M)).

    Args:
      cost: [..., N, M], of a floating type, or of integers, which are rounded to float32, or to float64 where jax has
        it enabled. Without it, costs of float64 beyond the range of float32 are infinite.
      maximize: whether the sum is to be the greatest instead.
      backend: None for the kernels of the platform that the computation runs on, "reference" for the `jax.numpy` form.

    Returns:
      int32 [..., N], the column of each row, -1 for a row without one.

    Raises:
      TypeError, ValueError: an argument has the wrong type or shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_dcn import linear_sum_assignment
      >>> cost = jnp.array([[4, 1, 3], [2, 0, 5], [3, 2, 2], [9, 9, jnp.inf]])
      >>> linear_sum_assignment(cost).tolist()
      [1, 0, 2, -1]
    """
    costs = _validation.as_array("cost", cost)
    if jnp.issubdtype(costs.dtype, jnp.integer):
        costs = costs.astype(jax.dtypes.canonicalize_dtype(jnp.float64))
    costs = jax.lax.stop_gradient(_validation.array("cost", costs))
    _validation.rank("cost", costs, 2, "[..., N, M]", least=True)
    _validation.choice("maximize", maximize, (False, True))
    _validation.choice("backend", backend, _validation.BACKENDS)
    costs = costs.astype(sum_dtype(costs.dtype))
    return assignment(Operands(-costs if maximize else costs), spec=None, backend=backend)
