"""The path that is chosen by estimated times: consistent, of the right GPU, and as the kernels' costs were counted."""

import itertools
import math
import types

import jax
import pytest

from benchmarks.counting import estimates
from benchmarks.counting.devices import DEVICES
from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.paths import planned, sizes_of
from benchmarks.reports.report import RESULTS
from jax_dcn._operators.deform_conv import cuda_tiles, gpu_estimate
from jax_dcn._operators.deform_conv.gpu_estimate import GPUS, MARGIN
from jax_dcn._primitive import target
from jax_dcn._primitive.target import Target

pytestmark = pytest.mark.platforms("cpu")
COMPUTATIONS = ("forward", "x", "offset", "weight")
CALLS = {
    "dcn_fused_forward": "forward",
    "dcn_fused_input_cotangent": "x",
    "dcn_fused_offset_cotangent": "offset",
    "dcn_fused_weight_cotangent": "weight",
}


def im2col_seconds(computation, sizes, gpu):
    return gpu_estimate.im2col_seconds([computation], sizes, gpu)


def shape_of(name, batch):
    return SHAPES[name]._replace(batch=batch)


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("name", "ABCDEFG")
def test_the_plan_takes_the_fastest_paths(name, capability):
    """The fastest of all combinations; gradients on the im2col path share columns and products."""
    for batch in (1, 4, 16):
        sizes, gpu = sizes_of(shape_of(name, batch)), GPUS[capability]
        plan = planned(shape_of(name, batch), f"{capability // 10}.{capability % 10}")
        for together in (["forward"], ["x", "offset", "weight"]):
            estimated = [one for one in together if plan[one].reason.startswith(f"estimates for sm_{capability}")]
            assert set(together) - set(estimated) <= {"x"}  # its scatter lists may be too long
            chosen = {one for one in together if plan[one].path == "im2col"}

            def seconds(by_im2col, together=together, sizes=sizes, gpu=gpu):
                return gpu_estimate.total_seconds(together, by_im2col, sizes, gpu, MARGIN)

            for count in range(len(estimated) + 1):
                for others in itertools.combinations(estimated, count):
                    assert seconds(chosen) <= seconds(set(others) | (set(together) - set(estimated)))


def test_gradients_on_the_im2col_path_share_columns_and_products():
    sizes, gpu = sizes_of(shape_of("A", 16)), GPUS[90]
    alone = [gpu_estimate.im2col_seconds([one], sizes, gpu) for one in ("x", "offset", "weight")]
    together = gpu_estimate.im2col_seconds(["x", "offset", "mask", "weight"], sizes, gpu)
    assert max(alone) < together < 0.85 * sum(alone)


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("capability", GPUS)
def test_more_images_take_longer(computation, capability):
    for name in "ABCDEFG":
        for seconds in (gpu_estimate.fused_seconds, im2col_seconds):
            times = [seconds(computation, sizes_of(shape_of(name, batch)), GPUS[capability]) for batch in (1, 16, 256)]
            assert 0 < times[0] <= times[1] < times[2]
            # A thread block that has an SM to itself waits, and takes up to twice as long as each of many.
            assert 7 * times[1] < times[2] < 24 * times[1]


@pytest.mark.parametrize("capability, known", [(None, 90), (75, 80), (87, 86), (90, 90), (103, 100), (121, 120)])
def test_gpu_of_an_architecture(capability, known):
    assert gpu_estimate.gpu_of(capability, None) is GPUS[known]
    assert gpu_estimate.gpu_of(capability, 114) == GPUS[known]._replace(sms=114)


def test_an_h100_has_slower_memory_than_an_h200():
    boards = ("H100 PCIe", "H100 80GB HBM3", "H100 NVL", "H200")
    found = [gpu_estimate.gpu_of(90, 132, f"NVIDIA {board}") for board in boards]
    assert {gpu._replace(memory=GPUS[90].memory) for gpu in found} == {found[-1]} == {GPUS[90]}
    assert found == sorted(found, key=lambda gpu: gpu.memory) and found[1].memory < 0.7 * found[-1].memory


def test_the_default_is_compute_capability_9():
    """Both paths are chosen in the plans that are compared."""
    plans = [planned(shape_of("C", 16), name) for name in (None, "9.0", "12.0")]
    assert plans[0] == plans[1] != plans[2]
    assert {choice.path for choice in plans[2]} == {"fused", "im2col"}


def test_a_wrong_compute_capability():
    with pytest.raises(ValueError, match="compute_capability must be None or a string such as"):
        planned(shape_of("A", 1), "sm_90")


@pytest.mark.parametrize("capability", GPUS)
def test_the_estimate_agrees_with_the_counted_launches(capability):
    """Although its clocks are means over shapes, with one factor for each architecture."""
    found = estimates.read(estimates.newest(RESULTS), DEVICES[f"sm_{capability}"].gpu)
    assert len(found) >= 16
    for (call, name, batch), milliseconds in found.items():
        sizes, gpu = sizes_of(shape_of(name, batch)), GPUS[capability]
        seconds = gpu_estimate.fused_seconds(CALLS[call], sizes, gpu)
        if CALLS[call] == "weight":  # whose partial sums are added outside of the call
            seconds -= 2 * gpu_estimate.weight_splits(sizes, gpu) * sum_bytes(sizes) / gpu.memory
        assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.2), (call, name)


def sum_bytes(sizes):
    """The size of a partial sum of the gradient of the weight."""
    return sizes.taps * sizes.channels // sizes.groups * sizes.features * cuda_tiles.SUM_BYTES


# Pixels, channels, taps, features, groups.
WEIGHTS = [
    (10**6, 128, 9, 128, 1),
    (10**6, 512, 9, 512, 1),
    (10**6, 256, 9, 256, 32),
    (10**6, 32, 25, 64, 1),
    (10**6, 256, 1, 1024, 1),
    (10**4, 64, 9, 64, 1),
    (1024, 32, 1, 32, 1),
    (0, 2**14, 9, 2**12, 1),
]


@pytest.mark.parametrize("sms", [1, 28, None, 188])
@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("pixels, channels, taps, features, groups", WEIGHTS)
def test_weight_splits(pixels, channels, taps, features, groups, capability, sms):
    """No part is empty or has too few pixels, and the partial sums take at most 64 KiB per thread block."""
    gpu = gpu_estimate.gpu_of(capability, sms)
    sizes = gpu_estimate.ConvolutionSizes(
        1, (1, pixels), pixels, 1, taps, channels, features, groups, offset_groups=1, itemsize=2
    )
    splits = gpu_estimate.weight_splits(sizes, gpu)
    assert splits >= 1
    if splits > 1:
        assert pixels // splits >= cuda_tiles.MIN_SPLIT_PIXELS
        assert (splits - 1) * math.ceil(math.ceil(pixels / 64) / splits) * 64 < pixels
        assert splits * sum_bytes(sizes) <= gpu_estimate.MAX_SM_BLOCKS * gpu.sms * 2**16 <= 2**26


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("name, tiles", [("A", 9), ("B", 36), ("E", 18), ("G", 9)])
def test_the_last_wave_of_the_gradient_of_the_weight_is_nearly_full(name, tiles, capability):
    gpu = GPUS[capability]
    blocks = tiles * gpu_estimate.weight_splits(sizes_of(shape_of(name, 16)), gpu)
    slots = gpu.sms * gpu.resident_blocks
    assert blocks / slots / math.ceil(blocks / slots) > 0.8


def test_a_device_has_its_compute_capability():
    """And its number of SMs. Only GPUs have them: the devices of a CPU have none."""
    gpu = types.SimpleNamespace(compute_capability="12.0", core_count=170)
    assert target.of_device("cuda", gpu) == Target("cuda", 120, 170)
    h100 = types.SimpleNamespace(compute_capability="9.0", core_count=132, device_kind="NVIDIA H100 80GB HBM3")
    assert target.of_device("cuda", h100) == Target("cuda", 90, 132, "NVIDIA H100 80GB HBM3")
    assert target.of_device("cuda", types.SimpleNamespace(compute_capability="8.9")) == Target("cuda", 89, None)
    assert target.of_device("cuda", types.SimpleNamespace(compute_capability="gfx90a")) == Target("cuda", None)
    assert target.of_device("cuda", jax.devices("cpu")[0]) == target.of_device("cuda", None) == Target("cuda", None)
