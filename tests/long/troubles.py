#!/usr/bin/env python3
# PROMISE: T03 all troubles at once, every answer judged
"""All troubles at once, and no answer that cannot have been.

Sixteen clients store, load and erase over DRAM, a drive and a Redis server that are all too small.
Meanwhile clients, the daemon, the keeper of its memory and the server are killed, clients, daemon
and server are stopped for a while, and the drive is slow, hangs or stumbles: several of these at a
time, a few a second. Every client writes down what it was answered; after each round all is judged
(tests/chaos/history_check.h): a read is a miss, or the bytes of one commit, and of none that
an acknowledged erasure had ended. Then everything is erased, and nothing of it may come back in the
next round.
"""
import collections
import contextlib
import signal
import sys
import tempfile
import time

import slow_drive
import rig

CLIENTS = 16
PROMPTS = 120
BLOCKS = 12
DRAM_MIB = 8
NVME_MIB = 24
REDIS_MIB = 8
ERASE_NTH = 60
PAUSE_S_MAX = 0.5  # between the begins of two troubles
CALM_S = 20
SLOW_MB_S = 2
STUMBLE_NTH = 20
BEFALLS = {"keeper": "daemon", "memory": "daemon"}  # else what its name begins with


class Lasting:
    """A trouble that has begun, and when and how it ends."""

    def __init__(self, seconds, end):
        self.until = time.monotonic() + seconds
        self.end = end


class Stage(rig.Rig):
    """The rig, and what can happen to it. Each trouble returns None, or how it ends."""

    def __init__(self, arguments, drive):
        super().__init__(arguments, dram_mib=DRAM_MIB, segment_mib=2, nvme_mib=NVME_MIB, slab_mib=8,
                         nvme_keys={"io": "threads"}, keeper=True, redis_mib=REDIS_MIB,
                         histories=True, small_bytes=96, daemon_environment=drive.environment,
                         lease_ttl_ms=500)
        self.drive = drive
        self.running = []
        self.everyone = []
        self.replacements = []
        self.lasting = {}  # by what it befalls
        self.counts = collections.Counter()
        self.troubles = {
            "client killed": (8, self.kill_client), "client stopped": (8, self.stop_client),
            "daemon killed": (5, self.kill), "daemon stopped": (3, self.stop_daemon),
            "keeper killed": (1, self.kill_keeper), "memory lost": (1, self.kill_both),
            "drive slow": (2, lambda: self.bend_drive(SLOW_MB_S, 0)),
            "drive hangs": (1, lambda: self.bend_drive(-1, 0)),
            "drive stumbles": (2, lambda: self.bend_drive(0, STUMBLE_NTH)),
            "server killed": (2, self.kill_server), "server stopped": (2, self.stop_server),
        }

    # ---- what it befalls, while nothing else does ----
    def begin_one(self):
        weights = [weight for weight, _ in self.troubles.values()]
        name = self.random.choices(list(self.troubles), weights)[0]
        what = BEFALLS.get(name.split()[0], name.split()[0])
        if what in self.lasting:
            return
        self.counts[name] += 1
        lasting = self.troubles[name][1]()
        if lasting is not None:
            self.lasting[what if what != "client" else object()] = lasting

    def end_those_over(self, all_of_them=False):
        for what, lasting in list(self.lasting.items()):
            if all_of_them or time.monotonic() >= lasting.until:
                del self.lasting[what]
                lasting.end()

    def add_client(self):
        self.running.append(self.client("worker", prompts=PROMPTS, blocks=BLOCKS, seconds=36_000,
                                        erase_nth=ERASE_NTH, peek_nth=8, deadline_us=100_000,
                                        seed=self.random.getrandbits(40)))
        self.everyone.append(self.running[-1])

    def replace_dead(self):
        """A client may be started while there is no daemon, and gives up."""
        for client in [c for c in self.running if c.process.poll() is not None]:
            status = client.process.returncode
            if status not in (2, -signal.SIGKILL):
                self.check(False, f"{client.name} ended with {status}: {client.errors()}")
            self.running.remove(client)
            client.close()
            self.add_client()
            self.replacements.append(self.running[-1])

    def kill_client(self):
        self.random.choice(self.running).signal(signal.SIGKILL)

    def stop_client(self):
        client = self.random.choice(self.running)
        client.signal(signal.SIGSTOP)
        return Lasting(self.random.random() * 2, lambda: client.signal(signal.SIGCONT))

    def kill(self):
        self.kill_daemon()
        return Lasting(self.random.random() * 0.3, self.start_daemon)

    def stop_daemon(self):
        self.daemon.send_signal(signal.SIGSTOP)
        return Lasting(self.random.random() * 1.5, lambda: self.daemon.send_signal(signal.SIGCONT))

    def kill_keeper(self):
        self.keeper.kill()
        self.keeper.wait()
        (self.directory / "keeper.sock").unlink(missing_ok=True)
        self.start_keeper()

    def kill_both(self):
        self.kill_daemon()
        self.kill_keeper()
        return Lasting(self.random.random() * 0.3, self.start_daemon)

    def bend_drive(self, megabytes_s, nth):
        self.drive.set(megabytes_s, nth)
        return Lasting(self.random.random() * 4, lambda: self.drive.set(0))

    def kill_server(self):
        self.redis.kill()
        self.redis.wait()
        self.redis_path.unlink(missing_ok=True)
        return Lasting(self.random.random() * 3, self.start_redis)

    def stop_server(self):
        self.redis.send_signal(signal.SIGSTOP)
        return Lasting(self.random.random() * 3, lambda: self.redis.send_signal(signal.SIGCONT))

    # ---- a round ----
    def trouble_everybody(self, seconds):
        end = time.monotonic() + seconds
        begin_next = 0
        while (now := time.monotonic()) < end:
            if "daemon" not in self.lasting:
                self.require_daemon()
            self.end_those_over()
            self.replace_dead()
            if now >= begin_next:
                begin_next = now + self.random.random() * PAUSE_S_MAX
                self.begin_one()
            time.sleep(0.02)
        self.end_those_over(all_of_them=True)

    def round(self, seconds):
        for _ in range(CLIENTS - len(self.running)):
            self.add_client()
        for client in self.running:
            client.expect("ready")
        self.trouble_everybody(seconds)
        statuses = []
        for client in self.running:
            if client in self.replacements:  # it may give up, having had no daemon for too long
                with contextlib.suppress(rig.Failure):
                    client.expect("ready")
            statuses.append(client.finish())
        self.check(not set(statuses) - {0, 2, -signal.SIGKILL}, f"clients ended with {statuses}")
        self.check_clients(self.everyone)
        total = self.check_histories(self.everyone, settled=False)
        self.forget_clients(self.everyone)
        self.running, self.everyone, self.replacements = [], [], []
        # Whom nobody has heard of may still have a Commit on its way.
        names = ("reserved_count", "lease_count", "session_count", "fenced_bytes")
        calm_s = rig.wait_until(lambda: sum(self.stats()[n] for n in names) <= 1, CALM_S, 0.1)
        if calm_s is None:
            raise rig.Failure(f"{CALM_S} s after the last trouble there is still "
                              f"{({n: self.stats()[n] for n in names})}")
        self.console_client.ask("reset")
        return total


def main():
    arguments = rig.parse_arguments(__doc__, 40_000, seconds=(3600, 3), round_seconds=(60, 3))
    totals = collections.Counter()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="troubles-"))
        stage = Stage(arguments, slow_drive.SlowDrive(directory))
        stack.enter_context(stage)
        stage.console(prompts=PROMPTS, blocks=BLOCKS)
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end and not stage.failures:
            totals.update(stage.round(min(arguments.round_seconds, end - time.monotonic())))
        counts = ", ".join(f"{name} {count}" for name, count in sorted(stage.counts.items()))
        stage.check(arguments.short or len(stage.counts) == len(stage.troubles), counts)
        stage.check_nothing_left()
        stage.summary = (f"{arguments.seconds} s of all troubles together, "
                         f"{sum(stage.counts.values())} of them: {totals['operations']} operations "
                         f"of {CLIENTS} clients, {totals['blocks_read']} blocks read, "
                         f"{totals['erasures']} erasures, none that cannot have been")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
