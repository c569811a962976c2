"""The page that `make gpu-check` writes, and its tables. It needs neither jax nor jax_dcn."""

import re
from collections import Counter

from benchmarks.reports.formatting import digits, markdown, paragraph

# The metrics of a profile that say what bounds a kernel; the JSON file has all of them.
SHOWN = re.compile(r"Duration|SM Freq|L1/TEX|L2 Hit|DRAM Thr|Achieved Occ|Waves|Grid|Registers|Warp Cycles|No Eligible")
# Milliseconds on an H100 by https://github.com/roulbac/msda-triton at 7fd0886: its Triton kernels, and how many times
# as long mmcv's CUDA kernels take. Times of kernels by PyTorch's profiler.
PUBLISHED = {
    ("forward", "float32"): (0.012, 2.17),
    ("forward", "float16"): (0.008, 4.30),
    ("forward", "bfloat16"): (0.008, None),
    ("backward", "float32"): (0.092, 1.33),
    ("backward", "float16"): (0.056, 4.50),
    ("backward", "bfloat16"): (0.056, None),
}
ABOUT_PUBLISHED = """Attention M3 beside published times on an H100: Triton kernels of msda-triton and CUDA kernels of
mmcv, both with atomics. The gradients of this package have none, and equal bits in every run. With 16-bit data,
locations and weights are float32 here, and have 16 bits there."""


def page(report):
    return "\n\n".join(sections(report)) + "\n"


def sections(report):
    steps = report["steps"]
    gpu = ", ".join(f"{key} {value}" for key, value in report["gpu"].items())
    seconds = sum(step["seconds"] for step in steps.values())
    yield f"# GPU check{', rehearsed on a CPU' if report['rehearsed'] else ''}"
    yield f"{report['date']}, commit {report['commit']}, {gpu}; {seconds} s in all."
    yield markdown([["step", "result", "seconds"], *([name, *outcome(steps.get(name))] for name in SECTIONS)])
    for name, section in SECTIONS.items():
        step = steps.get(name, {})
        # Why a step has no result, or less than it could have, comes last.
        if paragraphs := [*section(step), *([step["why"].strip()] if step.get("why") else [])]:
            yield f"## {name.capitalize()}"
            yield from paragraphs


def outcome(step):
    if step is None:
        return ["not reached", ""]
    state = "passed" if step["ok"] else "**failed**"
    if step.get("stopped at its limit"):
        state += ", stopped at its limit"
    return [state, str(step["seconds"])]


def of_facts(step):
    if "facts" in step:
        rows = ([name, "unknown" if value is None else str(value)] for name, value in step["facts"].items())
        yield markdown([["what", "value"], *rows])


def of_smoke(step):
    if step.get("rows"):
        yield from smoke_sections(step["about"]["calls"], step["rows"])


def of_kernels(step):
    if step.get("rows"):
        yield paragraph(
            "Microseconds of all kernels of a call, of those among them that are XLA's, which are not autotuned here, "
            "and with waiting for the result."
        )
        yield times_table(step["rows"])
        yield kernels_table(step["rows"])


def of_ratios(step):
    if rows := step.get("rows"):
        yield "\n".join(f"- {name}: {shape}" for name, shape in {row["case"]: row["shape"] for row in rows}.items())
        yield paragraph(
            "Microseconds on the GPU, the sum of all kernels, and of calls that are queued one after the other, "
            "without CUDA graphs; and how many times as long as this package each baseline takes."
        )
        yield ratios_table(rows)
        if notes := list(notes_of(rows)):
            yield "\n".join(notes)
        if published := list(published_lines(rows)):
            yield paragraph(ABOUT_PUBLISHED)
            head = ["type", "pass", "this package, µs", "msda-triton, µs", "time / msda-triton", "time / mmcv"]
            yield markdown([head, *published])


def of_profile(step):
    """One line per launch and metric."""
    rows = [
        [launch["case"], f"`{launch['kernel']}`", metric, f"{value} {unit}".strip()]
        for launch in step.get("launches", ())
        for metric, (value, unit) in launch["metrics"].items()
        if SHOWN.search(metric)
    ]
    if rows:
        yield markdown([["case", "kernel", "metric", "value"], *rows])


def of_tests(step):
    if rows := step.get("rows"):
        kinds = ("passed", "failed", "skipped")
        counts = {}
        for row in rows:
            counts.setdefault(row.get("backend", "every kernel"), Counter())[row["outcome"]] += 1
        lines = ([name, *(str(count[kind]) for kind in kinds)] for name, count in counts.items())
        yield markdown([["tests of", *kinds], *lines])
        skips = Counter(row["message"] for row in rows if row["outcome"] == "skipped")
        notes = [f"- {count} skipped: {' '.join(reason.split())}" for reason, count in skips.items()]
        failures = [row for row in rows if row["outcome"] == "failed"]
        notes += [f"- **failed** `{row['test']}`: {' '.join(row['message'].split())}" for row in failures]
        if notes:
            yield "\n".join(notes)


def smoke_sections(calls, rows):
    head = ["custom call", "checked", "wrong", "largest error / tolerance", "of"]
    yield markdown([head, *(smoke_line(call, rows) for call in calls)])
    wrong = [
        f"- **wrong** `{row['call']}`: {row['result']}, {described(row)}: {row['reason']}"
        for row in rows
        if not row["ok"]
    ]
    if wrong:
        yield "\n".join(wrong)


def smoke_line(call, rows):
    own = [row for row in rows if row["call"] == call]
    if not own:
        return [f"`{call}`", "**no**", "", "", ""]
    measured = [row for row in own if row["error / tolerance"] is not None]
    largest = max(measured, key=lambda row: row["error / tolerance"], default=None)
    wrong = sum(not row["ok"] for row in own)
    shown = ["-", "-"] if largest is None else [digits(largest["error / tolerance"]), described(largest)]
    return [f"`{call}`", str(len(own)), str(wrong), *shown]


def described(row):
    return f"{row['path']}, {row['shape']}, {row['dtype']}"


def times_table(rows):
    """Rows of `benchmarks.kernel_times.measure`, in microseconds."""
    head = ["case", "path", "pass", "kernels", "XLA's", "with waiting", "SM clock"]
    return markdown([head, *map(times_line, rows)])


def times_line(row):
    begin = [row["case"], row["path"] or "-", row["pass"]]
    if "error" in row:
        return [*begin, row["error"], *[""] * 3]
    others = sum(kernel["milliseconds"] for name, kernel in row["kernels"].items() if "dcn::" not in name)
    mark = "" if row["as many in all runs"] else " (runs differ)"
    shown = [f"{number(row['milliseconds'])}{mark}", number(others), number(row["with waiting"])]
    return [*begin, *shown, row["SM clock"] or "-"]


def kernels_table(rows):
    """The same rows kernel by kernel: those of the package."""
    lines = [
        [row["case"], row["path"] or "-", row["pass"], f"`{name.removeprefix('dcn::')}`", *of_kernel(kernel)]
        for row in rows
        for name, kernel in row.get("kernels", {}).items()
        if "dcn::" in name
    ]
    return markdown([["case", "path", "pass", "kernel", "launches", "µs"], *lines])


def of_kernel(kernel):
    return [str(kernel["launches"]), number(kernel["milliseconds"])]


def ratios_table(rows):
    """Rows of `benchmarks.gpu_ratios`, in microseconds."""
    head = ["case", "type", "pass", "implementation", "on the GPU", "/ jax_dcn", "queued", "/ jax_dcn"]
    return markdown([head, *(line for row in rows for line in ratio_lines(row))])


def ratio_lines(row):
    queued = {name: found["median"] * 1e3 for name, found in row.get("seconds", {}).items()}
    for name, milliseconds in queued.items():
        found = row["device milliseconds"]
        shown = [number(found[name]), ratio(found[name], found.get("jax_dcn"))]
        shown += [number(milliseconds), ratio(milliseconds, queued.get("jax_dcn"))]
        yield [row["case"], row["dtype"], row["pass"], name, *shown]


def notes_of(rows):
    for key, before in (("without", "without "), ("notes", ""), ("refused", "**refused** ")):
        found = {}
        for row in rows:
            case = f"{row['case']} {row['dtype']} {row['pass']}"
            for name, reason in row.get(key, {}).items():
                found.setdefault(f"- {before}{name}: {reason}", []).append(case)
        yield from (f"{text} ({'; '.join(cases)})" for text, cases in found.items())


def published_lines(rows):
    times = {(row["pass"], row["dtype"]): on_gpu(row) for row in rows if row["case"] == "M3" and on_gpu(row)}
    for (name, dtype), (milliseconds, mmcv) in PUBLISHED.items():
        forward, both = times.get(("forward", dtype)), times.get(("forward + backward", dtype))
        if forward and both:
            own = forward if name == "forward" else both - forward
            mmcv_ratio = "-" if mmcv is None else ratio(own, milliseconds * mmcv)
            yield [dtype, name, number(own), number(milliseconds), ratio(own, milliseconds), mmcv_ratio]


def on_gpu(row):
    return row.get("device milliseconds", {}).get("jax_dcn")


def number(milliseconds):
    """In microseconds."""
    return "-" if milliseconds is None else digits(1e3 * milliseconds)


def ratio(measured, expected):
    return digits(measured / expected) if measured and expected else "-"


SECTIONS = {
    "facts": of_facts,
    "build": lambda step: (),
    "smoke": of_smoke,
    "kernels": of_kernels,
    "ratios": of_ratios,
    "profile": of_profile,
    "tests": of_tests,
    "sanitizers": of_tests,
}
