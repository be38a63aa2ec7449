#!/usr/bin/env python3
# PROMISE: T23 a daemon that sleeps
"""A stopped daemon: every call answers, about as late as a bare timer would.

In each round the daemon is stopped (SIGSTOP), every kind of call is made with deadlines of 1 to
50 ms, blocking and asynchronous, with a bare ppoll of the same time after each; then the daemon
goes on, and everything must work with nothing left behind.

With --quiet 1 the promise itself is held to as well, which needs a machine that does nothing else:
the daemon is stopped for 30 s, 9,999 of 10,000 calls are late by 5 ms at most, and none by 50.

A busy machine wakes any sleeper late now and then, and at random: a series of rounds whose tails
are too long is repeated, and the check fails when none of three was within the limit.
"""
import signal
import statistics
import sys
import time

import rig

RATIO_MAX = 2.0
ROUNDS_TO_JUDGE = 5
SERIES_MAX = 3
STOPPED_S = 30  # with --quiet
LATE_US_MAX, LATEST_US_MAX = 5_000, 50_000  # with --quiet; of 9,999 in 10,000, of all
CALLS_IN_ROUND_MAX = 200
KINDS = 9
DEADLINES = 6


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(stage, client, repetitions):
    """[(kind, deadline_us, overshoot_us of the call, overshoot_us of the timer, status)]"""
    client.tell("prepare")
    client.expect("prepared")
    stage.daemon.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    client.tell(f"measure {repetitions}")
    samples = []
    while (line := client.line()) != "done":
        _, kind, deadline_us, call_ns, bare_ns, status = line.split()
        deadline_us = int(deadline_us)
        samples.append((kind, deadline_us, int(call_ns) / 1000 - deadline_us,
                        int(bare_ns) / 1000 - deadline_us, int(status)))
    if stage.arguments.quiet:
        time.sleep(max(0.0, STOPPED_S - (time.monotonic() - began)))
    stage.daemon.send_signal(signal.SIGCONT)
    client.tell("recover")
    resident_count, _ = map(int, client.expect("recovered"))
    if resident_count == 0:
        stage.check(False, "after SIGCONT nothing could be stored and read again")
    return samples


def report(stage, samples):
    """Prints the distributions; the p99 of all calls and of all timers."""
    timed_out = [s for s in samples if s[2] >= 0]
    early = [s for s in samples if s[2] < 0]
    print(f"      {'overshoot in us':16}{'calls':>6}{'p50':>9}{'p99':>9}{'max':>9}"
          f"{'timer p50':>11}{'p99':>9}{'max':>9}")
    for kind in [*sorted({s[0] for s in timed_out}), "all"]:
        rows = [s for s in timed_out if kind in (s[0], "all")]
        figures = [x for v in ([s[2] for s in rows], [s[3] for s in rows])
                   for x in (percentile(v, 0.5), percentile(v, 0.99), max(v))]
        print(f"      {kind:16}{len(rows):>6}" + "".join(
            f"{x:>{w}.0f}" for x, w in zip(figures, (9, 9, 9, 11, 9, 9))))
    answers = {rig.STATUS_NAMES[s[4]] for s in samples}
    stage.check(answers == {"busy"}, f"{len(samples)} calls, {len(samples)} answers, all of them: "
                                     f"{', '.join(sorted(answers))}")
    stage.check(not early, f"{len(early)} answered before their deadline"
                + (f", e.g. {early[0][0]} by {-early[0][2]:.0f} us" if early else ""))
    return figures[1], figures[4]


def compare(rounds, p99, timer_p99):
    """(within the limit, sentence). The median of each kind of call, which noise hardly moves; p99
    over all; of the maxima, one sample each, the median of the rounds'."""
    samples = [sample for samples in rounds for sample in samples]
    kinds = {kind: [s for s in samples if s[0] == kind] for kind in {s[0] for s in samples}}
    ratios = {kind: percentile([s[2] for s in rows], 0.5) / percentile([s[3] for s in rows], 0.5)
              for kind, rows in kinds.items()}
    latest = max(ratios, key=ratios.get)
    maximum = statistics.median(max(s[2] for s in samples) for samples in rounds)
    timer_maximum = statistics.median(max(s[3] for s in samples) for samples in rounds)
    p99_ratio, max_ratio = p99 / timer_p99, maximum / timer_maximum
    return (max(ratios[latest], p99_ratio, max_ratio) <= RATIO_MAX,
            f"overshoot against a bare timer's: p50 at most {ratios[latest]:.2f} times ({latest}); "
            f"p99 {p99:.0f} us, {p99_ratio:.2f} times; median of {len(rounds)} rounds' maxima "
            f"{maximum:.0f} us, {max_ratio:.2f} times")


def run_series(stage, client):
    """(within the limit, sentence)"""
    rounds = []
    for _ in range(stage.arguments.rounds):
        rounds.append(measure(stage, client, stage.arguments.repetitions))
        if rig.wait_until(lambda: stage.stats()["lease_count"] == 0, 5) is None:
            stage.check(False, f"{stage.stats()['lease_count']} leases of abandoned calls left")
    samples = [sample for samples in rounds for sample in samples]
    is_within, tails = compare(rounds, *report(stage, samples))
    if stage.arguments.quiet:
        late_us = [sample[2] for sample in samples]
        usual_us, latest_us = percentile(late_us, 0.9999), max(late_us)
        is_within &= usual_us <= LATE_US_MAX and latest_us <= LATEST_US_MAX
        tails += (f"; stopped for {STOPPED_S} s, {len(samples)} calls: 9,999 of 10,000 late by at "
                  f"most {usual_us / 1000:.1f} ms, the latest by {latest_us / 1000:.1f} ms")
    return is_within, tails


def main():
    arguments = rig.parse_arguments(__doc__, 900, rounds=(8, 1), repetitions=(3, 1),
                                    quiet=(0, 0))
    if arguments.repetitions * KINDS * DEADLINES > CALLS_IN_ROUND_MAX:
        sys.exit(f"--repetitions {arguments.repetitions}: more than {CALLS_IN_ROUND_MAX} calls a "
                 "round would fill the client's table of pending requests; take at most 3")
    stage = rig.Rig(arguments, dram_mib=64, segment_mib=4)
    with stage:
        stage.console()
        client = stage.client("deadlines", blocks=8)
        client.expect("ready")
        for series in range(1, SERIES_MAX + 1):
            is_within, tails = run_series(stage, client)
            if is_within or arguments.rounds < ROUNDS_TO_JUDGE:
                break
            print(f"      series {series}: {tails}", flush=True)
        if arguments.rounds < ROUNDS_TO_JUDGE:
            print(f"      {tails}; too few rounds to judge")
        else:
            stage.check(is_within, f"{tails} (limit {RATIO_MAX:g}), in series {series}")
        stage.check(client.finish() == 0, "the client ended in good order")
        stage.check_nothing_left()
        stage.summary = f"every call answered, and all works after SIGCONT; {tails}"
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
