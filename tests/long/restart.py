#!/usr/bin/env python3
# PROMISE: T24 kills under eight clients
"""kill -9 of the daemon under load: clients live on and come back by themselves.

Eight clients acquire, verify, write and commit while the daemon is killed and started again, many
times. No client may end, get a wrong byte, or stay away: each is connected again a second after the
daemon listens, and has then read blocks that were stored under the new daemon.
"""
import socket
import sys
import time

import rig

CLIENTS = 8
PROMPTS = 24
RETURN_S = 15
CONNECTED_S_MAX = 1.0


def listens(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def have_connected(workers, boots):
    return all(w.counters()["boots_seen"] > boots[w.name] for w in workers)


def have_returned(workers, boots):
    """All have seen one more daemon than before, and hits under it."""
    for worker in workers:
        counters = worker.counters()
        if counters["boots_seen"] <= boots[worker.name] or counters["blocks_since_boot"] == 0:
            return False
    return True


def main():
    arguments = rig.parse_arguments(__doc__, 7200, kills=(500, 3))
    stage = rig.Rig(arguments, dram_mib=64, segment_mib=4)
    with stage:
        workers = [stage.client("worker", prompts=PROMPTS, seconds=7200, seed=i + 1)
                   for i in range(CLIENTS)]
        for worker in workers:
            worker.expect("ready")
        returns_s, connected_s = [], []
        for number in range(arguments.kills):
            time.sleep(0.05 + stage.random.random() * 0.1)
            boots = {w.name: w.counters()["boots_seen"] for w in workers}
            stage.kill_daemon()
            time.sleep(stage.random.random() * 0.1)
            stage.start_daemon()
            rig.wait_until(lambda: listens(stage.socket_path), RETURN_S, 0.001)
            connected_s.append(rig.wait_until(lambda: have_connected(workers, boots), RETURN_S))
            returned_s = rig.wait_until(lambda: have_returned(workers, boots), RETURN_S)
            dead = {w.name: w.process.returncode for w in workers if w.process.poll() is not None}
            if dead:
                raise rig.Failure(f"kill {number}: clients ended: {dead}")
            if returned_s is None:
                away = {w.name: w.counters() for w in workers}
                raise rig.Failure(f"kill {number}: not all clients came back within {RETURN_S} s: "
                                  f"{away}")
            returns_s.append(returned_s)
        stage.check(True, f"{arguments.kills} daemons killed; all {CLIENTS} clients had hits again "
                          f"after {min(returns_s):.2f} to {max(returns_s):.2f} s")
        latest_s = max(RETURN_S if s is None else s for s in connected_s)
        stage.check(arguments.short or latest_s <= CONNECTED_S_MAX,
                    f"all were connected again at most {latest_s:.3f} s after it listened (limit "
                    f"{CONNECTED_S_MAX:g}), {sorted(connected_s)[len(connected_s) // 2]:.3f} s in "
                    "the middle")
        statuses = [worker.finish() for worker in workers]
        stage.check(statuses == [0] * CLIENTS, f"clients ended with {statuses}")
        total = stage.check_clients(workers)
        longest_us = max(w.counters()["call_us_max"] for w in workers)
        stage.check(total["calls_late"] == 0,
                    f"{total['ops']} operations, {total['calls_late']} calls later than 500 ms "
                    "after their deadline of 200 ms, the longest took "
                    f"{longest_us / 1000:.0f} ms")
        stage.console()
        stage.check_nothing_left()
        stage.summary = (f"{arguments.kills} kill -9 of the daemon: {CLIENTS} clients lived on, "
                         "came back and saw no wrong byte")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
