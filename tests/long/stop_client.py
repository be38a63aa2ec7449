#!/usr/bin/env python3
# PROMISE: T22 clients that sleep
"""A client that sleeps through its lease: it wakes up and damages nobody.

In each round a client is stopped (SIGSTOP) in the middle of a copy, its leases run out, others
fill the arena as far as it goes, and it is woken (SIGCONT): it finishes its copy into memory that
must still be nobody else's, its Commit answers "gone", and the fence falls when it acknowledges.
Then some sleep for a minute, over leases of half that: each lease is over at its time to live.
"""
import re
import signal
import sys
import time

import rig

LEASE_TTL_MS = 300
PROMPTS = 96
LONG_TTL_MS = 30_000
SLEEPERS = 4  # whose memory is within fenced_bytes_max
TTL_ERROR_MS_MAX = 1000
GONE = rig.STATUS_NAMES.index("gone")


def round_of(stage, number):
    """One round; (everything as it must be, bytes fenced, bytes that others committed meanwhile)"""
    sleeper = stage.client("frozen", prompt_first=200_000 + 100 * number, blocks=6,
                           seed=number + 1)
    slot_bytes = int(sleeper.expect("copying")[0])
    time.sleep(stage.random.random() * 0.02)
    sleeper.signal(signal.SIGSTOP)
    sealed_before = stage.stats()["blocks_sealed"]
    was_revoked = rig.wait_until(lambda: stage.stats()["fenced_bytes"] >= slot_bytes, 5)
    time.sleep(0.3)  # the others work on, with the fence in their way
    fenced_bytes = stage.stats()["fenced_bytes"]
    sleeper.signal(signal.SIGCONT)
    time.sleep(0.05)
    sleeper.tell("finish")
    commit_status, _, is_valid = sleeper.expect("commit")
    fenced_at_commit = stage.stats()["fenced_bytes"]
    sealed_bytes = (stage.stats()["blocks_sealed"] - sealed_before) * slot_bytes // 6
    sleeper.tell("acknowledge")
    sleeper.expect("acknowledged")
    fell = rig.wait_until(lambda: stage.stats()["fenced_bytes"] == 0, 5)
    sleeper.tell("go on")
    served_count = int(sleeper.expect("served")[0])
    facts = {
        "its leases were revoked": was_revoked is not None,
        f"Commit answered gone (was: {rig.STATUS_NAMES[int(commit_status)]})":
            int(commit_status) == GONE,
        "no lease was valid": int(is_valid) == 0,
        f"still fenced at Commit ({fenced_at_commit} bytes)": fenced_at_commit >= slot_bytes,
        "the fence fell after the acknowledgement": fell is not None,
        "the client works on": served_count == 2,
        "it saw no wrong byte": sleeper.finish() == 0,
    }
    wrong = [fact for fact, holds in facts.items() if not holds]
    if wrong:
        stage.check(False, f"round {number}: not true: {'; '.join(wrong)} {sleeper.errors()}")
    return not wrong, fenced_bytes, sealed_bytes, sleeper


def long_sleep(arguments):
    """Clients that all stop at once, for longer than their leases last."""
    stage = rig.Rig(arguments, dram_mib=32, segment_mib=2, lease_ttl_ms=LONG_TTL_MS)
    with stage:
        stage.console()
        sleepers = [stage.client("frozen", prompt_first=300_000 + 100 * i, blocks=6, seed=i + 1)
                    for i in range(SLEEPERS)]
        for sleeper in sleepers:
            sleeper.expect("copying")
        time.sleep(1)
        for sleeper in sleepers:
            sleeper.signal(signal.SIGSTOP)
        time.sleep(arguments.sleep_s)
        # For how long it had heard nothing when it took the leases: the daemon says it of the first
        # of many that are silent at once.
        silent_ms = [int(ms) for ms in re.findall(r"a client is silent.* silent_ms=(\d+)",
                                                  stage.log_path.read_text())]
        over = ", ".join(str(ms) for ms in silent_ms)
        stage.check(silent_ms and all(abs(ms - LONG_TTL_MS) <= TTL_ERROR_MS_MAX
                                      for ms in silent_ms),
                    f"leases of {LONG_TTL_MS} ms were over after {over} ms of silence")
        for sleeper in sleepers:
            sleeper.signal(signal.SIGCONT)
        statuses = []
        for sleeper in sleepers:
            sleeper.tell("finish")
            statuses.append(int(sleeper.expect("commit")[0]))
            sleeper.tell("acknowledge")
            sleeper.expect("acknowledged")
        stage.check(statuses == [GONE] * len(sleepers),
                    f"of {len(sleepers)} Commits after {arguments.sleep_s} s "
                    f"{statuses.count(GONE)} were answered \"gone\"")
        for sleeper in sleepers:
            sleeper.close()
        stage.check_nothing_left()
        stage.summary = (f"{len(sleepers)} clients slept for {arguments.sleep_s} s: leases over "
                         f"after {over} ms, every late Commit gone")
    return stage.verdict()


def short_sleeps(arguments):
    stage = rig.Rig(arguments, dram_mib=32, segment_mib=2, lease_ttl_ms=LEASE_TTL_MS)
    with stage:
        stage.console(prompts=PROMPTS)
        workers = [stage.client("worker", prompts=PROMPTS, seconds=300, seed=10 + i)
                   for i in range(2)]
        for worker in workers:
            worker.expect("ready")
        rig.wait_until(lambda: stage.stats()["blocks_evicted"] > 0, 20)
        rounds = [round_of(stage, i) for i in range(arguments.rounds)]
        good = sum(r[0] for r in rounds)
        stage.check(good == len(rounds), f"{good} of {len(rounds)} rounds good; "
                    f"{min(r[1] for r in rounds)} to {max(r[1] for r in rounds)} bytes fenced")
        reused_min = min(r[2] for r in rounds)
        stage.check(reused_min > 0, "in each round others stored at least "
                                    f"{reused_min / rig.MIB:.0f} MiB while it slept")
        statuses = [worker.finish() for worker in workers]
        stage.check(statuses == [0, 0], f"workers ended with {statuses}")
        audit = stage.console_client.ask("audit")
        stage.check(audit["wrong"] == 0, f"an audit read {audit['blocks']} resident blocks")
        stage.check_clients([*workers, *(r[3] for r in rounds)])
        stage.check_nothing_left()
        stage.summary = (f"{good} of {len(rounds)} sleepers woke up and overwrote nothing")
    return stage.verdict()


def main():
    arguments = rig.parse_arguments(__doc__, 300, rounds=(20, 3), sleeps=(3, 0), sleep_s=(60, 60))
    return max([short_sleeps(arguments)] + [long_sleep(arguments) for _ in range(arguments.sleeps)])


if __name__ == "__main__":
    sys.exit(main())
