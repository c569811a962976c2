"""Arrays of more than 2^32 elements: the last block of each launch writes the last elements of the results."""

import pytest

from benchmarks.lowering import executed_ptx

from . import build

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.slow]


@pytest.mark.skipif(executed_ptx.missing() is not None, reason=str(executed_ptx.missing()))
def test_last_places():
    """Each operator with 2^20 batches, of a pixel and 8192 channels or of 4096 samples, and with a wide image."""
    status, output = executed_ptx.run(executed_ptx.program(build.HERE / "large.cu", has_kernels=True))
    if status == 2:
        pytest.skip(output)
    assert status == 0, output
