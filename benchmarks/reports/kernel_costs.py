"""Tables of what the fused kernels cost, from the results of `python -m benchmarks.machine_code`."""

from benchmarks.counting.devices import DEVICES
from benchmarks.reports.formatting import digits, markdown

CALLS = {
    "dcn_fused_forward": "forward",
    "dcn_fused_input_cotangent": "input cotangent",
    "dcn_fused_offset_cotangent": "offset and mask cotangents",
    "dcn_fused_weight_cotangent": "weight cotangent",
}
SORT = "sort for the input cotangent"
# The GPUs of the table of times.
GPUS = ("A100", "H200", "RTX 5090")


def tables(launches):
    """Each table that the performance page has, by its name there."""
    return {
        "wavefronts by instruction": wavefronts(launches),
        "costs in milliseconds": milliseconds(launches),
        "costs by architecture": by_architecture(launches),
    }


def title(launch):
    return CALLS[launch["call"]] if "clocks per K step" in launch else SORT


def _clocks(count):
    return f"{count:,.0f}"


def wavefronts(launches):
    """The wavefronts of shape A on an H200, by the kind of instruction."""
    chosen = [one for one in fused(launches) if one["gpu"] == "H200" and one["shape"] == "A"]
    rows = [["kernel", *chosen[0]["wavefronts per K step"], "L1", "shuffles"]]
    for one in chosen:
        counts = [*one["wavefronts per K step"].values(), one["clocks per K step"]["L1"], one["shuffles per K step"]]
        rows.append([title(one), *map(_clocks, counts)])
    return markdown(rows)


def milliseconds(launches):
    """The times of each shape, and what would bound them without waiting."""
    names = list(dict.fromkeys(launch["shape"] for launch in launches))
    rows = [["shape", "kernel", *GPUS]]
    for shape in names:
        of_shape = [launch for launch in launches if launch["shape"] == shape]
        for kernel in dict.fromkeys(map(title, of_shape)):
            rows.append([shape, kernel, *(_time(of_shape, kernel, gpu) for gpu in GPUS)])
        rows.append([shape, "all", *(_time(of_shape, None, gpu) for gpu in GPUS)])
    return markdown(rows)


def _time(launches, kernel, gpu):
    chosen = [one for one in launches if one["gpu"] == gpu and kernel in (None, title(one))]
    time = digits(sum(launch["milliseconds"] for launch in chosen))
    bounds = dict.fromkeys(launch["bound_by"] for launch in chosen)
    return time if kernel in (None, SORT) else f"{time} ({', '.join(bounds)})"


def by_architecture(launches):
    head = ["architecture, GPU", "kernel", "resident warps", "limited by", "issue", "L1", "tensor"]
    rows = [[*head, "bound by", "one block, with waiting", "all, with waiting"]]
    for launch in fused(launches):
        if launch["shape"] == "A":
            clocks = launch["clocks per K step"]
            slowest = max(clocks, key=clocks.get)
            row = [f"{launch['architecture']}, {launch['gpu']}", f"`{launch['kernel']}`", str(launch["resident warps"])]
            row += [launch["occupancy limited by"], *map(_clocks, clocks.values()), slowest]
            row += map(_clocks, launch["waiting per K step"].values())
            rows.append(row)
    return markdown(rows)


def fused(launches):
    return [launch for launch in launches if "clocks per K step" in launch]


def details(launches):
    """All shapes, as the results page has them."""
    head = ["shape", "kernel", "blocks", "resident warps", "limited by", "issue", "L1", "tensor", "main loop, issued"]
    head += ["one block, with waiting", "all, with waiting"]
    for gpu in dict.fromkeys(launch["gpu"] for launch in launches):
        chosen = [launch for launch in fused(launches) if launch["gpu"] == gpu]
        rows = [[*head, "ms", "bound by"]]
        for launch in chosen:
            row = [launch["shape"], f"`{launch['kernel']}`", str(launch["grid"]), str(launch["resident warps"])]
            row += [launch["occupancy limited by"]]
            row += map(_clocks, [*launch["clocks per K step"].values(), launch["main loop, instructions per K step"]])
            row += map(_clocks, launch["waiting per K step"].values())
            rows.append([*row, digits(launch["milliseconds"]), launch["bound_by"]])
        architecture = chosen[0]["architecture"]
        yield f"### {architecture}, {gpu}"
        if assumed := DEVICES[architecture].assumed:
            yield f"Assumed, because not published: {assumed}."
        yield markdown(rows)


def replace_tables(page, named):
    """The text of a page with new tables between its markers `<!-- name -->` and `<!-- end of name -->`."""
    for name, table in named.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if not end:
            raise ValueError(f"the page has no markers of {name!r}")
        page = f"{before}{begin}\n{table}\n\n{end}{after}"
    return page
