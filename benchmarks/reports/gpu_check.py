"""The page that `make gpu-check` writes."""


def page(report):
    gpu = ", ".join(f"{key} {value}" for key, value in report["gpu"].items())
    lines = [f"# GPU check\n\n{report['date']}, {gpu}; {report['seconds']} s in all.\n"]
    lines += ["| step | result | seconds |", "|---|---|---|"]
    for name in ("build", "tests", "benchmark"):
        step = report.get(name)
        state = "not reached" if step is None else "passed" if step["ok"] else "**failed**"
        if step and step["stopped at its limit"]:
            state += ", stopped at its limit"
        lines.append(f"| {name} | {state} | {step['seconds'] if step else ''} |")
    tests = report.get("tests", {})
    if "backends" in tests:
        lines += ["\n| tests of | passed | failed | skipped |", "|---|---|---|---|"]
        for backend, counts in sorted(tests["backends"].items()):
            lines.append(f"| {backend} | {' | '.join(str(counts[k]) for k in ('passed', 'failed', 'skipped'))} |")
        lines.append("")
        lines += [f"- {count} skipped: {reason}" for reason, count in tests["reasons to skip"].items()]
        lines += [f"- **failed** `{name}`: {' '.join(message.split())}" for name, message in tests["failures"].items()]
    if "page" in report.get("benchmark", {}):
        lines += ["", report["benchmark"]["page"]]
    return "\n".join(lines) + "\n"
