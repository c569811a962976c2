"""The table of grids, whose launches come from the package's launchers."""

import re

import pytest

from benchmarks import grids
from benchmarks.measurements import kernel_costs
from benchmarks.measurements.deform_conv import CONVOLUTION, SHAPES

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(kernel_costs.missing() is not None, reason=str(kernel_costs.missing())),
]


def test_samples_are_sorted_once_for_many_chunks():
    problem = CONVOLUTION.problem(SHAPES["C"]._replace(batch=16), "bfloat16")
    found = grids.launches(CONVOLUTION.function, problem, ("x",))
    blocks = {re.search(r"\d([A-Z]\w+?Kernel)I", name)[1]: [r["grid"] for r in found[name]] for name in found}
    # 3 chunks and 9 thread blocks of bins, of each of 16 images; then the pixels of 4 images at a time, 2 in a warp.
    assert blocks == {"PartitionKernel": [48], "SortBinsKernel": [136], "InputCotangentKernel": [525] * 4}


def test_a_row_has_the_smallest_grid():
    function = kernel_costs.device_code.Function("Kernel", 64, 0, [], [])
    launch = {"grid": 1056, "threads": 256, "static_shared": 0, "dynamic_shared": 0}
    assert grids.row(function, [launch, launch]) == ("Kernel", 2, "1,056", 256, 4, "2")
    assert grids.row(function, [launch, launch | {"grid": 264}]) == ("Kernel", 2, "264 to 1,056", 256, 4, "**0.5**")
