"""What is read from the text of a program for a GPU, on one that is written by hand."""

from pathlib import Path

import pytest

from benchmarks.lowering.launches import Launch, launches

pytestmark = pytest.mark.platforms("cpu")
PROGRAM = Path(__file__).with_name("launches.hlo.txt").read_text()


def test_launches():
    training, clipping = "examples/library/training.py:101", "optax/transforms/_clipping.py:105"
    assert launches(PROGRAM) == [
        Launch("input_reduce_fusion", "reduction", 4 * (8 * 4 + 4), clipping, training, 1),
        Launch("loop_add_fusion", "element-wise", 3 * 4 * 4, "-", "-", 1),
        Launch("rows", "element-wise", 2 * 2 * 4 * 4 + 4 * 4, "-", "-", 1),
        Launch("turned", "copy", 2 * 4 * 8 * 4, training, training, 1),
        Launch("product", "product", 4 * 8 * 4 + 2 * 4 * 4, "-", "-", 1),
        Launch("next", "element-wise", 3 * 4 * 4, "-", "-", 3),
        *2 * [Launch("copied", "copy", 2 * 4 * 4, "-", "-", 1)],
        Launch("result", "jax_dcn", 2 * 4 * 4, "-", "-", 1),
    ]
