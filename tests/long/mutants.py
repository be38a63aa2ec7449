#!/usr/bin/env python3
"""Plants known bugs, one at a time, and asks the simulation to find each.

Every tests/mutants/*.patch is one bug; its first line says which. The committed tree is copied to
build/mutants/tree, patched, built, and the simulation runs until it fails or the seeds are used up.
What the simulation has no part in is judged by other tests: the patch's second line is then
"judge: PROGRAM FILTER". A bug that survives, or a patch that no longer applies, fails this check.

usage: tests/long/mutants.py [NAME...]     (TERRACE_SIM_SEEDS: seeds to try, default 1000)
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
BUILD = WORK / "build"
SEEDS = int(os.environ.get("TERRACE_SIM_SEEDS", "1000"))
BUILD_SECONDS_MAX = 1800
RUN_SECONDS_MAX = 1800


def run(command, **options):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **options)


def fresh_tree():
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True,
                             stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(TREE)], input=archive.stdout, check=True)


def judge_of(patch):
    """The test program that must fail, and its filter."""
    words = patch.read_text().splitlines()[1].split()
    if words[0] == "judge:":
        return words[1], words[2]
    return "sim_sim_test", "Simulation.*"


def build(targets):
    configure = run(["cmake", "-S", str(TREE), "-B", str(BUILD), "-G", "Ninja",
                     "-DCMAKE_BUILD_TYPE=Release"], timeout=BUILD_SECONDS_MAX)
    if configure.returncode != 0:
        return configure
    return run(["cmake", "--build", str(BUILD), "--target", *targets],
               timeout=BUILD_SECONDS_MAX)


def judge(program, tests):
    return run([str(BUILD / "tests" / program), f"--gtest_filter={tests}"],
               env={**os.environ, "TERRACE_SIM_SEEDS": str(SEEDS)}, timeout=RUN_SECONDS_MAX)


def caught_by(output):
    seed = re.search(r"seed (\d+)", output)
    reason = re.search(r"(?:Failure|check failed).*", output)
    return (seed.group(1) if seed else "?"), (reason.group(0)[:100] if reason else "")


def main():
    wanted = sys.argv[1:]
    patches = sorted((ROOT / "tests" / "mutants").glob("*.patch"))
    patches = [p for p in patches if not wanted or p.stem in wanted]
    if not patches:
        sys.exit(f"mutants: no tests/mutants/*.patch named {wanted}")
    fresh_tree()
    judges = sorted({judge_of(patch) for patch in patches})
    built = build([program for program, _ in judges])
    if built.returncode != 0:
        sys.exit("mutants: the unpatched tree does not build:\n" + built.stdout[-3000:])
    for program, tests in judges:
        clean = judge(program, tests)
        if clean.returncode != 0:
            sys.exit(f"mutants: {program} fails without any planted bug:\n" + clean.stdout[-3000:])
    print(f"unpatched: {SEEDS} seeds, nothing found", flush=True)
    survivors = []
    for patch in patches:
        title = patch.read_text().splitlines()[0]
        applied = run(["patch", "-p1", "-d", str(TREE), "-i", str(patch)])
        if applied.returncode != 0:
            survivors.append(patch.stem)
            print(f"{patch.stem}: the patch no longer applies: {applied.stdout.strip()}",
                  flush=True)
            fresh_tree()
            continue
        program, tests = judge_of(patch)
        built = build([program])
        if built.returncode != 0:
            survivors.append(patch.stem)
            print(f"{patch.stem}: does not build: {built.stdout[-1000:]}", flush=True)
        else:
            result = judge(program, tests)
            if result.returncode == 0:
                survivors.append(patch.stem)
                print(f"{patch.stem}: SURVIVED {program} ({title})", flush=True)
            else:
                seed, reason = caught_by(result.stdout)
                print(f"{patch.stem}: caught by {program}, seed {seed} ({title})\n"
                      f"    {reason}", flush=True)
        run(["patch", "-R", "-p1", "-d", str(TREE), "-i", str(patch)], check=True)
    print(f"mutants: {len(patches) - len(survivors)} of {len(patches)} caught")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
