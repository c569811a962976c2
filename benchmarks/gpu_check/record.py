"""The report of `make gpu-check`: a JSON file and a page, which are written after each step."""

import json
import re
from datetime import date

from benchmarks.reports.gpu_check import page
from benchmarks.reports.report import write_json, write_text
from benchmarks.support.sources import commit, digest_of_sources


class Record:
    def __init__(self, stem, report):
        self.stem, self.report = stem, report

    @classmethod
    def open(cls, folder, gpu):
        """The report of the same sources, GPU and driver, if the folder has one, or else a new one."""
        same = {"gpu": gpu, "sources": digest_of_sources()}
        for path in sorted(folder.glob("*-gpu-*.json"), reverse=True):
            report = read(path)
            if {key: report.get(key) for key in same} == same:
                return cls(path.with_suffix(""), report)
        name = re.sub(r"\W+", "-", gpu["name"].lower()).strip("-")
        return cls(
            folder / f"{date.today()}-gpu-{name}",
            {"date": str(date.today()), "commit": commit(), **same, "steps": {}},
        )

    def add(self, name, result):
        self.report["steps"][name] = result
        write_json(self.stem.with_suffix(".json"), self.report)
        write_text(self.stem.with_suffix(".md"), self.page())

    def page(self):
        return page(self.report)

    def is_ok(self, name):
        return self.report["steps"].get(name, {}).get("ok", False)

    def is_done(self, name):
        """A step that was stopped at its limit is not: it may have more time in the next run."""
        step = self.report["steps"].get(name)
        return step is not None and not step.get("stopped at its limit")


def read(path):
    try:
        report = json.loads(path.read_text())
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}
