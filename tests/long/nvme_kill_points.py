#!/usr/bin/env python3
"""The daemon dies at every step of writing, publishing, evicting and recovering.

A preloaded library kills terraced before or after the Nth system call of one kind on one kind of
the tier's files. A first run under load and a first recovery list the points there are; then each
is struck many times, N drawn at random within what that point saw. After each death: no wrong
byte, every block that was reported persisted is there, nothing that was erased is back.
"""
import collections
import contextlib
import os
import sys
import time

import rig

ARCHIVE_PROMPTS = 8
BLOCKS = 6
POINTS_MIN = 40
NTH_MAX = 60
RUN_S = 1.5
ANSWER_S = 60


class Stage(rig.Rig):
    """A rig whose daemon runs with the preloaded library."""
    environment = {}

    def start_daemon(self):
        with open(self.log_path, "ab") as log:
            self.daemon = rig.subprocess.Popen(
                [self.terraced, "--config", self.directory / "terraced.toml"], stdout=log,
                stderr=log, stdin=rig.subprocess.DEVNULL, preexec_fn=rig.die_with_parent,
                env=os.environ | self.environment)
        self.daemon_starts += 1


def quietly(client, line):
    """Asks; the daemon may be dead by now. None if it gave no answer."""
    client.tell(line)
    answer = rig.json.loads(client.line(ANSWER_S))
    return None if "error" in answer else answer


def work(stage, archivist, until_s):
    """Stores, erases and remembers until the daemon is dead or the time is over."""
    end = time.monotonic() + until_s
    number = 0
    while stage.daemon.poll() is None and time.monotonic() < end:
        quietly(archivist, "forget")
        quietly(archivist, "store")
        quietly(archivist, "remember")
        quietly(archivist, f"erase {stage.random.randrange(ARCHIVE_PROMPTS)}")
        number += 1
    return number


def audit(stage, archivist, point):
    back = archivist.ask("erased", ANSWER_S)
    if back["back"]:
        raise rig.Failure(f"{point}: {back['back']} of {back['erased']} erased blocks came back")
    survivors = archivist.ask("survivors", ANSWER_S)
    if survivors["found"] < survivors["persisted"] or survivors["wrong"]:
        raise rig.Failure(f"{point}: {survivors}: {archivist.errors()}")
    return survivors["persisted"]


def points_there_are(stage, library, archivist):
    """Calls seen by kind, under load and while recovering."""
    log = stage.directory / "points.log"
    stage.kill_daemon()
    stage.environment = {"LD_PRELOAD": str(library), "TERRACE_KILL_POINT_LOG": str(log)}
    stage.start_daemon()
    archivist.ask("forget", ANSWER_S)
    work(stage, archivist, 2 * RUN_S)
    for _ in range(2):  # a second one recovers what the first left
        stage.kill_daemon()
        stage.start_daemon()
        audit(stage, archivist, "without a kill")
    with contextlib.suppress(KeyError):
        stage.environment.pop("TERRACE_KILL_POINT_LOG")
    return collections.Counter(log.read_text().split())


def main():
    arguments = rig.parse_arguments(__doc__, 3500, repeats=(20, 1))
    library = arguments.build / "tests/chaos/libterrace_kill_point.so"
    stage = Stage(arguments, dram_mib=8, segment_mib=4, nvme_mib=192, slab_mib=8,
                  nvme_keys={"io": "threads"})
    with stage:
        archivist = stage.client("archivist", prompts=ARCHIVE_PROMPTS, blocks=BLOCKS, seed=5)
        archivist.expect("ready")
        seen = points_there_are(stage, library, archivist)
        points = [(name, side) for name in sorted(seen) for side in ("before", "after")]
        if arguments.short:
            points = stage.random.sample(points, min(6, len(points)))
        struck = collections.Counter()
        persisted = 0
        for name, side in points:
            for repeat in range(arguments.repeats):
                nth = 1 + stage.random.randrange(min(seen[name], NTH_MAX))
                point = f"{name}:{side}:{nth}"
                stage.kill_daemon()
                stage.environment = {"LD_PRELOAD": str(library), "TERRACE_KILL_POINT": point}
                stage.start_daemon()
                # Where it dies while it starts, nobody can work.
                if rig.wait_until(lambda: stage.daemon.poll() is not None, 0.05) is None:
                    work(stage, archivist, RUN_S)
                struck[(name, side)] += stage.daemon.poll() == -9
                stage.kill_daemon()
                stage.environment = {}
                stage.start_daemon()
                persisted += audit(stage, archivist, point)
                archivist.ask("forget", ANSWER_S)
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
