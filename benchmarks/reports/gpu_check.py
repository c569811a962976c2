"""The page that `make gpu-check` writes, and its tables. It needs neither jax nor jax_dcn."""

import re

from benchmarks.reports.formatting import digits, markdown

# The metrics of a profile that say what bounds a kernel; a report has all of them in its JSON file.
SHOWN = re.compile(r"Duration|SM Frequency|Issue Slots Busy|L1/TEX|Tensor|Achieved Occupancy|Shared.*Conflict")


def page(report):
    return "\n\n".join(sections(report)) + "\n"


def sections(report):
    steps = report["steps"]
    gpu = ", ".join(f"{key} {value}" for key, value in report["gpu"].items())
    seconds = sum(step["seconds"] for step in steps.values())
    yield f"# GPU check\n\n{report['date']}, commit {report['commit']}, {gpu}; {seconds} s in all."
    yield markdown([["step", "result", "seconds"], *([name, *outcome(steps.get(name))] for name in SECTIONS)])
    for name, section in SECTIONS.items():
        step = steps.get(name, {})
        # Why a step has no result, or less than it could have, comes last.
        if paragraphs := [*section(step), *([step["why"]] if step.get("why") else [])]:
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
    if "facts" not in step:
        return
    rows = ([name, "unknown" if value is None else str(value)] for name, value in step["facts"].items())
    yield markdown([["what", "value"], *rows])


def of_smoke(step):
    if "results" in step:
        yield from smoke_sections(step["results"])


def of_tests(step):
    if step.get("backends"):
        kinds = ("passed", "failed", "skipped")
        rows = (
            [backend, *(str(counts.get(k, 0)) for k in kinds)] for backend, counts in sorted(step["backends"].items())
        )
        yield markdown([["tests of", *kinds], *rows])
    notes = [f"- {count} skipped: {reason}" for reason, count in step.get("reasons to skip", {}).items()]
    failures = step.get("failures", {})
    notes += [f"- **failed** `{name}`: {' '.join(message.split())}" for name, message in failures.items()]
    if notes:
        yield "\n".join(notes)


def of_estimates(step):
    if "results" in step:
        rows = step["results"]["rows"]
        if any(row["estimate"] for row in rows):
            yield f"Measured times, and the estimates of {step['estimates']}."
        yield times_table(rows)
        yield kernels_table(rows)
        if clocks := {row["SM clock"]: None for row in rows if row["SM clock"]}:
            yield f"Clock of the SMs after each shape was timed: {', '.join(clocks)}."
        if rows and not any(row["milliseconds"] for row in rows):
            yield "The profiler of jax saw no kernels: CUPTI could not trace this GPU."


def of_ratios(step):
    if "page" in step:
        yield step["page"].strip()


def of_profile(step):
    """One line per launch and metric."""
    rows = [
        [str(number), f"`{launch['kernel']}`", metric, f"{value} {unit}".strip()]
        for number, launch in enumerate(step.get("launches", ()), 1)
        for metric, (value, unit) in launch["metrics"].items()
        if SHOWN.search(metric)
    ]
    if rows:
        yield markdown([["launch", "kernel", "metric", "value"], *rows])


def smoke_sections(results):
    head = ["custom call", "checked", "wrong", "largest error / tolerance", "of"]
    yield markdown([head, *(smoke_line(call, results["rows"]) for call in results["calls"])])
    wrong = [
        f"- **wrong** `{row['call']}`: {row['result']}, {described(row)}: {row['reason']}"
        for row in results["rows"]
        if not row["ok"]
    ]
    if wrong:
        yield "\n".join(wrong)
    if results["not reached"]:
        yield f"Not reached: {', '.join(results['not reached'])}."


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
    """Rows of `benchmarks.kernel_times.measure`, which may have an "estimate": a dictionary, or None."""
    head = ["shape", "custom call", "kernels, ms", "estimate, ms", "measured / estimate", "bound by", "program, ms"]
    return markdown([head, *map(times_line, rows)])


def times_line(row):
    measured, estimate, shown = row["milliseconds"], row.get("estimate"), ["-", "-", "-"]
    if estimate:
        milliseconds = estimate["milliseconds"]
        shown = [digits(milliseconds), ratio(measured, milliseconds), estimate["bound_by"]]
    middle, low, high = (digits(row["program milliseconds"][key]) for key in ("median", "min", "max"))
    kernels = "-" if measured is None else digits(measured)
    return [row["shape"], f"`{row['call']}`", kernels, *shown, f"{middle} ({low} to {high})"]


def kernels_table(rows):
    """The same rows kernel by kernel: those of the package that were measured or estimated."""
    head = ["shape", "kernel", "launches", "measured, ms", "estimate, ms", "measured / estimate"]
    return markdown([head, *(line for row in rows for line in kernel_lines(row))])


def kernel_lines(row):
    measured = {name: kernel for name, kernel in row["kernels"].items() if kernel["own"]}
    estimated = row["estimate"]["kernels"] if row["estimate"] else {}
    for name in dict.fromkeys([*measured, *estimated]):
        found, expected = measured.get(name), estimated.get(name)
        yield [
            row["shape"],
            f"`{name}`",
            f"{found['launches']:g}" if found else "-",
            digits(found["milliseconds"]) if found else "-",
            digits(expected) if expected is not None else "-",
            ratio(found and found["milliseconds"], expected),
        ]


def ratio(measured, expected):
    return digits(measured / expected) if measured and expected else "-"


SECTIONS = {
    "facts": of_facts,
    "build": lambda step: (),
    "smoke": of_smoke,
    "tests": of_tests,
    "sanitizers": of_tests,
    "estimates": of_estimates,
    "ratios": of_ratios,
    "profile": of_profile,
}
