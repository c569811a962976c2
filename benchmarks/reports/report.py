"""Writes the results as a JSON file and as tables."""

import json
from pathlib import Path

from benchmarks.reports.formatting import paragraph

RESULTS = Path(__file__).parents[1] / "results"


def write(report, tables, stem):
    """Writes `report` to `stem`.json and its tables to `stem`.md, and returns the text of the tables."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(sections(report, tables)) + "\n"
    for suffix, content in ((".json", json.dumps(report, indent=1) + "\n"), (".md", text)):
        draft = stem.with_suffix(f"{suffix}.draft")
        draft.write_text(content)
        draft.replace(stem.with_suffix(suffix))  # atomic, because a run may be stopped at any time
    return text


def sections(report, tables):
    machine = {key: value for key, value in report["machine"].items() if value is not None}
    yield paragraph(", ".join(f"{key} {value}" for key, value in machine.items()))
    if report["note"]:
        yield paragraph(report["note"])
    if report["not reached"]:
        limit = "" if report["limit"] is None else f" in {report['limit']:.0f} s"
        yield paragraph(f"Not reached{limit}: {', '.join(report['not reached'])}.")
    for name, tables_of in tables.items():
        if report.get(name):
            yield from tables_of(report[name])
