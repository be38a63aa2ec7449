#!/usr/bin/env python3
# PROMISE: T46 valgrind
"""The unit tests under valgrind's memcheck: nothing is used that was not written, is no longer or
never was the program's, and nothing is lost.

Tests run a hundred times as long there: each program's are shared out over processes, those of
millions of cases or steps run each STRIDEth, and --short runs one share of SHORT_SHARES, another
each day. What fails for its slowness (real deadlines) is listed and is no report. What valgrind
itself gets wrong is in tests/memcheck.supp, each with its reason.
"""
import argparse
import concurrent.futures
import dataclasses
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SUPPRESSIONS = ROOT / "tests/memcheck.supp"
SUPPRESSIONS_MAX = 3
ROOMS = ("include", "client", "cuda", "daemon", "introspection", "redis", "replay", "tiers",
         "tools")
SHARES = 24        # of a program's tests
SHORT_SHARES = 60
SHARE_S = 3600
SKIPPED = 77
OF_ITSELF = " Warning: unimplemented fcntl command: "
STRIDE = 7         # tests/stride.h: of millions of cases or steps every seventh
VALGRIND = ("valgrind", "-q", "--fair-sched=yes", "--leak-check=full",
            "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite",
            "--child-silent-after-fork=yes", "--num-callers=24", f"--suppressions={SUPPRESSIONS}",
            # Tests that go on behind a fault need registers as they are at each access.
            "--px-default=allregs-at-mem-access")


@dataclasses.dataclass
class Share:
    program: pathlib.Path
    index: int
    count: int


@dataclasses.dataclass
class Found:
    share: Share
    passed: int
    failed: list
    reports: str
    status: int


def run(share):
    """One process of tests; what valgrind said of it."""
    with tempfile.TemporaryDirectory(prefix="terrace-memcheck.") as directory:
        log = pathlib.Path(directory) / "log"
        environment = os.environ | {"GTEST_TOTAL_SHARDS": str(share.count), "TMPDIR": directory,
                                    "GTEST_SHARD_INDEX": str(share.index),
                                    "TERRACE_TEST_STRIDE": str(STRIDE)}
        try:
            done = subprocess.run(
                [*VALGRIND, f"--log-file={log}.%p", share.program], capture_output=True,
                text=True, errors="replace", env=environment, check=False, timeout=SHARE_S,
                cwd=directory)
            said, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            said, status = (late.stdout or b"").decode(errors="replace"), None
        # What it says of itself, such as of a system call that it does not know, begins with "--",
        # or is OF_ITSELF.
        reports = "\n".join(line for path in sorted(pathlib.Path(directory).glob("log.*"))
                            for line in path.read_text(errors="replace").splitlines()
                            if line.startswith("==") and OF_ITSELF not in line)
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (\S+\.[^\s,]+)", said, re.M)))
    return Found(share, len(re.findall(r"^\[       OK \]", said, re.M)), failed, reports, status)


def judge(found):
    """What is wrong; empty if nothing is."""
    if found.reports:
        return f"valgrind reports:\n{found.reports}"
    if found.status is None:
        return f"not done after {SHARE_S} s: what takes long asks tests/stride.h"
    # 1: a test failed, which is another check's matter.
    return "" if found.status in (0, 1) else f"ended with status {found.status}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--short", action="store_true", help="one share of each program")
    parser.add_argument("--only", help="of this room alone, such as client")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("SKIPPED: there is no valgrind here (apt-get install valgrind)")
        return SKIPPED
    suppressions = SUPPRESSIONS.read_text().count("\n{") if SUPPRESSIONS.exists() else 0
    rooms = [room for room in ROOMS if arguments.only in (None, room)]
    programs = [arguments.build.resolve() / f"tests/unit_{room}_test" for room in rooms]
    missing = [str(p) for p in programs if not p.exists()]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}. Build first: ninja -C build/release tests_unit")
    if arguments.short:
        today = datetime.date.today().toordinal() % SHORT_SHARES
        shares = [Share(program, today, SHORT_SHARES) for program in programs]
    else:
        shares = [Share(program, i, SHARES) for i in range(SHARES) for program in programs]
    bad, passed, slow = 0, 0, []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(run, shares):
            passed += found.passed
            slow += found.failed
            wrong = judge(found)
            bad += bool(wrong)
            name = f"{found.share.program.name}, share {found.share.index + 1}"
            print(f"FAIL  {name}: {wrong}" if wrong else
                  f"ok    {name}: {found.passed} tests", flush=True)
    if slow:
        print(f"      failed without a report, as slow as they were: {', '.join(slow)}")
    if suppressions > SUPPRESSIONS_MAX:
        print(f"FAIL  {suppressions} suppressions; {SUPPRESSIONS_MAX} at most")
        bad += 1
    print(f"VERDICT: {'FAILED' if bad else 'OK'}: {passed} tests of {len(programs)} programs, "
          f"{bad} with reports")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
