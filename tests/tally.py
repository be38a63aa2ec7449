#!/usr/bin/env python3
"""Reads a JUnit file written by ctest; prints `passed|failed|skipped|flaky <tab> name` per test.

usage: tests/tally.py FILE [SECOND] | --self-test

ctest calls a test it could not start "notrun", like one that skipped itself. Only the second is a
skip: a missing executable is a failure. One that is many tests of GoogleTest, and passed, may have
skipped some of them: these are told, too.

SECOND is of the failed tests, each run once more by itself. A test that passes there is flaky,
which tools/test says aloud; one in whose first output a sanitizer had something to report stays
failed.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

SANITIZER_REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer",
                     "runtime error:")
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


def skipped_inside(case):
    """What GoogleTest skipped in one that passed: place and reason of each."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines()]
    for line, reason in zip(lines, lines[1:]):
        place = re.fullmatch(r"(\S+:\d+): Skipped", line)
        if place:
            yield f"{place[1]}: {reason}"


def tally(root, second=()):
    """(kind, tab, name) of each case of `root`; `second` is the root of the second run, if any."""
    passed_alone = {case.get("name") for case in second if verdict(case) == "passed"}
    for case in root.iter("testcase"):
        kind = verdict(case)
        if kind == "failed" and case.get("name") in passed_alone:
            output = case.findtext("system-out") or ""
            if not any(report in output for report in SANITIZER_REPORTS):
                kind = "flaky"
        reason = why_skipped(case) if kind == "skipped" else ""
        yield f"{kind}\t{case.get('name')}{': ' + reason if reason else ''}"
        if kind == "passed":
            for skip in skipped_inside(case):
                yield f"skipped\t{case.get('name')}: {skip}"


def self_test():
    """One test of every kind, as ctest 3.25 writes it."""
    root = ElementTree.fromstring("""<testsuite>
      <testcase name="good" status="run"><system-out>x: Skipped\nno</system-out></testcase>
      <testcase name="many" status="run"><system-out>Running main()
a.cc:7: Skipped
no root
[  PASSED  ] 2 tests.
[  SKIPPED ] 1 test.</system-out></testcase>
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
    expected = ["passed\tgood", "passed\tmany", "skipped\tmany: a.cc:7: no root", "failed\tbad",
                "skipped\toff", "failed\tgone", "skipped\tneedy: no GPU",
                "skipped\tscript: skipped: no tool", "failed\tnew"]
    found = list(tally(root))
    first = ElementTree.fromstring("""<testsuite>
      <testcase name="load" status="fail"><system-out>too late</system-out></testcase>
      <testcase name="race" status="fail"><system-out>WARNING: ThreadSanitizer: data race
        </system-out></testcase>
      <testcase name="bad" status="fail"/></testsuite>""")
    second = ElementTree.fromstring("""<testsuite><testcase name="load" status="run"/>
      <testcase name="race" status="run"/><testcase name="bad" status="fail"/></testsuite>""")
    expected += ["flaky\tload", "failed\trace", "failed\tbad"]
    found += tally(first, second)
    print("\n".join(found))
    return 0 if found == expected else 1


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    roots = [ElementTree.parse(path).getroot() for path in sys.argv[1:]]
    print("\n".join(tally(*roots)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
