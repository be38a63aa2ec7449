#!/usr/bin/env python3
# PROMISE: T02 mixed load over more than fits
# PROMISE: T45 mixed load over more than fits
"""Minutes of mixed load: memory and descriptors stay where they are, the ledger is exact.

Four clients over more prompts than fit; one of them is killed and replaced every few seconds. The
daemon's private memory may not grow after it has warmed up, nor its descriptors, and at the end
every slot is accounted for.
"""
import signal
import sys
import time

import rig

CLIENTS = 4
PROMPTS = 96
REPLACE_S = 5
SAMPLE_S = 1
WARM_SHARE = 0.3
GROWTH_BYTES_PER_MINUTE_MAX = 1 << 20


def slope_per_minute(samples):
    """Least squares over (seconds, value)."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread


def soak(stage, seconds):
    """(all clients ever, [(seconds, private bytes, fds)])"""
    def start():
        return stage.client("worker", prompts=PROMPTS, seconds=seconds + 60,
                            seed=stage.random.getrandbits(40))
    running = [start() for _ in range(CLIENTS)]
    everyone = list(running)
    samples = []
    began = time.monotonic()
    replaced = began
    while (now := time.monotonic()) - began < seconds:
        stage.require_daemon()
        if now - replaced > REPLACE_S:
            replaced = now
            victim = running.pop(0)
            victim.signal(signal.SIGKILL)
            victim.close()
            running.append(start())
            everyone.append(running[-1])
            running[-1].expect("ready")
        samples.append((now - began, stage.daemon_memory()[0], stage.daemon_fd_count()))
        time.sleep(SAMPLE_S)
    statuses = [client.finish() for client in running]
    stage.check(statuses == [0] * CLIENTS, f"clients ended with {statuses}")
    return everyone, samples


def main():
    arguments = rig.parse_arguments(__doc__, 900, seconds=(300, 10))
    stage = rig.Rig(arguments, dram_mib=64, segment_mib=4)
    with stage:
        stage.console()
        fds_before = stage.daemon_fd_count_at_rest()
        everyone, samples = soak(stage, arguments.seconds)
        warm = [s for s in samples if s[0] > WARM_SHARE * arguments.seconds]
        growth = slope_per_minute([(s[0], s[1]) for s in warm])
        stage.check(arguments.short or growth <= GROWTH_BYTES_PER_MINUTE_MAX,
                    f"private memory {warm[0][1] / rig.MIB:.1f} to "
                    f"{warm[-1][1] / rig.MIB:.1f} MiB, {growth / 1024:+.0f} KiB a minute (limit "
                    f"{GROWTH_BYTES_PER_MINUTE_MAX // 1024})")
        fell = rig.wait_until(lambda: stage.daemon_fd_count() == fds_before, 5)
        fds = [s[2] for s in warm]
        stage.check(fell is not None, f"descriptors: {fds_before} before, {min(fds)} to {max(fds)} "
                                      f"under load, {stage.daemon_fd_count()} after")
        total = stage.check_clients(everyone)
        stage.check_nothing_left()
        stage.summary = (f"{arguments.seconds} s, {total['ops']} operations: "
                         f"{growth / 1024:+.0f} KiB a minute, no wrong byte, ledger exact")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
