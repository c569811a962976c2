"""Writes the numbers of jax_dcn/_operators/deform_conv/gpu_estimate.py, which choose a path, from the counted costs."""

from pathlib import Path
from statistics import linear_regression, mean

from benchmarks.counting.devices import DEVICES
from benchmarks.measurements.kernel_costs import IM2COL_SHAPES, OTHER_SHAPES, SHAPES
from jax_dcn._operators.deform_conv import gpu_estimate

MODULE = Path(gpu_estimate.__file__)
BEGIN, END = "# Written by `python -m benchmarks.machine_code`:\n", "# End of what is written.\n"
BASE = "sm_80"  # whose clocks are written; the other architectures have a factor for each path
NARROW = 64  # channels of a channel segment, below which a K slice or a tile of the fused kernels has several taps
COMPUTATIONS = {
    "dcn_fused_forward": "forward",
    "dcn_fused_input_cotangent": "x",
    "dcn_fused_offset_cotangent": "offset",
    "dcn_fused_weight_cotangent": "weight",
    "dcn_sample": "forward",
    "dcn_offset_cotangent": "offset",
    "dcn_input_cotangent": "x",
}
FUSED_SHAPES = SHAPES | OTHER_SHAPES
ASSUMED_L2_BYTES = 40  # per clock and SM, where it is not published


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
    k_steps, taps = k_step_clocks(of_architecture(BASE, of_kernels))
    columns = column_clocks(of_architecture(BASE, report["im2col launches"]))
    lines = ["GPUS = {"]
    for name in DEVICES:
        launches = of_architecture(name, of_kernels)
        factors = (
            factor(k_step_clocks(launches)[0], k_steps),
            factor(column_clocks(of_architecture(name, report["im2col launches"])), columns),
        )
        lines.append(f"    {name.removeprefix('sm_')}: {gpu(name, launches, factors)}")
    lines += ["}", *table("K_STEP_CLOCKS", k_steps)]
    lines += [f"TAP_CLOCKS = {taps}", f"SORT_CLOCKS = {sort_clocks(of_architecture(BASE, sorts), DEVICES[BASE]):g}"]
    return "\n".join([*lines, *table("COLUMN_CLOCKS", columns), ""])


def of_architecture(name, launches):
    return [launch for launch in launches if launch["architecture"] == name]


def gpu(name, launches, factors):
    device = DEVICES[name]
    blocks = min(one["resident blocks"] for one in launches if COMPUTATIONS[one["call"]] == "weight")
    rates = (
        device.sms,
        device.clock * 1e9,
        device.multiply_adds,
        device.products,
        device.memory * 1e9,
        device.l2_size * 10**6,
        device.l2_bytes or ASSUMED_L2_BYTES * device.sms,
    )
    values = ", ".join(map(shown, (*rates, blocks, *factors)))
    return f'Gpu("{name}", {values}),  # {device.gpu}'


def table(name, clocks):
    """A dictionary by computation, of clocks by columns or channels."""
    rows = {}
    for (computation, size), count in sorted(clocks.items()):
        rows.setdefault(computation, []).append(f"{size}: {count:g}")
    return [f"{name} = {{", *(f'    "{key}": {{{", ".join(items)}}},' for key, items in rows.items()), "}"]


def shown(value):
    return f"{value:_}" if isinstance(value, int) else f"{value:g}".replace("e+", "e")


def factor(clocks, base):
    """How many times as many clocks an architecture needs."""
    return round(mean(clocks[key] / base[key] for key in clocks), 2)


def k_step_clocks(launches):
    """Means over the shapes, by computation and columns of the block tile, or 0 for narrow channel segments.

    Those of the gradients of offset and mask have a part that each tap needs after its products: the second result.
    """
    found, per_tap = {}, []
    for launch in launches:
        shape, clocks = FUSED_SHAPES[launch["shape"]], launch["clocks per K step"]
        is_narrow = shape.channels // max(shape.offset_groups, shape.groups) < NARROW
        tile = 0 if is_narrow else int(launch["kernel"].split(", ")[1].rstrip(">"))
        key, clocks = (COMPUTATIONS[launch["call"]], tile), max(clocks["issue"], clocks["L1"])
        if key[0] == "offset":
            per_tap.append((key, 1 / -(-shape.features // shape.groups // 64), clocks))
        else:
            found.setdefault(key, []).append(clocks)
    _, xs, ys = zip(*(point for point in per_tap if point[0][1]), strict=True)
    tap_clocks = max(linear_regression(xs, ys).slope, 0)
    for key, taps_per_k_step, clocks in per_tap:
        found.setdefault(key, []).append(clocks - tap_clocks * taps_per_k_step)
    return {key: round(mean(values)) for key, values in found.items()}, round(tap_clocks)


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
