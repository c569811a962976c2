"""The page that `make gpu-check` writes."""

from benchmarks.reports import kernel_times, smoke
from benchmarks.reports.formatting import markdown


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
        yield from smoke.sections(step["results"])


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
            gpus = {row["estimate"]["gpu"] for row in rows if row["estimate"]}
            yield f"Measured times, and the estimates of {step['estimates']} for {', '.join(sorted(gpus))}."
            if not all(row["estimate"]["is_of_this_gpu"] for row in rows if row["estimate"]):
                yield "There are no estimates for this GPU. Those for another GPU are shown without a ratio."
            yield kernel_times.compared_table(rows)
            yield kernel_times.kernels_table(rows)
        else:
            yield kernel_times.measured_table(rows)
        if clocks := {row["SM clock"]: None for row in rows if row["SM clock"]}:
            yield f"Clock of the SMs after each shape was timed: {', '.join(clocks)}."
        if rows and not any(row["milliseconds"] for row in rows):
            yield "The profiler of jax saw no kernels: CUPTI could not trace this GPU."


def of_ratios(step):
    if "page" in step:
        yield step["page"].strip()


def of_profile(step):
    if step.get("launches"):
        yield kernel_times.profile_table(step["launches"])


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
