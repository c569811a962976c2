"""Reads the test results that pytest writes as JUnit XML."""

from collections import Counter


def read_tests(results):
    """The outcomes of each backend's tests, counted; the reasons for skips, counted; and the messages of failures."""
    outcomes, reasons, failures = {}, Counter(), {}
    for case in results.iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        counts = outcomes.setdefault(properties.get("backend", "none"), Counter())
        name = f"{case.get('classname')}::{case.get('name')}"
        failed = [problem for kind in ("failure", "error") for problem in case.iter(kind)]
        skipped = case.find("skipped")
        if failed:
            failures[name] = (failed[0].get("message") or failed[0].text or "")[:500]
        elif skipped is not None:
            reasons[skipped.get("message")] += 1
        counts["failed" if failed else "passed" if skipped is None else "skipped"] += 1
    return {"backends": outcomes, "reasons to skip": reasons, "failures": failures}
