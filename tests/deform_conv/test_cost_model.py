"""The path that is chosen by estimated times: consistent, of the right GPU, and as the kernels' costs were counted."""

import math
import re
import types

import jax
import pytest

from benchmarks.counting import estimates
from benchmarks.lowering import executed_ptx
from benchmarks.measurements import kernel_costs
from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.reports.paths import planned, sizes_of
from benchmarks.reports.report import RESULTS
from jax_dcn._operators.deform_conv import cost_model, fused
from jax_dcn._operators.deform_conv.cost_model import GPUS, MARGIN
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
KERNELS = {
    "FusedForwardKernel": "forward",
    "FusedInputCotangentKernel": "x",
    "FusedOffsetCotangentKernel": "offset",
    "FusedWeightCotangentKernel": "weight",
}


def shape_of(name, batch):
    return SHAPES[name]._replace(batch=batch)


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("name", "ABCDEFG")
def test_the_plan_takes_the_faster_path(name, capability):
    """The plain one only if it is faster by more than the margin."""
    for batch in (1, 4, 16):
        shape, gpu = shape_of(name, batch), GPUS[capability]
        plan = planned(shape, f"{capability // 10}.{capability % 10}")
        for computation in COMPUTATIONS:
            times = [
                seconds(computation, sizes_of(shape), gpu)
                for seconds in (cost_model.fused_seconds, cost_model.plain_seconds)
            ]
            if plan[computation].reason.startswith("estimates"):
                assert (plan[computation].path == "plain") == (times[0] > MARGIN * times[1])
                assert plan[computation].reason.startswith(f"estimates for sm_{capability}: fused")
            else:
                assert (plan[computation].path, computation) == ("plain", "x")  # its scatter lists are too long


def test_both_paths_are_chosen():
    """Otherwise the other tests compare nothing."""
    assert {choice.path for choice in planned(shape_of("C", 1), "9.0")} == {"fused", "plain"}


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("capability", GPUS)
def test_more_images_take_longer(computation, capability):
    for name in "ABCDEFG":
        for seconds in (cost_model.fused_seconds, cost_model.plain_seconds):
            times = [seconds(computation, sizes_of(shape_of(name, batch)), GPUS[capability]) for batch in (1, 16, 256)]
            assert 0 < times[0] <= times[1] < times[2]
            assert 8 * times[1] < times[2] < 24 * times[1]


@pytest.mark.parametrize("capability, known", [(None, 90), (75, 80), (87, 86), (90, 90), (103, 100), (121, 120)])
def test_gpu_of_an_architecture(capability, known):
    assert cost_model.gpu_of(Target("cuda", capability)) is GPUS[known]


def test_a_gpu_has_its_own_number_of_sms():
    assert cost_model.gpu_of(Target("cuda", 90, 114)) == GPUS[90]._replace(sms=114)


def test_the_default_is_compute_capability_9():
    plans = [planned(shape_of("C", 16), capability) for capability in (None, "9.0", "10.0")]
    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize("wrong, error", [(9.0, TypeError), ("sm_90", ValueError)])
def test_wrong_compute_capabilities(wrong, error):
    with pytest.raises(error, match="compute_capability must be None or a string such as"):
        planned(shape_of("A", 1), wrong)


@pytest.mark.parametrize("capability", GPUS)
def test_the_model_agrees_with_the_counted_launches(capability):
    """The times of whole launches are counted, too. The model has the mean of what the shapes need per K step."""
    found = estimates.read(estimates.newest(RESULTS), f"sm_{capability}", GPUS[capability].name)
    assert len(found) >= 16
    for (call, name, batch), estimate in found.items():
        sizes, gpu = sizes_of(shape_of(name, batch)), GPUS[capability]
        modelled = cost_model.fused_seconds(CALLS[call], sizes, gpu)
        if CALLS[call] == "weight":  # whose partial sums are added outside of the call
            modelled -= cost_model.partial_sum_seconds(cost_model.weight_splits(sizes, gpu), sizes, gpu)
        assert modelled * 1e3 == pytest.approx(estimate.milliseconds, rel=0.15), (call, name)


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
    gpu = cost_model.gpu_of(Target("cuda", capability, sms))
    sizes = cost_model.Sizes(1, pixels, pixels, taps, channels, features, groups, offset_groups=1, item=2)
    splits = cost_model.weight_splits(sizes, gpu)
    _, _, slices = cost_model.launch("weight", sizes, gpu)
    if splits > 1:
        assert pixels // splits >= fused.MIN_SPLIT_PIXELS
        assert (splits - 1) * slices * 64 < pixels
        assert splits * sizes.weight_elements * 4 <= cost_model.MAX_SM_BLOCKS * gpu.sms * 2**16 <= 2**26
    assert splits >= 1


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("name", "ABCDEFG")
def test_the_last_wave_of_the_weight_cotangent_is_nearly_full(name, capability):
    gpu = GPUS[capability]
    _, blocks, _ = cost_model.launch("weight", sizes_of(shape_of(name, 16)), gpu)
    slots = gpu.sms * gpu.weight_blocks
    assert blocks / slots / math.ceil(blocks / slots) > 0.8


def test_weight_splits_of_known_gpus():
    """On an H100 or H200, on an RTX 5090, and on a GPU with few SMs, for 268,800 pixels and 9 tiles."""
    sizes = sizes_of(shape_of("A", 16))
    targets = Target("cuda"), Target("cuda", 120), Target("cuda", 86, 28)
    assert [cost_model.weight_splits(sizes, cost_model.gpu_of(target)) for target in targets] == [29, 18, 3]


@pytest.mark.skipif(executed_ptx.missing() is not None, reason=str(executed_ptx.missing()))
@pytest.mark.parametrize("name, height, width", [("A", 16, 16), ("F", 64, 72), ("G", 16, 16), ("H", 16, 16)])
def test_the_model_has_the_launches_of_the_kernels(name, height, width):
    """Columns of a block tile, thread blocks, and K steps of each."""
    shape, found = SHAPES[name]._replace(batch=1, height=height, width=width), {}
    for direction in ("forward", "backward"):
        for record in kernel_costs.executed_launches(shape, direction):
            if products := sum(record["counters"]["mma"].values()):
                kernel, tile = re.search(r"(Fused\w+?Kernel)I\w*?Li(\d+)E", record["kernel"]).groups()
                k_steps = products / (4 * int(tile)) / record["blocks"]
                found[KERNELS[kernel]] = int(tile), record["grid"], math.ceil(k_steps)
    assert found == {name: cost_model.launch(name, sizes_of(shape), GPUS[90]) for name in COMPUTATIONS}


def test_a_device_has_its_compute_capability():
    """And its number of SMs. Of GPUs alone: the devices of a CPU have none."""
    gpu = types.SimpleNamespace(compute_capability="12.0", core_count=170)
    assert target.of_device("cuda", gpu) == Target("cuda", 120, 170)
    assert target.of_device("cuda", types.SimpleNamespace(compute_capability="8.9")) == Target("cuda", 89, None)
    assert target.of_device("cuda", types.SimpleNamespace(compute_capability="gfx90a")) == Target("cuda", None)
    assert target.of_device("cuda", jax.devices("cpu")[0]) == target.of_device("cuda", None) == Target("cuda", None)
