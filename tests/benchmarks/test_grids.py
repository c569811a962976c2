"""The table of grids, whose launches come from the package's launchers."""

import pytest

from benchmarks import grids
from benchmarks.measurements.deform_conv import CONVOLUTION, SHAPES

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(grids.missing() is not None, reason=str(grids.missing())),
]


def test_samples_are_sorted_once_for_many_parts():
    problem = CONVOLUTION.problem(SHAPES["C"]._replace(batch=16), "bfloat16")
    found = grids.launches(CONVOLUTION.function, problem, ("x",))
    blocks = {name.partition("<")[0]: [record["blocks"] for record in found[name]] for name in found}
    # 3 parts and 9 thread blocks of bins, of each of 16 images; then the pixels of 8 images at a time, 2 in a warp.
    assert blocks == {"PartitionKernel": [48], "SortBinsKernel": [136], "XCotangentKernel": [1050] * 2}


def test_a_row_has_the_smallest_grid():
    launch = {"blocks": 1056, "threads": 256}
    assert grids.row([launch, launch]) == (2, "1,056", 256, "64")
    assert grids.row([launch, launch | {"blocks": 132}]) == (2, "132 to 1,056", 256, "**8**")
