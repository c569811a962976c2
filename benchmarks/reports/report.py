"""Writes results as JSON files and as pages."""

import argparse
import json
from datetime import date
from pathlib import Path

from benchmarks.reports.formatting import paragraph

RESULTS = Path(__file__).parents[1] / "results"


def parser(name, description):
    """The parser of `python -m benchmarks.<name>`, or of `python -m benchmarks`, which writes to a folder."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}".rstrip("."), description=description)
    made.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    return made


def write_page(folder, name, title, sections):
    """Writes `<date>-<name>.md`, and prints it."""
    text = "\n\n".join([f"# {title}", *sections]) + "\n"
    write_text(folder / f"{date.today()}-{name}.md", text)
    print(text)


def write_json(path, report):
    write_text(path, json.dumps(report, indent=1) + "\n")


def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f"{path.suffix}.draft")
    draft.write_text(text)
    draft.replace(path)  # atomic, because a run may be stopped at any time


def facts(machine):
    return paragraph(", ".join(f"{key} {value}" for key, value in machine.items() if value is not None))
