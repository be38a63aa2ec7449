#!/usr/bin/env python3
"""Reads one JUnit file written by ctest; prints `passed|failed|skipped <tab> name` per test.

usage: tests/tally.py FILE | --self-test

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


def tally(root):
    for case in root.iter("testcase"):
        kind = verdict(case)
        reason = why_skipped(case) if kind == "skipped" else ""
        yield f"{kind}\t{case.get('name')}{': ' + reason if reason else ''}"


def self_test():
    """One test of every kind, as ctest 3.25 writes it."""
    root = ElementTree.fromstring("""<testsuite>
      <testcase name="good" status="run"><system-out>x: Skipped\nno</system-out></testcase>
      <testcase name="bad" status="fail"><failure message=""/></testcase>
      <testcase name="off" status="disabled"><skipped message="Disabled"/></testcase>
      <testcase name="gone" status="notrun"><skipped message="Unable to find executable"/>
        </testcase>
      <testcase name="needy" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
        <system-out>a_test.cc:3: Skipped\nno GPU</system-out></testcase>
      <testcase name="script" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
        <system-out>2 files\nskipped: no tool</system-out></testcase>
      <testcase name="new" status="what ctest may say one day"/>
    </testsuite>""")
    expected = ["passed\tgood", "failed\tbad", "skipped\toff", "failed\tgone",
                "skipped\tneedy: no GPU", "skipped\tscript: skipped: no tool", "failed\tnew"]
    found = list(tally(root))
    print("\n".join(found))
    return 0 if found == expected else 1


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    print("\n".join(tally(ElementTree.parse(sys.argv[1]).getroot())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
