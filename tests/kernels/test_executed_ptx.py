"""The PTX interpreter finds each kind of fault in the small kernels of toys.cu, and none where there is none.

The package's kernels run in it in test_operators.py.
"""

import re

import pytest

from benchmarks.lowering import executed_ptx
from benchmarks.lowering.executed_ptx import run

from . import build

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.slow,
    pytest.mark.skipif(executed_ptx.missing() is not None, reason=str(executed_ptx.missing())),
]

TOYS = build.HERE / "toys.cu"
RIGHT = {  # what the 64 threads write
    "rotate": [100 + (lane + 1) % 64 for lane in range(64)],
    "warp": list(range(64)),
}
WRONG = {
    "unwritten": "reads memory that was not written",
    "misaligned": "is misaligned",
    "static_beyond": "out of bounds of its variable",
    "divergent_barrier": r"waits for lanes 0x00000020 of its warp, .* have ended",
    "divergent_shuffle": r"waits for lanes 0x00000020 of its warp, .* have ended",
    "rotate_without_first_barrier": "is a race: it .* what another thread",
    "rotate_without_second_barrier": "is a race: it .* what another thread",
    "warp_without_barrier": "is a race: it reads what another thread writes",
    "overlapping_blocks": "is a race: it writes what another block writes",
    "unknown_instruction": "the interpreter has no nanosleep.u32",
    "no_blocks": "invalid configuration argument",
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_toys_are_clean(name):
    status, output = run(executed_ptx.program(TOYS), name)
    assert status == 0, output
    assert [int(value) for value in output.split()] == RIGHT[name]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_toys_are_found(name):
    status, output = run(executed_ptx.program(TOYS), name)
    assert status != 0
    assert re.search(WRONG[name], output), output
