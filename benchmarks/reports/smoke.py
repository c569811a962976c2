"""The table of the smoke test: one line per custom call."""

from benchmarks.reports.formatting import digits, markdown


def sections(results):
    head = ["custom call", "checked", "wrong", "largest error / tolerance", "of"]
    yield markdown([head, *(line(call, results["rows"]) for call in results["calls"])])
    wrong = [
        f"- **wrong** `{row['call']}`: {row['result']}, {described(row)}: {row['reason']}"
        for row in results["rows"]
        if not row["ok"]
    ]
    if wrong:
        yield "\n".join(wrong)
    if results["not reached"]:
        yield f"Not reached: {', '.join(results['not reached'])}."


def line(call, rows):
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
