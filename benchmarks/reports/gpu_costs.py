"""Writes jax_dcn/_operators/deform_conv/gpu_costs.py, by which the package chooses a path, from the counted costs."""

from pathlib import Path
from statistics import linear_regression, mean

import jax_dcn
from benchmarks.counting.devices import DEVICES
from benchmarks.measurements.kernel_costs import OTHER_SHAPES, PLAIN_SHAPES, SHAPES
from jax_dcn._operators.deform_conv.gpu import NARROW

MODULE = Path(jax_dcn.__file__).parent / "_operators" / "deform_conv" / "gpu_costs.py"
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

HEAD = '''"""What GPUs do per clock, and what the kernels need. `python -m benchmarks.machine_code` writes this file.

benchmarks/counting/devices.py has the sources of the rates, and says which are assumed. The clocks are counted, as
docs/performance.md describes, and not measured.
"""

from jax_dcn._operators.deform_conv.gpu import Gpu

'''


def module(report):
    """The text of the module, from what `python -m benchmarks.machine_code` counts."""
    fused = [*report["launches"], *report["other launches"]]
    entries = [entry(name, fused, report["plain launches"]) for name in DEVICES]
    return f"{HEAD}GPUS = {{\n{''.join(entries)}}}\n"


def entry(architecture, launches, plain_launches):
    device = DEVICES[architecture]
    launches = [launch for launch in launches if launch["architecture"] == architecture]
    plain_launches = [launch for launch in plain_launches if launch["architecture"] == architecture]
    k_step, tap_clocks = k_step_clocks([launch for launch in launches if "clocks per K step" in launch])
    sorts = [launch for launch in launches if "clocks per K step" not in launch]
    fields = {
        "architecture": architecture,
        "name": device.gpu,
        "sms": device.sms,
        "clock": device.clock * 1e9,
        "multiply_adds": device.multiply_adds,
        "product_multiply_adds": device.products,
        "memory": device.memory * 1e9,
        "l2_bytes": device.l2_size * 10**6,
        "l2_bytes_per_clock": device.l2_bytes or ASSUMED_L2_BYTES * device.sms,
        "weight_blocks": min(
            launch["resident blocks"] for launch in launches if COMPUTATIONS[launch["call"]] == "weight"
        ),
        "k_step_clocks": k_step,
        "offset_tap_clocks": tap_clocks,
        "sort_clocks": sort_clocks(sorts, device),
        "column_clocks": column_clocks(plain_launches),
    }
    text = "".join(f"        {name}={shown(value)},\n" for name, value in fields.items())
    return f"    {architecture.removeprefix('sm_')}: Gpu(\n{text}    ),\n"


def shown(value):
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        items = "".join(f"            {shown(key)}: {item:g},\n" for key, item in value.items())
        return f"{{\n{items}        }}"
    if isinstance(value, bool):
        return str(value)
    return f"{value:_}" if isinstance(value, int) else f"{value:g}".replace("e+", "e")


def k_step_clocks(launches):
    """Means over the shapes. Those of the offset's cotangent have a part that each tap needs after its products."""
    found, per_tap = {}, []
    for launch in launches:
        shape, clocks = FUSED_SHAPES[launch["shape"]], launch["clocks per K step"]
        tile = int(launch["kernel"].split(", ")[1].rstrip(">"))
        is_narrow = shape.channels // max(shape.offset_groups, shape.groups) < NARROW
        key = (COMPUTATIONS[launch["call"]], tile, is_narrow)
        clocks = max(clocks["issue"], clocks["L1"])
        if key[0] == "offset":
            per_tap.append((key, 1 / -(-shape.features // shape.groups // 64), clocks))
        else:
            found.setdefault(key, []).append(clocks)
    _, xs, ys = zip(*(point for point in per_tap if not point[0][2]), strict=True)
    tap_clocks = max(linear_regression(xs, ys).slope, 0)
    for key, taps_per_k_step, clocks in per_tap:
        found.setdefault(key, []).append(clocks - tap_clocks * taps_per_k_step)
    return {key: round(mean(values)) for key, values in sorted(found.items())}, round(tap_clocks)


def sort_clocks(launches, device):
    milliseconds, entries = {}, {}
    for launch in launches:
        shape = FUSED_SHAPES[launch["shape"]]
        pixels = shape.batch * -(-shape.height // shape.stride) * -(-shape.width // shape.stride)
        milliseconds[launch["shape"]] = milliseconds.get(launch["shape"], 0) + launch["milliseconds"]
        entries[launch["shape"]] = 4 * 9 * shape.offset_groups * pixels
    return round(sum(milliseconds.values()) * 1e6 * device.clock * device.sms / sum(entries.values()), 2)


def column_clocks(launches):
    found = {}
    for launch in launches:
        shape, clocks = PLAIN_SHAPES[launch["shape"]], launch["clocks per 128 bytes of columns"]
        key = COMPUTATIONS[launch["call"]], shape.channels // shape.offset_groups
        found[key] = max(found.get(key, 0), *clocks.values())
    samples = {("weight", channels): count for (name, channels), count in found.items() if name == "forward"}
    return dict(sorted((found | samples).items()))
