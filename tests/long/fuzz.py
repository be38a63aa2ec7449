#!/usr/bin/env python3
"""Fuzzes every target of tests/fuzz, and says how much of its decoders was reached.

usage: tests/long/fuzz.py [--seconds N] [-j N] [--build DIR] [--keep] [TARGET...]

Builds build/fuzz (preset fuzz), runs each target for N seconds of processor time (default 600), as
many at a time as there are processors (-j), and prints a table: inputs run, how many a second, the
edges of the program and the lines of the target's decoders that they reached. An input that ends
the process, by itself or because the target found something wrong, is a finding: it is kept in
build/fuzz/findings, and the command that does it again is printed. Inputs that reached something
new stay in build/fuzz/corpora/TARGET for the next run; --keep puts the smallest of them in
tests/fuzz/corpus, for everybody's.

Exit status 1: a finding, or a target that reached fewer lines than COVERAGE_MIN percent; 77: there
is no clang-14 here.
"""
import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS_SCRIPT = ROOT / "tests/fuzz/corpus.py"
COVERAGE_MIN = 90
INPUT_SECONDS_MAX = 25
INPUT_MIB_MAX = 2048
ALLOCATION_MIB_MAX = 256
# Of replies that nest, the places in the program that memory was taken from would fill the rest of
# it within minutes; whoever runs a finding again gets them whole.
SANITIZER_OPTIONS = "malloc_context_size=6"
WALL_FACTOR_MAX = 3  # of the seconds asked for: what waits for sockets takes little of a processor
EXIT_SKIPPED = 77
# Of an input that reaches ten thousand edges libFuzzer keeps books for longer than it takes to run.
OPTIONS = {"session": ["-entropic=0", "-reduce_inputs=0"]}
# The files whose lines a target is to reach (of a file with :NAMES only functions that are named
# so, with :!NAMES only others), and the longest input that it makes.
TARGETS = {
    "catalog": (["daemon/persist/group_files.cc:ParseGroup|ReadBody|TakeMember|TakeLine|ReadCount",
                 "daemon/persist/kept_generations.cc:ReadLine|FormatGen|ParseGen",
                 "include/src/space.cc:!FirstDifference|CountDifferences|::Id|window_blocks",
                 "include/src/space_group.cc:!::Id|_member_mask",
                 "include/src/domain_secret.cc:ParseDomainSecret|FormatDomainSecret"], 8192),
    "client_frames": (["client/link/frames.cc:FrameReader|BodyReader|IsAnswer|IsUnasked",
                       "client/core/replies.cc", "client/core/answers.cc",
                       "client/core/reader.cc:Dispatch|::On|Break"], 4096),
    "codec": (["cuda/kernels/plane_codec.cc", "include/src/codec.cc:!ApplyChunks",
               "include/src/chunk.cc:!ChunkSecret|ChunkHasher"],
              4096),
    "config": (["daemon/config/config_text.cc:!ReadConfig",
                "daemon/config/config_resolve.cc:!ApplyOverrides|Default|DirectoryOf|OfProcess",
                "daemon/config/toml_depth.cc"], 8192),
    "handover": (["daemon/handover/memory_keeper.cc:KeeperMessage|Handle|Put|Forget|GiveAll",
                  "daemon/handover/fd_store.cc:Keeper",
                  "daemon/arenas/inheritance.cc:!::Retry"], 1024),
    "handshake": (["client/session/handshake.cc:Hello|Open|Attach|Ask|Receive|Fds|Acknowledge",
                   "client/arena/attachment.cc:Check|Create|GrantSlabs|RetainSegments|Map|PlaceOf",
                   "client/session/group.cc:DecodeOpenReply"], 2048),
    "hot_file": (["tools/terrace/content/hot_file.cc"], 8192),
    "http": (["daemon/metrics/http_request.cc", "daemon/metrics/http_server.cc:OnRead|Send|Write"],
             4096),
    "keys": (["tiers/crypto/key_ring.cc:ParseKeyRing|ParseHex|IsOneByte",
              "tiers/crypto/group_key.cc:Unwrap|WrappedUnder|IsRecordOf"], 4096),
    "kv_replay": (["daemon/events/kv_event_replay.cc"], 1024),
    "learned": (["daemon/policy/eviction/hazard_model.cc:Learned|StartFrom|RefreshLevel|Rates"],
                512),
    "redis_format": (["tiers/redis/redis_format.cc:!RedisKeyNames|RedisChunkChecksum",
                      "tiers/redis/wire/redis_error.cc:!IsWriteRefusal|IsForeign",
                      "tiers/redis/wire/redis_endpoint.cc:ParseRedisEndpoint|ToText"], 4096),
    "redis_reply": (["tiers/redis/wire/redis_reply.cc"], 4096),
    "redis_servers": (["tiers/redis/redis_blocks.cc", "tiers/redis/redis_generations.cc",
                       "tiers/redis/wire/redis_servers.cc:TakeMap|TakeMaster|DropUnused|"
                       "OnNodeAnswer",
                       "tiers/redis/wire/redis_connection.cc:OnReply|OnLogin|IsReplyDue|Payload"],
                      1024),
    "session": (["daemon/session/frame_codec.cc", "daemon/session/message_body.cc",
                 "daemon/session/request.cc", "daemon/session/request_frame.cc",
                 "daemon/session/key_requests.cc", "daemon/session/lease_requests.cc",
                 "daemon/session/client_requests.cc", "daemon/session/operator_requests.cc",
                 "daemon/session/hint_table.cc", "daemon/session/verb_table.cc",
                 "daemon/session/session.cc", "daemon/session/session_requests.cc"], 4096),
    "slab": (["tiers/nvme/header_table.cc:!::PayloadOffsetBytes"], 4200),
    "slot_table": (["tiers/arena/slot_allocator.cc:Adopt|Fence|IsCurrent|Claim|Free|TakeRow",
                    "tiers/arena/extent_map.cc:CarveAdopted|Place|Return|Claim",
                    "tiers/arena/arena.cc:CheckTrailer|CheckFds|Noted|ForgetSession|PunchHalf"],
                   2048),
    "texts": (["tools/terrace/content/warm_list.cc",
               "tools/terrace/plan/model_shape.cc:!::token_bytes",
               "tools/terrace/cli/json_text.cc", "tools/terrace/cli/space_text.cc",
               "tools/terrace/cli/block_tree.cc", "tools/terrace/content/age_text.cc:!WhyNoAge",
               "daemon/config/listen_address.cc"], 4096),
    "trace": (["tools/terrace/trace/trace_reader.cc", "tools/terrace/trace/recording.cc",
               "tools/terrace/trace/trace.cc", "tools/replay/dense_trace.cc"], 8192),
}


@dataclasses.dataclass
class Outcome:
    target: str
    runs: int = 0
    seconds: float = 0  # of processor time
    edges: int = 0
    features: int = 0
    reached: dict = dataclasses.field(default_factory=dict)  # {file: {line: whether}}
    findings: tuple = ()

    def lines(self, file=None):
        """(lines that were reached, lines) of a decoder's file, or of all"""
        files = self.reached.values() if file is None else [self.reached[file]]
        flags = [flag for lines in files for flag in lines.values()]
        return sum(flags), len(flags)

    @property
    def percent(self):
        covered, lines = self.lines()
        return 100 * covered / lines if lines else 0


def build(folder, targets, jobs):
    log = folder / "fuzz.log"
    folder.mkdir(parents=True, exist_ok=True)
    for command in (["cmake", "--preset", "fuzz", "-B", folder],
                    ["cmake", "--build", folder, "-j", str(jobs), "--target",
                     *(f"fuzz_{name}" for name in targets)]):
        with log.open("a") as output:
            if subprocess.run(command, cwd=ROOT, stdout=output, stderr=output).returncode != 0:
                sys.exit(f"the fuzz targets do not build: see {log}")
    subprocess.run([CORPUS_SCRIPT, "unpack", folder / "kept"], check=True)


def run_measured(command, log, environment):
    """(exit status, processor seconds, what it said)"""
    with log.open("w+", errors="replace") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return process.returncode, usage.ru_utime + usage.ru_stime, output.read()


def is_slow_host(command, environment):
    """Whether an input only took long because something else did; then it is no finding."""
    path = command[-1]
    if path.name.split("-")[0] not in ("slow", "timeout"):
        return False
    if subprocess.run(command, env=environment, capture_output=True, check=False).returncode != 0:
        return False
    path.unlink()
    return True


def fuzz(folder, target, seconds):
    """One target: libFuzzer for so long, then all that was found once more, for the lines."""
    program = folder / "tests/fuzz" / f"fuzz_{target}"
    corpus, seeds, kept, findings = (folder / name / target for name in
                                     ("corpora", "seeds", "kept", "findings"))
    for path in (corpus, seeds, kept, findings):
        path.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "LLVM_PROFILE_FILE": "/dev/null", "ASAN_OPTIONS":
                   f"{SANITIZER_OPTIONS}:{os.environ.get('ASAN_OPTIONS', '')}"}
    subprocess.run([program], check=True, env={**environment, "TERRACE_FUZZ_SEEDS": str(seeds)})
    before = set(findings.iterdir())
    _, bytes_max = TARGETS[target]
    limits = [f"-timeout={INPUT_SECONDS_MAX}", f"-rss_limit_mb={INPUT_MIB_MAX}",
              f"-malloc_limit_mb={ALLOCATION_MIB_MAX}", f"-artifact_prefix={findings}/"]
    outcome = Outcome(target)
    log = folder / f"fuzz_{target}.log"
    began = time.monotonic()
    while (outcome.seconds < seconds and not outcome.findings
           and time.monotonic() - began < WALL_FACTOR_MAX * seconds):
        left = max(5, int(seconds - outcome.seconds))
        status, took, said = run_measured(
            [program, *limits, f"-max_total_time={left}", f"-max_len={bytes_max}",
             "-print_final_stats=1", *OPTIONS.get(target, ()), corpus, seeds, kept], log,
            environment)
        outcome.seconds += took
        executed = re.findall(r"^(?:stat::number_of_executed_units: |#)(\d+)", said, re.M)
        outcome.runs += int(executed[-1]) if executed else 0
        reached = re.findall(r"cov: (\d+) ft: (\d+)", said)
        if reached:
            outcome.edges, outcome.features = map(int, reached[-1])
        outcome.findings = tuple(path for path in sorted(set(findings.iterdir()) - before)
                                 if not is_slow_host([program, *limits, path], environment))
        if status not in (0, 70) and not outcome.findings:  # 70: too slow, see above
            outcome.findings = (f"exit status {status}, see {log}",)
    measure(folder, outcome, [program, *limits, "-runs=0", corpus, seeds, kept])
    return outcome


def measure(folder, outcome, command):
    """Lines of the target's decoders, by llvm-cov."""
    profile = folder / "profiles" / f"{outcome.target}.profraw"
    profile.parent.mkdir(exist_ok=True)
    profile.unlink(missing_ok=True)
    subprocess.run(command, env={**os.environ, "LLVM_PROFILE_FILE": str(profile)},
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not profile.exists():
        return
    merged = profile.with_suffix(".profdata")
    subprocess.run(["llvm-profdata-14", "merge", "-sparse", profile, "-o", merged], check=True)
    text = subprocess.run(["llvm-cov-14", "export", "-format=lcov", command[0],
                           f"-instr-profile={merged}", "-ignore-filename-regex=^/usr/"], check=True,
                          text=True, errors="replace", stdout=subprocess.PIPE).stdout
    counts = counts_of(text)
    for entry in TARGETS[outcome.target][0]:
        name, _, wanted = entry.partition(":")
        outcome.reached[name] = {number: counts[name][number] > 0
                                 for number, _ in lines_of(name, wanted)
                                 if number in counts.get(name, {})}


def counts_of(lcov):
    """{file from the top of the checkout: {line: how often it was run}}"""
    counts, lines = {}, {}
    for line in lcov.splitlines():
        if line.startswith("SF:"):
            lines = counts.setdefault(source_of(line[3:]), {})
        elif line.startswith("DA:"):
            number, count = map(int, line[3:].split(",")[:2])
            lines[number] = max(count, lines.get(number, 0))
    return counts


def source_of(path):
    """A source from the top of the checkout; it was told as the compiler was called: from there,
    from the build's folder, or as if it lay in that."""
    parts = pathlib.PurePath(os.path.normpath(path)).parts
    rests = (pathlib.PurePath(*parts[i:]) for i in range(len(parts)))
    return next((str(rest) for rest in rests
                 if not rest.is_absolute() and (ROOT / rest).is_file()), path)


def lines_of(name, wanted):
    """(number, text) of each line; with `wanted` only of functions that are named so, or not so."""
    is_refused = wanted.startswith("!")
    names = wanted.removeprefix("!")
    is_wanted = not wanted or is_refused
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        # A definition begins at the line's beginning, or is a method within its class.
        if wanted and re.match(r"[A-Za-z~][^;]*\w\([^;]*$|  [\w:<>&* ]+ \w+\([^;]*\{$", line):
            is_wanted = (re.search(names, line) is None) == is_refused
        if is_wanted:
            yield number, line


def report(folder, outcomes):
    print(f"{'target':14} {'CPU s':>6} {'runs':>10} {'per s':>6} {'edges':>6} {'features':>8} "
          f"{'lines':>10} {'reached':>8}  verdict")
    for outcome in outcomes:
        verdict = "ok" if outcome.percent >= COVERAGE_MIN else f"below {COVERAGE_MIN} %"
        if outcome.findings:
            verdict = f"{len(outcome.findings)} FINDINGS"
        print(f"{outcome.target:14} {outcome.seconds:6.0f} {outcome.runs:10} "
              f"{outcome.runs / max(outcome.seconds, 1):6.0f} {outcome.edges:6} "
              f"{outcome.features:8} {'{:5}/{:4}'.format(*outcome.lines())} "
              f"{outcome.percent:7.1f}%  {verdict}")
        tell_lines(outcome, folder / f"lines_{outcome.target}.txt")
    print(f"lines by file, and which were not reached: {folder}/lines_TARGET.txt")
    for outcome in outcomes:
        for finding in outcome.findings:
            print(f"again: {folder}/tests/fuzz/fuzz_{outcome.target} {finding}")


def tell_lines(outcome, path):
    with path.open("w") as out:
        for file in outcome.reached:
            print("{1}/{2} {0}".format(file, *outcome.lines(file)), file=out)
        for file, lines in outcome.reached.items():
            texts = (ROOT / file).read_text().splitlines()
            for number, is_reached in lines.items():
                if not is_reached:
                    print(f"{file}:{number}: {texts[number - 1].strip()}", file=out)


def keep(folder, targets):
    """The corpora without what others of them reach, smallest first, as far as there is room."""
    shutil.rmtree(folder / "minimal", ignore_errors=True)
    for target in targets:
        minimal = folder / "minimal" / target
        minimal.mkdir(parents=True)
        subprocess.run([folder / "tests/fuzz" / f"fuzz_{target}", "-merge=1", minimal,
                        folder / "corpora" / target], check=True, stderr=subprocess.DEVNULL,
                       env={**os.environ, "LLVM_PROFILE_FILE": "/dev/null"})
    subprocess.run([CORPUS_SCRIPT, "keep", folder / "minimal"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=600,
                        help="of processor time, each target")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="targets at a time")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--keep", action="store_true", help="put what was found in tests/fuzz")
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
    build(folder, arguments.targets, arguments.jobs)
    began = time.monotonic()
    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as workers:
        running = (workers.submit(fuzz, folder, target, arguments.seconds)
                   for target in arguments.targets)
        for done in concurrent.futures.as_completed(list(running)):
            outcomes.append(done.result())
            if outcomes[-1].findings:
                print(f"{outcomes[-1].target}: {outcomes[-1].findings[0]}", flush=True)
    report(folder, sorted(outcomes, key=lambda outcome: outcome.target))
    print(f"{time.monotonic() - began:.0f} s")
    if arguments.keep:
        keep(folder, arguments.targets)
    sys.exit(any(o.findings or o.percent < COVERAGE_MIN for o in outcomes))


if __name__ == "__main__":
    main()
