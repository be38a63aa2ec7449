#!/usr/bin/env python3
# PROMISE: T14 a disk that fills up
# PROMISE: T20 a disk that fills up
"""A disk that fills up while the daemon runs costs neither the daemon nor DRAM's speed.

The tier's files lie on a tmpfs of their own, which shrinks to what is in it and grows again, in
turns, while a worker stores and a bystander loads from DRAM. With the disk full the daemon stays
and loads are as fast as before; with space again the tier grows again.

Needs a mount namespace: root, or unprivileged user namespaces. Exit status 77: there is none.
"""
import contextlib
import os
import statistics
import subprocess
import sys
import time

import rig

DISK_MIB = 4096
SLAB_MIB = 8
QUIET_LOOKS = 30
BLOCKS = 12
WORKER_PROMPTS = 4000
RESUME_S = 30
RATE_MIN = 0.95
EXIT_SKIPPED = 77
ENTERED = "TERRACE_DISK_FULL_ENTERED"


def enter_namespace():
    """Runs this script again where mounting is allowed and nobody else sees it."""
    if os.environ.get(ENTERED):
        return
    own = ["unshare", "--mount"] + ["--map-root-user"] * (os.geteuid() != 0)
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        print("SKIPPED: no mount namespace here: run as root, or allow user namespaces")
        sys.exit(EXIT_SKIPPED)
    os.environ[ENTERED] = "1"
    os.execvp(own[0], [*own, sys.executable, *sys.argv])


class Stage(rig.Rig):
    """A rig whose tier lies on a file system of its own."""

    def start_daemon(self):
        if not self.nvme_path.exists():
            self.nvme_path.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none",
                            self.nvme_path], check=True)
        super().start_daemon()

    def slab_bytes(self):
        return sum(p.stat().st_blocks * 512 for p in self.nvme_path.glob("chaos/slab-*"))

    def leave_free(self, free_bytes):
        """Sizes the file system so that so much of it is free."""
        about = os.statvfs(self.nvme_path)
        used_bytes = (about.f_blocks - about.f_bfree) * about.f_frsize
        subprocess.run(["mount", "-o", f"remount,size={used_bytes + free_bytes}", self.nvme_path],
                       check=True)

    def fill(self):
        """Until nothing is free for a while: what is deleted meanwhile makes room, too."""
        quiet = 0
        while quiet < QUIET_LOOKS:
            if os.statvfs(self.nvme_path).f_bfree:
                quiet = 0
                with contextlib.suppress(subprocess.CalledProcessError):  # it took more meanwhile
                    self.leave_free(0)
            quiet += 1
            time.sleep(0.01)


def rate(bystander, seconds):
    began, ops = time.monotonic(), bystander.counters()["ops"]
    time.sleep(seconds)
    return (bystander.counters()["ops"] - ops) / (time.monotonic() - began)


def main():
    enter_namespace()
    arguments = rig.parse_arguments(__doc__, 600, pairs=(7, 2))
    seconds = 1 if arguments.short else 3
    stage = Stage(arguments, dram_mib=64, segment_mib=4, nvme_mib=DISK_MIB, slab_mib=SLAB_MIB)
    with stage:
        stage.console(prompts=WORKER_PROMPTS, blocks=BLOCKS)
        bystander = stage.client("bystander", prompt_first=5000, prompts=4, blocks=BLOCKS,
                                 seconds=600)
        bystander.expect("ready", 30)
        worker = stage.client("worker", prompts=WORKER_PROMPTS, blocks=BLOCKS, seconds=600,
                              seed=3)
        worker.expect("ready")
        grown = rig.wait_until(lambda: stage.slab_bytes() >= 4 * SLAB_MIB * rig.MIB, 60)
        stage.check(grown is not None, "the tier grew while there was space")
        full, before, resumed = [], [], []
        for _ in range(arguments.pairs):
            before.append(rate(bystander, seconds))
            stage.fill()
            full.append(rate(bystander, seconds))
            stage.require_daemon()
            held_bytes = stage.slab_bytes()
            stage.leave_free(DISK_MIB * rig.MIB)
            resumed.append(rig.wait_until(lambda: stage.slab_bytes() > held_bytes, 2 * RESUME_S))
        ratio = statistics.median(a / b for a, b in zip(full, before))
        slowest = max(2 * RESUME_S if r is None else r for r in resumed)
        stage.check(slowest <= RESUME_S, f"the tier grew again after at most {slowest:.1f} s, the "
                                         f"limit is {RESUME_S}")
        stage.check(arguments.short or ratio >= RATE_MIN,
                    f"loads from DRAM with the disk full: {ratio:.2f} times those before, median "
                    f"of {len(full)} pairs")
        stage.check([bystander.finish(), worker.finish()] == [0, 0], "no client saw a wrong byte")
        stage.check_clients([bystander, worker])
        stage.summary = (f"loads at {ratio:.2f} of before while the disk was full, growing again "
                         f"after at most {slowest:.1f} s")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
