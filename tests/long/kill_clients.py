#!/usr/bin/env python3
# PROMISE: T21 clients killed anywhere
"""SIGKILL of clients at many points: nothing leaks, nobody else notices.

Four clients at a time acquire, verify, reserve, write, commit and release over more prompts than
the arena holds; half of them are killed after 0-20 ms, half while inside a chosen call.
Bystanders hold leases and verify theirs throughout. Between the kills, clients whose control
connection is cut under a running copy go on writing into their slots for 200 ms before they end.
"""
import signal
import sys
import time

import rig

VICTIMS_AT_ONCE = 4
AIMED_PHASES = ("acquire", "write", "commit")
PROMPTS = 64


def start_victim(stage, number):
    """One to be killed from outside, or one that kills itself inside a phase."""
    options = {"prompts": PROMPTS, "seconds": 30, "seed": stage.random.getrandbits(40)}
    if number % 2 == 0:
        phase = AIMED_PHASES[number // 2 % len(AIMED_PHASES)]
        options |= {"die_in": rig.PHASES.index(phase),
                    "die_after_us": stage.random.randrange(1, 100)}
    victim = stage.client("worker", **options)
    victim.is_aimed = number % 2 == 0
    return victim


def kill(stage, victim):
    """Sees it die; the phase it died in."""
    victim.expect("ready")
    if not victim.is_aimed:
        time.sleep(stage.random.random() * 0.02)
        victim.signal(signal.SIGKILL)
    died = rig.wait_until(lambda: victim.process.poll() is not None, 5, 0.001)
    if died is None or victim.process.returncode != -signal.SIGKILL:
        raise rig.Failure(f"{victim.name} did not die by SIGKILL but ended with "
                          f"{victim.process.poll()}: {victim.errors()}; it has "
                          f"{victim.counters()}; the daemon has {stage.stats()}")
    return rig.PHASES[victim.counters()["phase"]]


def hang_up(stage, number):
    """One client that outlives its connection; how many bytes were fenced meanwhile."""
    client = stage.client("hang-up", prompt_first=100_000 + 100 * number, blocks=6,
                          linger_ms=200, seed=number + 1)
    slot_bytes = int(client.expect("copying")[0])
    fenced_bytes_max = 0
    while client.process.poll() is None:
        fenced_bytes_max = max(fenced_bytes_max, stage.stats()["fenced_bytes"])
        time.sleep(0.005)
    cut_count, passes = map(int, client.expect("ended"))
    if client.process.returncode != 0:
        stage.check(False, f"{client.name} ended with {client.process.returncode}: "
                           f"{client.errors()}")
    if cut_count == 0:
        raise rig.Failure(f"{client.name} found no connection to cut")
    return client, slot_bytes, fenced_bytes_max, passes


def kill_all(stage, kills):
    """(the victims, deaths by phase)"""
    deaths = dict.fromkeys(rig.PHASES, 0)
    running = []
    victims = []
    while len(victims) < kills or running:
        while len(running) < VICTIMS_AT_ONCE and len(victims) < kills:
            running.append(start_victim(stage, len(victims)))
            victims.append(running[-1])
        victim = running.pop(0)
        deaths[kill(stage, victim)] += 1
        victim.close()
        stage.require_daemon()
    return victims, deaths


def main():
    arguments = rig.parse_arguments(__doc__, 7200, kills=(10_000, 40), hang_ups=(20, 2))
    stage = rig.Rig(arguments, dram_mib=32, segment_mib=2)
    with stage:
        stage.console()
        bystanders = [stage.client("bystander", prompt_first=1000 + 100 * i, prompts=2, blocks=8,
                                   seconds=7200, seed=i + 1) for i in range(2)]
        for bystander in bystanders:
            bystander.expect("ready")
        began = time.monotonic()
        victims, deaths = kill_all(stage, arguments.kills)
        elapsed_s = time.monotonic() - began
        stage.check(len(victims) == arguments.kills,
                    f"{len(victims)} clients killed in {elapsed_s:.0f} s; they died in " +
                    ", ".join(f"{name} {count}" for name, count in deaths.items() if count))
        aimed_min = arguments.kills // 20
        stage.check(all(deaths[p] >= aimed_min for p in AIMED_PHASES),
                    f"at least {aimed_min} in each of {', '.join(AIMED_PHASES)}")

        workers = [stage.client("worker", prompts=PROMPTS, seconds=300, seed=50 + i)
                   for i in range(2)]
        hung = [hang_up(stage, i) for i in range(arguments.hang_ups)]
        stage.check(all(fenced >= slots for _, slots, fenced, _ in hung),
                    f"{len(hung)} clients lost their connection while copying: of "
                    f"{hung[0][1]} bytes reserved each, {min(h[2] for h in hung)} to "
                    f"{max(h[2] for h in hung)} were fenced while they wrote on "
                    f"({sum(h[3] for h in hung)} passes)")
        statuses = [client.finish() for client in bystanders + workers]
        stage.check(statuses == [0] * len(statuses),
                    f"bystanders and workers ended with {statuses}")
        stage.check_clients(bystanders + workers + victims + [h[0] for h in hung])
        stage.check_nothing_left()
        stage.summary = (f"{arguments.kills} clients killed, {arguments.hang_ups} hung up: no slot "
                         "leaked, no wrong byte")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
