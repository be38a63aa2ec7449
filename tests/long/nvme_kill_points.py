#!/usr/bin/env python3
# PROMISE: T09 a death at each step
"""The daemon dies at every step of writing, publishing, evicting and recovering.

A preloaded library kills terraced before or after the Nth system call of one kind on one kind of
the tier's files. A first run under load and a first recovery list the points there are; then each
is struck many times, N drawn at random within what that point saw. After each death: no wrong
byte, every block that was reported persisted is there, nothing that was erased is back.

A daemon that dies early, or has erased what was persisted and not yet persisted what came since,
has nothing to lose. So before each life all prompts are persisted, and one life erases prompts of
one family only: however busy the machine is, the other family's blocks are looked for.
"""
import collections
import functools
import operator
import os
import select
import shutil
import sys
import time

import rig

ARCHIVE_PROMPTS = 8
FAMILY_PROMPTS = 4  # of the client's prompts, which share their first three blocks
FAMILY_BLOCKS = 15
BLOCKS = 6
POINTS_MIN = 40
NTH_MAX = 60
RUN_S = 1.5
WATCH_S = 0.01
LIVES = 4
TRIES_MORE = 5
ANSWER_S = 60


class Stage(rig.Rig):
    """A rig whose daemon runs with the preloaded library."""
    environment = {}
    answers_due = 0

    def start_daemon(self):
        with open(self.log_path, "ab") as log:
            self.daemon = rig.subprocess.Popen(
                [self.terraced, "--config", self.directory / "terraced.toml"], stdout=log,
                stderr=log, stdin=rig.subprocess.DEVNULL, preexec_fn=rig.die_with_parent,
                env=os.environ | self.environment)
        self.daemon_starts += 1

    def empty_disks(self, archivist):
        """Leaves the daemon dead and its disks empty."""
        archivist.ask("forget all", ANSWER_S)
        self.kill_daemon()
        shutil.rmtree(self.nvme_path)


def quietly(stage, client, line):
    """Asks, and takes no answer for one if the daemon dies: stage.answers_due counts them."""
    if stage.daemon.poll() is not None:
        return
    client.tell(line)
    while not select.select([client.process.stdout], [], [], WATCH_S)[0]:
        if stage.daemon.poll() is not None:
            stage.answers_due += 1
            return
    client.line(ANSWER_S)


def work(stage, archivist, until_s):
    """Stores, erases and remembers until the daemon is dead or the time is over."""
    end = time.monotonic() + until_s
    family = FAMILY_PROMPTS * stage.random.randrange(ARCHIVE_PROMPTS // FAMILY_PROMPTS)
    while stage.daemon.poll() is None and time.monotonic() < end:
        quietly(stage, archivist, "forget")
        quietly(stage, archivist, "store")
        quietly(stage, archivist, "remember")
        quietly(stage, archivist, f"erase {family + stage.random.randrange(FAMILY_PROMPTS)}")


def persist_all(archivist):
    """Every block of every prompt is persisted, and remembered as that."""
    blocks = ARCHIVE_PROMPTS // FAMILY_PROMPTS * FAMILY_BLOCKS
    persisted = 0

    def are_all():
        nonlocal persisted
        archivist.ask("store", ANSWER_S)  # now and then a client gives up what it began to store
        persisted = archivist.ask("remember", ANSWER_S)["persisted"]
        return persisted == blocks
    if rig.wait_until(are_all, ANSWER_S) is None:
        raise rig.Failure(f"{persisted} of {blocks} blocks are persisted after {ANSWER_S} s of a "
                          f"daemon that nobody kills: {archivist.errors()}")


def audit(stage, archivist, point, at_stake=0):
    while stage.answers_due:
        stage.answers_due -= 1
        archivist.line(ANSWER_S)
    back = archivist.ask("erased", ANSWER_S)
    if back["back"]:
        raise rig.Failure(f"{point}: {back['back']} of {back['erased']} erased blocks came back")
    survivors = archivist.ask("survivors", ANSWER_S)
    if survivors["found"] < survivors["persisted"] or survivors["wrong"]:
        raise rig.Failure(f"{point}: {survivors}: {archivist.errors()}")
    if survivors["persisted"] < at_stake:
        raise rig.Failure(f"{point}: of {at_stake} blocks that were persisted before this life and "
                          f"never erased {survivors['persisted']} were persisted in it")
    return survivors["persisted"]


def points_there_are(stage, library, archivist):
    """Calls that one life of a daemon makes, by kind: on empty disks, and the most later on."""
    log = stage.directory / "points.log"
    stage.environment = {"LD_PRELOAD": str(library), "TERRACE_KILL_POINT_LOG": str(log)}
    seen = []
    stage.empty_disks(archivist)
    for _ in range(LIVES):  # each recovers what the one before it left
        log.write_text("")
        stage.start_daemon()
        audit(stage, archivist, "without a kill")
        archivist.ask("forget", ANSWER_S)
        work(stage, archivist, RUN_S)
        stage.kill_daemon()
        seen.append(collections.Counter(log.read_text().split()))
    stage.environment = {}
    stage.start_daemon()
    return seen[0], functools.reduce(operator.or_, seen[1:])


def main():
    arguments = rig.parse_arguments(__doc__, 3500, repeats=(20, 1))
    library = arguments.build / "tests/chaos/libterrace_kill_point.so"
    stage = Stage(arguments, dram_mib=8, segment_mib=4, nvme_mib=192, slab_mib=8,
                  nvme_keys={"io": "threads"})
    with stage:
        archivist = stage.client("archivist", prompts=ARCHIVE_PROMPTS, blocks=BLOCKS, seed=5)
        archivist.expect("ready")
        first, later = points_there_are(stage, library, archivist)
        seen = first | later
        points = [(name, side) for name in sorted(seen) for side in ("before", "after")]
        if arguments.short:
            points = stage.random.sample(points, min(6, len(points)))
        struck = collections.Counter()
        persisted = 0
        for name, side in points:
            nth_max = min(later[name] or first[name], NTH_MAX)
            for _ in range(arguments.repeats + TRIES_MORE):
                if struck[(name, side)] == arguments.repeats:
                    break
                nth = 1 + stage.random.randrange(nth_max)
                point = f"{name}:{side}:{nth}"
                if later[name]:
                    persist_all(archivist)
                else:
                    stage.empty_disks(archivist)
                stage.kill_daemon()
                stage.environment = {"LD_PRELOAD": str(library), "TERRACE_KILL_POINT": point}
                stage.start_daemon()
                work(stage, archivist, RUN_S)
                if stage.daemon.poll() == -9:
                    struck[(name, side)] += 1
                else:  # it was not that busy this time
                    nth_max = max(1, nth - 1)
                stage.kill_daemon()
                stage.environment = {}
                stage.start_daemon()
                persisted += audit(stage, archivist, point, FAMILY_BLOCKS if later[name] else 0)
                archivist.ask("forget", ANSWER_S)
        persist_all(archivist)
        stage.kill_daemon()
        stage.start_daemon()
        persisted += audit(stage, archivist, "at the end",
                           ARCHIVE_PROMPTS // FAMILY_PROMPTS * FAMILY_BLOCKS)
        never = [f"{name}:{side}" for name, side in points if not struck[(name, side)]]
        print("      struck: " + ", ".join(f"{n}:{s} {c}" for (n, s), c in sorted(struck.items())))
        print(f"      never struck: {', '.join(never) or 'none'}")
        stage.check(arguments.short or len(points) - len(never) >= POINTS_MIN,
                    f"{len(points) - len(never)} points struck, {sum(struck.values())} kills")
        stage.check(persisted > 0, f"{persisted} persisted blocks looked for and found")
        stage.console(prompts=ARCHIVE_PROMPTS, blocks=BLOCKS)
        stage.check_clients([archivist])
        stage.summary = (f"{len(points) - len(never)} kill points, {sum(struck.values())} kills: "
                         f"0 wrong bytes, {persisted} persisted blocks found, no erased one back")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
