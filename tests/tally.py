#!/usr/bin/env python3
"""Reads one JUnit file written by ctest; prints `passed|failed|skipped <tab> name` per test.

ctest calls a test it could not start "notrun", like one that skipped itself. Only the second is a
skip: a missing executable is a failure.
"""
import sys
import xml.etree.ElementTree as ElementTree

SKIP_REASONS = ("SKIP_REGULAR_EXPRESSION_MATCHED", "SKIP_RETURN_CODE=")


def verdict(case):
    status = case.get("status")
    if status == "run":
        return "passed"
    if status == "disabled":
        return "skipped"
    skip = case.find("skipped")
    if status == "notrun" and skip is not None:
        if skip.get("message", "").startswith(SKIP_REASONS):
            return "skipped"
    return "failed"


def why_skipped(case):
    """The first line the test said about it, if any."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines()]
    for before, line in zip(lines, lines[1:]):
        if before.endswith(": Skipped") and line:  # GoogleTest: "<file>:<line>: Skipped", reason
            return line
    return next((line for line in lines if line.lower().startswith("skipped")), "")


def main():
    for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        kind = verdict(case)
        reason = why_skipped(case) if kind == "skipped" else ""
        print(f"{kind}\t{case.get('name')}{': ' + reason if reason else ''}")


if __name__ == "__main__":
    main()
