"""The exchanges between devices on tiny shapes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks import scaling
from benchmarks.lowering.hlo import collectives
from benchmarks.measurements import deform_conv, roi_pool
from tests.helpers.sharding import make_mesh

pytestmark = pytest.mark.platforms("cpu")

TINY = {
    "convolution": deform_conv.Shape(4, 4, 5, 8, 6),
    "large": deform_conv.Shape(1, 8, 5, 8, 6),
    "pooling": roi_pool.Shape(4, 4, 5, 2, rois=8),
}
WEIGHT, BIAS, X, OFFSET, MASK = 9 * 8 * 6, 6, 4 * 4 * 5 * 8, 4 * 4 * 5 * 18, 4 * 4 * 5 * 9
POOLED = 4 * 4 * 5 * 2


@pytest.mark.parametrize(
    "name, forward, both",
    [
        ("images, bfloat16", 0, WEIGHT + BIAS),
        ("images, weight kept in parts", WEIGHT + BIAS, 2 * (WEIGHT + BIAS)),
        ("images, and features in 2", 0, (WEIGHT + BIAS + X + OFFSET + MASK) / 2),
        ("rows, x split too", X / 2, X + WEIGHT + BIAS),
        ("images that regions name", POOLED, 2 * POOLED),
    ],
)
def test_rows(name, forward, both, monkeypatch):
    monkeypatch.setattr(scaling, "SHAPES", TINY)
    (split,) = (split for split in (*scaling.CONVOLUTIONS, *scaling.POOLINGS) if split.name == name)
    devices = 2 * split.b
    row = scaling.row(name, devices, scaling.programs(split, devices))
    assert scaling.total(row.forward) == 4 * forward
    assert scaling.total(row.both) == row.least == 4 * both
    assert row.without_rules > row.least
    assert name in scaling.table([row])


def test_a_loop_exchanges_whenever_it_runs():
    mesh = make_mesh(shape=(2,))

    def loop(x):
        def step(carry, _):
            return jax.lax.psum(jnp.cos(x * carry), "a"), None

        return jax.lax.scan(step, jnp.ones(x.shape), length=3)[0]

    function = jax.shard_map(loop, mesh=mesh, in_specs=P("a"), out_specs=P())
    assert len(collectives(jax.jit(function).lower(jnp.ones(4)).compile())) == 3
