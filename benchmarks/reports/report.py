"""Writes the results as a JSON file and as tables."""

import json
from pathlib import Path

from benchmarks.reports.formatting import paragraph

RESULTS = Path(__file__).parents[1] / "results"


def write(report, tables, stem):
    """Writes `report` to `stem`.json and its tables to `stem`.md, and returns the text of the tables."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(sections(report, tables)) + "\n"
    write_json(stem.with_suffix(".json"), report)
    write_text(stem.with_suffix(".md"), text)
    return text


def write_json(path, report):
    write_text(path, json.dumps(report, indent=1) + "\n")


def write_text(path, text):
    draft = path.with_suffix(f"{path.suffix}.draft")
    draft.write_text(text)
    draft.replace(path)  # atomic, because a run may be stopped at any time


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
