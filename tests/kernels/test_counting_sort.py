"""The counting sort agrees with numpy's stable sort."""

import numpy as np
import pytest

from benchmarks.lowering import executed_ptx

from . import build

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.slow,
    pytest.mark.skipif(executed_ptx.missing() is not None, reason=str(executed_ptx.missing())),
]

NO_ROW = -1
SHARED_ROWS = 1024 * 256 + 63  # of a table whose rows are all counted in shared memory


def sort(folder, rows, row, words):
    """Row starts and values, for the rows [tables, entries] of the entries.

    A value has one, two or four words, and an item two, four or one entries.
    """
    program = executed_ptx.program(build.HERE / "sorts.cu")
    sizes = [row.shape[0], rows, row.shape[1], words]
    np.concatenate([sizes, row.ravel()]).astype(np.int32).tofile(folder / "operands")
    status, output = executed_ptx.run(program, folder / "operands", folder / "results")
    assert status == 0, output
    starts, values = np.split(np.fromfile(folder / "results", np.int32), [row.shape[0] * (rows + 1)])
    return starts.reshape(-1, rows + 1), values.reshape(*row.shape, words)


def random_rows(rows, tables, entries, missing=0.1):
    random = np.random.default_rng(0)
    row = random.integers(0, rows, (tables, entries))
    return np.where(random.random(row.shape) < missing, NO_ROW, row)


# The number of rows, and the row of each entry in each table.
CASES = {
    "no tables": (5, np.zeros((0, 4), int)),
    "no rows": (0, np.full((2, 6), NO_ROW)),
    "no entries": (300, np.zeros((3, 0), int)),
    "no entry has a row": (300, np.full((2, 100), NO_ROW)),
    "one row": (1, random_rows(1, 2, 9000)),
    "three rows, two shares": (3, random_rows(3, 2, 8194)),
    "one bin": (63, random_rows(63, 2, 3000)),
    "two bins": (64, random_rows(64, 2, 3000)),
    "one longer bin": (127, random_rows(127, 2, 500)),
    "two longer bins": (128, random_rows(128, 2, 500)),
    "a bin that is just stored": (32, random_rows(32, 2, 576, missing=0)),
    "a bin that is just not stored": (32, random_rows(32, 2, 578, missing=0)),
    "all entries in one row": (1000, np.full((2, 20000), 700)),
    "all entries in the last row of many": (SHARED_ROWS + 200, np.full((1, 20000), SHARED_ROWS + 199)),
    "one entry per row": (5000, np.random.default_rng(1).permutation(5000)[None]),
    "one entry per row of many": (SHARED_ROWS + 1, np.random.default_rng(1).permutation(SHARED_ROWS + 1)[None]),
    "most rows of short bins": (1024 * 32 + 31, random_rows(1024 * 32 + 31, 1, 200_000)),
    "one row more": (1024 * 32 + 32, random_rows(1024 * 32 + 32, 1, 200_000)),
    "most rows counted in shared memory": (SHARED_ROWS, random_rows(SHARED_ROWS, 2, 3000)),
    "fewest rows counted in global memory": (SHARED_ROWS + 1, random_rows(SHARED_ROWS + 1, 2, 3000)),
    "most shares of short bins": (3000, random_rows(3000, 1, 16 * 12 * 64 * 6)),  # of 12 warps, with 64 entries a step
    "most shares": (40000, random_rows(40000, 1, 32 * 12 * 64 * 6)),
}


# The same for longer values: the number of words, and a case for each way to count.
LONG_CASES = {
    "two words, few entries per bin": (2, 300, random_rows(300, 3, 1000)),
    "two words, many entries per bin": (2, 300, random_rows(300, 3, 9000)),
    "two words, counted in global memory": (2, SHARED_ROWS + 1, random_rows(SHARED_ROWS + 1, 2, 3000)),
    "four words in a bin that is just stored": (4, 32, random_rows(32, 2, 400, missing=0)),
    "four words in a bin that is just not stored": (4, 32, random_rows(32, 2, 401, missing=0)),
}


@pytest.mark.parametrize("name", [*CASES, *LONG_CASES])
def test_order(name, tmp_path):
    words, rows, row = LONG_CASES[name] if name in LONG_CASES else (1, *CASES[name])
    starts, values = sort(tmp_path, rows, row, words)
    for own, own_starts, own_values in zip(row, starts, values, strict=True):
        order = np.argsort(own, kind="stable")[np.count_nonzero(own == NO_ROW) :]
        np.testing.assert_array_equal(own_starts, np.searchsorted(own[order], np.arange(rows + 1)))
        expected = np.stack([order if k % 2 == 0 else ~order for k in range(words)], -1)
        np.testing.assert_array_equal(own_values[: order.size], expected)
