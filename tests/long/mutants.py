#!/usr/bin/env python3
"""Plants known bugs, one at a time, and asks the simulation to find each.

Every tests/mutants/*.patch is one bug; its first line says which. The committed tree is copied to
build/mutants/tree, patched, built, and the simulation runs until it fails or the seeds are used up.
It is built as build/release is, so that a compiler cache has all of it but what is patched.
What the simulation has no part in is judged by other tests: the patch's second line is then
"judge: PROGRAM FILTER". A bug that survives fails this check; so does a patch, named or not, whose
lines are not in the code as they are written there: nobody knows what it would plant.

usage: tests/long/mutants.py [NAME...]     (TERRACE_SIM_SEEDS: seeds to try, default 1000)
       tests/long/mutants.py --apply       only sees that every patch applies, to the files as they
                                           are here, committed or not
"""
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
BUILD = TREE / "build" / "release"
SEEDS = int(os.environ.get("TERRACE_SIM_SEEDS", "1000"))
UNPATCHED_SEEDS_MAX = 20  # a simulation's own test has run all of them
BUILD_SECONDS_MAX = 1800
RUN_SECONDS_MAX = 1800


def run(command, **options):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **options)


def files_of(tree):
    return {p.relative_to(tree) for p in tree.rglob("*")
            if (p.is_file() or p.is_symlink()) and p.relative_to(tree).parts[0] != "build"}


def fresh_tree():
    """The committed tree. Files that differ from it get the time of now, not of the commit: else
    objects that were built of a planted bug would be newer, and stay."""
    committed = WORK / "committed"
    shutil.rmtree(committed, ignore_errors=True)
    committed.mkdir(parents=True)
    TREE.mkdir(exist_ok=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True,
                             stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-m", "-C", str(committed)], input=archive.stdout, check=True)
    for name in files_of(TREE) - files_of(committed):
        (TREE / name).unlink()
    for name in files_of(committed):
        if not (TREE / name).exists() or not filecmp.cmp(committed / name, TREE / name, False):
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(committed / name, TREE / name)
    shutil.rmtree(committed)


def apply(patch, tree, *options):
    """Without fuzz: lines that look alike somewhere else are not what the patch was made for."""
    return run(["patch", "-p1", "--fuzz=0", "--force", "-d", str(tree), "-i", str(patch),
                *options])


def require_all_apply(patches, tree):
    refused = {p.stem: done.stdout.strip() for p in patches
               if (done := apply(p, tree, "--dry-run")).returncode != 0}
    for name, why in refused.items():
        print(f"{name}: the patch no longer applies:\n{why}", file=sys.stderr)
    if refused:
        sys.exit(f"mutants: {len(refused)} of {len(patches)} patches do not apply "
                 f"({', '.join(refused)}): make them anew against today's code, so that each "
                 "plants the bug that its first line names")


def judge_of(patch):
    """The test program that must fail, and its filter."""
    words = patch.read_text().splitlines()[1].split()
    if words[0] == "judge:":
        return words[1], words[2]
    return "sim_sim_test", "Simulation.*"


def build(targets):
    configure = run(["cmake", "--preset", "release"], cwd=TREE, timeout=BUILD_SECONDS_MAX)
    if configure.returncode != 0:
        return configure
    return run(["cmake", "--build", str(BUILD), "--target", *targets],
               timeout=BUILD_SECONDS_MAX)


def judge(program, tests, seeds=SEEDS):
    return run([str(BUILD / "tests" / program), f"--gtest_filter={tests}",
                "--gtest_fail_fast"],
               env={**os.environ, "TERRACE_SIM_SEEDS": str(seeds), "TERRACE_SIM_SHRINK": "0"},
               timeout=RUN_SECONDS_MAX)


def caught_by(output):
    seed = re.search(r"seed (\d+)", output)
    reason = re.search(r"(?:Failure|check failed).*", output)
    return (seed.group(1) if seed else "?"), (reason.group(0)[:100] if reason else "")


def main():
    wanted = sys.argv[1:]
    every = sorted((ROOT / "tests" / "mutants").glob("*.patch"))
    if wanted == ["--apply"]:
        require_all_apply(every, ROOT)
        print(f"mutants: all {len(every)} patches apply")
        return
    unknown = set(wanted) - {p.stem for p in every}
    if unknown or not every:
        sys.exit(f"mutants: no tests/mutants/*.patch named {', '.join(sorted(unknown)) or 'so'}; "
                 f"there are {', '.join(p.stem for p in every)}")
    patches = [p for p in every if not wanted or p.stem in wanted]
    fresh_tree()
    require_all_apply(every, TREE)
    judges = sorted({judge_of(patch) for patch in patches})
    built = build([program for program, _ in judges])
    if built.returncode != 0:
        sys.exit("mutants: the unpatched tree does not build:\n" + built.stdout[-3000:])
    for program, tests in judges:
        clean = judge(program, tests, min(SEEDS, UNPATCHED_SEEDS_MAX))
        if clean.returncode != 0:
            sys.exit(f"mutants: {program} fails without any planted bug:\n" + clean.stdout[-3000:])
    print("unpatched: nothing found", flush=True)
    survivors = []
    for patch in patches:
        title = patch.read_text().splitlines()[0]
        applied = apply(patch, TREE)
        if applied.returncode != 0:
            sys.exit(f"mutants: {patch.stem} does not apply: {applied.stdout.strip()}")
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
        apply(patch, TREE, "--reverse").check_returncode()
    print(f"mutants: {len(patches) - len(survivors)} of {len(patches)} caught")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
