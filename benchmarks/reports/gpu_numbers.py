"""Writes the numbers of jax_dcn/_operators/deform_conv/gpu_estimate.py, which choose a path, from the counted costs."""

from pathlib import Path
from statistics import linear_regression, mean

from benchmarks.counting.devices import DEVICES
from benchmarks.measurements.kernel_costs import IM2COL_SHAPES, OTHER_SHAPES, SHAPES
from jax_dcn._operators.deform_conv import gpu_estimate

MODULE = Path(gpu_estimate.__file__)
BEGIN, END = "# Written by `python -m benchmarks.machine_code`:\n", "# End of what is written.\n"
# Whose clocks are written, by the resident thread blocks of the gradient of the weight. The others have a factor.
BASES = {1: "sm_86", 2: "sm_80"}
WAITING = ("one block", "all blocks")
NARROW = 64  # channels of a channel segment, below which a K slice or a tile of the fused kernels has several taps
COMPUTATIONS = {
    "dcn_fused_forward": "forward",
    "dcn_fused_input_cotangent": "x",
    "dcn_fused_offset_cotangent": "offset",
    "dcn_fused_weight_cotangent": "weight",
    "dcn_sample": "forward",
    "dcn_offset_cotangent": "offset",
    "dcn_gather_samples": "x",
}
FUSED_SHAPES = SHAPES | OTHER_SHAPES


def replaced(module, report):
    """The text of the module, with numbers from what `python -m benchmarks.machine_code` counts."""
    before, begin, rest = module.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the module has no lines {BEGIN!r} and {END!r}")
    return f"{before}{begin}{numbers(report)}{end}{after}"


def numbers(report):
    launches = report["launches"] + report["other launches"]
    of_kernels = [launch for launch in launches if "clocks per K step" in launch]
    sorts = [launch for launch in launches if "clocks per K step" not in launch]
    k_steps = {blocks: k_step_clocks(of_architecture(name, of_kernels)) for blocks, name in BASES.items()}
    columns = column_clocks(of_architecture(BASES[2], report["im2col launches"]))
    lines = ["GPUS = {"]
    for name in DEVICES:
        launches = of_architecture(name, of_kernels)
        blocks = weight_blocks(launches)
        factors = (
            factor(k_step_clocks(launches), k_steps[blocks]),
            factor(column_clocks(of_architecture(name, report["im2col launches"])), columns),
        )
        lines.append(f"    {name.removeprefix('sm_')}: {gpu(name, blocks, factors)}")
    lines += ["}", "K_STEP_CLOCKS = {"]
    for blocks, clocks in k_steps.items():
        lines += [f"    {blocks}: {{", *(f"    {row}" for row in rows(clocks)), "    },"]
    lines += ["}", f"SORT_CLOCKS = {sort_clocks(of_architecture(BASES[2], sorts), DEVICES[BASES[2]]):g}"]
    return "\n".join([*lines, "COLUMN_CLOCKS = {", *rows(columns), "}", ""])


def of_architecture(name, launches):
    return [launch for launch in launches if launch["architecture"] == name]


def weight_blocks(launches):
    return min(one["resident blocks"] for one in launches if COMPUTATIONS[one["call"]] == "weight")


def gpu(name, blocks, factors):
    device = DEVICES[name]
    rates = (
        device.sms,
        device.clock * 1e9,
        device.products,
        device.memory * 1e9,
        device.l2_size * 10**6,
        device.l2_rate,
    )
    values = ", ".join(map(shown, (*rates, blocks, *factors)))
    return f'Gpu("{name}", {values}),  # {device.gpu}'


def rows(clocks):
    """The lines of a dictionary by computation, of clocks by columns or channels."""
    found = {}
    for (computation, size), count in sorted(clocks.items()):
        found.setdefault(computation, []).append(f"{size}: {count}")
    return [f'    "{computation}": {{{", ".join(items)}}},' for computation, items in found.items()]


def shown(value):
    return f"{value:_}" if isinstance(value, int) else f"{value:g}".replace("e+", "e")


def factor(clocks, base):
    """How many times as many clocks an architecture needs."""
    return round(mean(last(clocks[key]) / last(base[key]) for key in clocks), 2)


def last(clocks):
    """With all resident blocks, of a pair."""
    return clocks[-1] if isinstance(clocks, tuple) else clocks


def k_step_clocks(launches):
    """Pairs of means over the shapes, by computation and columns of the block tile, or 0 for narrow channel segments.

    Of the gradients of offset and mask, each tap needs a part after its products: that of the computation "tap", in
    proportion to the columns.
    """
    alone, resident = (_mean_clocks(launches, resident) for resident in WAITING)
    return {key: (max(alone[key], clocks), clocks) for key, clocks in resident.items()}


def _mean_clocks(launches, resident):
    found, per_tap = {}, []
    for launch in launches:
        shape, clocks = FUSED_SHAPES[launch["shape"]], launch["waiting per K step"][resident]
        is_narrow = shape.channels // max(shape.offset_groups, shape.groups) < NARROW
        tile = 0 if is_narrow else int(launch["kernel"].split(", ")[1].rstrip(">"))
        key = COMPUTATIONS[launch["call"]], tile
        if key[0] == "offset":
            per_tap.append((key, 1 / -(-shape.features // shape.groups // 64), clocks))
        else:
            found.setdefault(key, []).append(clocks)
    _, xs, ys = zip(*(point for point in per_tap if point[0][1] == 128), strict=True)
    tap_clocks = max(linear_regression(xs, ys).slope, 0)
    for key, taps_per_k_step, clocks in per_tap:
        found.setdefault(key, []).append(clocks - tap_clocks * taps_per_k_step * (key[1] or 128) / 128)
    return {key: round(mean(values)) for key, values in found.items()} | {("tap", 128): round(tap_clocks)}


def sort_clocks(launches, device):
    milliseconds, entries = {}, {}
    for launch in launches:
        shape = FUSED_SHAPES[launch["shape"]]
        pixels = shape.batch * -(-shape.height // shape.stride) * -(-shape.width // shape.stride)
        milliseconds[launch["shape"]] = milliseconds.get(launch["shape"], 0) + launch["milliseconds"]
        entries[launch["shape"]] = 4 * 9 * shape.offset_groups * pixels
    return round(sum(milliseconds.values()) * 1e6 * device.clock * device.sms / sum(entries.values()), 2)


def column_clocks(launches):
    """By computation and channels of an offset group."""
    found = {}
    for launch in launches:
        shape, clocks = IM2COL_SHAPES[launch["shape"]], launch["clocks per 128 bytes of columns"]
        key = COMPUTATIONS[launch["call"]], shape.channels // shape.offset_groups
        found[key] = max(found.get(key, 0), *clocks.values())
    return found
