#!/usr/bin/env python3
"""Fuzzes every target of tests/fuzz, and says how much of its decoders was reached.

usage: tests/long/fuzz.py [--seconds N] [--build DIR] [--jobs N] [TARGET...]

Builds build/fuzz (preset fuzz), runs each target for N seconds (default 600) from its corpus on,
and prints a table: inputs run, how many a second, the lines of the target's decoders that they
reached, and whether that is COVERAGE_MIN percent. What crashes is kept in build/fuzz/findings, and
the command that does it again is printed. Inputs that reached something new stay in
build/fuzz/corpora/TARGET for the next run. Exit status 77: there is no clang-14 here.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COVERAGE_MIN = 95
INPUT_SECONDS_MAX = 25
INPUT_MIB_MAX = 1024
ALLOCATION_MIB_MAX = 128
EXIT_SKIPPED = 77
# The files whose lines a target is to reach, and the longest input that it makes.
TARGETS = {
    "catalog": (["daemon/persist/group_files.cc:ParseGroupFile|TakeMember|TakeLine|ReadCount",
                 "include/src/space.cc", "include/src/space_group.cc"], 8192),
    "client_frames": (["client/link/frames.cc:FrameReader|BodyReader|IsAnswer|IsUnasked",
                       "client/core/replies.cc", "client/core/answers.cc",
                       "client/core/reader.cc:Dispatch|::On|Break"], 4096),
    "config": (["daemon/config/config_text.cc", "daemon/config/config_resolve.cc",
                "daemon/config/toml_depth.cc"], 8192),
    "hot_file": (["tools/terrace/content/hot_file.cc"], 8192),
    "kv_replay": (["daemon/events/kv_event_replay.cc"], 1024),
    "redis_format": (["tiers/redis/redis_format.cc",
                      "tiers/redis/redis_error.cc"], 4096),
    "redis_reply": (["tiers/redis/redis_reply.cc"], 4096),
    "session": (["daemon/session/frame_codec.cc", "daemon/session/message_body.cc",
                 "daemon/session/request.cc", "daemon/session/request_frame.cc",
                 "daemon/session/key_requests.cc", "daemon/session/lease_requests.cc",
                 "daemon/session/client_requests.cc", "daemon/session/operator_requests.cc",
                 "daemon/session/hint_table.cc", "daemon/session/verb_table.cc",
                 "daemon/session/session.cc"], 4096),
    "slab": (["tiers/nvme/header_table.cc"], 4200),
    "trace": (["tools/terrace/trace/trace_reader.cc", "tools/terrace/trace/recording.cc",
               "tools/terrace/trace/trace.cc", "tools/replay/dense_trace.cc"], 8192),
}


@dataclasses.dataclass
class Outcome:
    target: str
    runs: int = 0
    per_second: int = 0
    seconds: int = 0
    covered: int = 0
    lines: int = 0
    findings: tuple = ()
    uncovered: tuple = ()

    @property
    def percent(self):
        return 100 * self.covered / self.lines if self.lines else 0


def build(folder, targets):
    log = folder / "fuzz.log"
    folder.mkdir(parents=True, exist_ok=True)
    for command in (["cmake", "--preset", "fuzz", "-B", folder],
                    ["cmake", "--build", folder, "-j", str(os.cpu_count()), "--target",
                     *(f"fuzz_{name}" for name in targets)]):
        with log.open("a") as output:
            if subprocess.run(command, cwd=ROOT, stdout=output, stderr=output).returncode != 0:
                sys.exit(f"the fuzz targets do not build: see {log}")


def fuzz(folder, target, seconds):
    """One target: the libFuzzer run, then all that was found reached once more for the lines."""
    program = folder / "tests/fuzz" / f"fuzz_{target}"
    kept = folder / "corpora" / target
    findings = folder / "findings" / target
    for path in (kept, findings):
        path.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    _, bytes_max = TARGETS[target]
    profile = folder / "profiles" / f"{target}.profraw"
    profile.parent.mkdir(exist_ok=True)
    limits = [f"-timeout={INPUT_SECONDS_MAX}", f"-rss_limit_mb={INPUT_MIB_MAX}",
              f"-malloc_limit_mb={ALLOCATION_MIB_MAX}", f"-artifact_prefix={findings}/"]
    seeds = folder / "tests/fuzz/corpus" / target
    environment = {**os.environ, "LLVM_PROFILE_FILE": "/dev/null"}
    run = subprocess.run([program, *limits, f"-max_total_time={seconds}", f"-max_len={bytes_max}",
                          "-print_final_stats=1", kept, seeds], env=environment, text=True,
                         errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (folder / f"fuzz_{target}.log").write_text(run.stdout)
    outcome = Outcome(target, findings=tuple(sorted(set(findings.iterdir()) - before)))
    done = re.search(r"Done (\d+) runs in (\d+) second", run.stdout)
    if done:
        outcome.runs, outcome.seconds = int(done[1]), int(done[2])
    else:  # it ended before its time
        counts = re.findall(r"^#(\d+)", run.stdout, re.M)
        outcome.runs = int(counts[-1]) if counts else 0
    outcome.per_second = outcome.runs // max(outcome.seconds, 1)
    if run.returncode != 0 and not outcome.findings:
        outcome.findings = (f"exit status {run.returncode}, see {folder}/fuzz_{target}.log",)
    environment["LLVM_PROFILE_FILE"] = str(profile)
    subprocess.run([program, *limits, "-runs=0", kept, seeds], env=environment,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    measure(outcome, program, profile)
    return outcome


def measure(outcome, program, profile):
    """Lines of the target's decoders, by llvm-cov; of a file with :NAMES only of functions that
    are named so."""
    if not profile.exists():
        return
    merged = profile.with_suffix(".profdata")
    subprocess.run(["llvm-profdata-14", "merge", "-sparse", profile, "-o", merged], check=True)
    files = dict(entry.partition(":")[::2] for entry in TARGETS[outcome.target][0])
    paths = [ROOT / name for name in files]
    text = subprocess.run(["llvm-cov-14", "show", program, f"-instr-profile={merged}",
                           f"-path-equivalence=/,{ROOT}/", *paths], check=True, text=True,
                          errors="replace", stdout=subprocess.PIPE).stdout
    uncovered = []
    name, wanted, is_wanted = "", None, True
    for line in text.splitlines():
        heading = re.match(r"^(/\S+):$", line)
        if heading:
            name = os.path.relpath(heading[1], ROOT)
            wanted = files.get(name) or None
            is_wanted = wanted is None
            continue
        row = re.match(r"^ *(\d+)\| *([\d.]+[kMGTPE]?)?\|(.*)$", line)
        if not row:
            continue
        number, count, source = row.groups()
        if wanted and re.match(r"\S.*\w\(|\S.*[({]$", source):
            is_wanted = re.search(wanted, source) is not None
        if not is_wanted or count is None:
            continue
        outcome.lines += 1
        if count == "0":
            uncovered.append(f"{name}:{number}: {source.strip()}")
        else:
            outcome.covered += 1
    outcome.uncovered = tuple(uncovered)


def report(folder, outcomes):
    print(f"{'target':14} {'seconds':>8} {'runs':>11} {'per s':>7} {'lines':>11} {'reached':>8}  "
          "verdict")
    for outcome in outcomes:
        verdict = "ok" if outcome.percent >= COVERAGE_MIN else f"below {COVERAGE_MIN} %"
        if outcome.findings:
            verdict = f"{len(outcome.findings)} FINDINGS"
        print(f"{outcome.target:14} {outcome.seconds:8} {outcome.runs:11} {outcome.per_second:7} "
              f"{outcome.covered:5}/{outcome.lines:5} {outcome.percent:7.1f}%  {verdict}")
    for outcome in outcomes:
        with (folder / f"uncovered_{outcome.target}.txt").open("w") as file:
            file.write("\n".join(outcome.uncovered) + "\n")
    print(f"what was not reached: {folder}/uncovered_TARGET.txt")
    for outcome in outcomes:
        for finding in outcome.findings:
            print(f"again: {folder}/tests/fuzz/fuzz_{outcome.target} {finding}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=600, help="of each target")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("targets", nargs="*", default=sorted(TARGETS), metavar="TARGET")
    arguments = parser.parse_args()
    for target in arguments.targets:
        if target not in TARGETS:
            sys.exit(f"'{target}' is no target; there are {', '.join(sorted(TARGETS))}")
    for program in ("clang++-14", "llvm-profdata-14", "llvm-cov-14"):
        if shutil.which(program) is None:
            print(f"skipped: no {program}: run tools/setup, or install clang-14 and llvm-14")
            sys.exit(EXIT_SKIPPED)
    folder = arguments.build.resolve()
    build(folder, arguments.targets)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(lambda target: fuzz(folder, target, arguments.seconds),
                                 arguments.targets))
    report(folder, outcomes)
    sys.exit(any(o.findings or o.percent < COVERAGE_MIN for o in outcomes))


if __name__ == "__main__":
    main()
