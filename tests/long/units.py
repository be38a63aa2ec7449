#!/usr/bin/env python3
# PROMISE: T27 the installed units
# PROMISE: T38 the installed units
"""The installed units under a systemd of their own: a Debian 12 booted by systemd-nspawn.

What the units promise, each seen: the packages start the daemon, READY comes before the start job
ends, clients start it through its socket, a restart, a kill -9 and an upgrade are warm, a stop
stops, and its next client does not bring it back, a watchdog ends a daemon that hangs, and the
hardening holds while blocks go to memory and to a drive. Needs root and systemd-nspawn.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import debian_root
import yesterday
from debian_root import Failure
from install import NAMES, expect

SOCKET = "/run/terrace/default.sock"
PROMPTS = 8
BLOCKS = PROMPTS * 32
BOOT_S = 120
HUNG_S_MAX = 12.0
INCLUDE = ("systemd", "systemd-sysv", "dbus", "python3-minimal", "python3", "procps")


class Booted:
    """The root, booted; commands in it, in its own namespaces. A context manager. `options`: of
    systemd-nspawn, beside its own."""

    def __init__(self, root, options=()):
        self.root = root
        self.options = options
        self.log = root.home / "boot.log"

    def __enter__(self):
        (self.root.path / "etc/machine-id").write_text("uninitialized\n")
        with open(self.log, "wb") as output:
            self.machine = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit",
                 "--private-network", *self.options, "--directory", self.root.path],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.wait(lambda: self.leader(), BOOT_S, "systemd-nspawn starts a systemd")
        self.wait(lambda: self.run("systemctl", "is-system-running", check=False).stdout.strip()
                  in ("running", "degraded"), BOOT_S, "the machine is booted")
        return self

    def __exit__(self, kind, *_):
        if kind is Failure and self.leader():
            print("the end of the unit's journal:", *self.journal().splitlines()[-15:], sep="\n")
        self.machine.terminate()  # systemd-nspawn powers the machine off
        try:
            self.machine.wait(60)
        except subprocess.TimeoutExpired:
            self.machine.kill()
            self.machine.wait()

    def leader(self):
        """The machine's first process, as it is numbered out here."""
        for child in self.children(self.machine.pid):
            if os.path.exists(f"/proc/{child}/root/run/systemd/system"):
                return child
        return None

    @staticmethod
    def children(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []

    def wait(self, condition, limit_s, what):
        end = time.monotonic() + limit_s
        while not condition():
            if self.machine.poll() is not None or time.monotonic() > end:
                raise Failure(f"not within {limit_s} s: {what}. "
                              f"{self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def run(self, *words, **options):
        return debian_root.run(
            "nsenter", "--target", self.leader(), "--all", "--wd=/", "env", "-i", "LC_ALL=C",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", *words,
            **options)

    # ---- the unit ----
    def show(self, name, unit="terraced.service"):
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def client(self, verb, first=0):
        return json.loads(self.run("python3", "/srv/debs/prompts.py", verb, SOCKET, first,
                                   PROMPTS).stdout)

    def status(self):
        return json.loads(self.run("terrace", "status", "--json").stdout)

    def journal(self):
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit=terraced").stdout

    def expect_all(self, when):
        loaded = self.client("load")
        expect(loaded == {"asked": BLOCKS, "found": BLOCKS, "wrong": 0},
               f"{when}: every block is there, {loaded}")


def check_installation(machine, paths):
    machine.run("dpkg", "--install", *machine.root.copy(*paths))
    expect(machine.show("ActiveState") == "active", "the installation started terraced.service")
    ready_us = int(machine.show("ActiveEnterTimestampMonotonic"))
    began_us = int(machine.show("ExecMainStartTimestampMonotonic"))
    lines = [line for line in machine.journal().splitlines() if 'event="ready"' in line]
    expect(len(lines) == 1 and ready_us > began_us,
           f"READY after {(ready_us - began_us) / 1000:.0f} ms, the daemon's own "
           f"{re.search(r'start_ms=(.*)', lines[0])[0]}")
    status = machine.status()
    expect(status["dram_holder"] == "systemd", "its memory is held by systemd")
    io = machine.run("cat", f"/proc/{machine.show('MainPID')}/status").stdout
    for field, value in (("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapEff", "0000000000000000")):
        expect(re.search(rf"^{field}:\s+{value}$", io, re.M), f"{field} is {value}")


def check_restarts(machine):
    stored = machine.client("store")
    expect(stored["found"] == BLOCKS, f"clients store {BLOCKS} blocks in the hardened unit")
    machine.expect_all("before")
    boot = machine.status()["boot_id"]
    kept = int(machine.show("NFileDescriptorStore"))
    machine.run("systemctl", "restart", "--no-block", "terraced.service")
    machine.expect_all("to a client that connects during systemctl restart")
    expect(machine.status()["boot_id"] != boot and kept > 0,
           f"of another daemon, by {kept} descriptors in systemd's store")
    pid = machine.show("MainPID")
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "terraced.service")
    machine.wait(lambda: machine.show("MainPID") not in (pid, "0")
                 and machine.show("ActiveState") == "active", 60, "systemd starts it again")
    machine.expect_all("after kill -9")


def check_watchdog(machine):
    pid = machine.show("MainPID")
    machine.run("kill", "-STOP", pid)  # the hardest: it hears no signal but SIGKILL
    began = time.monotonic()
    machine.wait(lambda: machine.run("test", "-e", f"/proc/{pid}/exe", check=False).returncode,
                 90, "the watchdog ends a daemon that hangs")
    ended_s = time.monotonic() - began
    expect(ended_s <= HUNG_S_MAX, f"a daemon that hangs is ended after {ended_s:.1f} s")
    machine.wait(lambda: machine.show("MainPID") not in (pid, "0")
                 and machine.show("ActiveState") == "active", 90, "and started again")
    expect("watchdog" in machine.journal().lower() or machine.show("NRestarts") != "0",
           f"a daemon that hung was ended by the watchdog, {machine.show('NRestarts')} restarts")
    machine.expect_all("after the watchdog")


def check_stop(machine):
    machine.run("systemctl", "stop", "terraced.service")
    states = (machine.show("ActiveState"), machine.show("ActiveState", "terraced.socket"))
    expect(states == ("inactive", "inactive"),
           f"systemctl stop: service and socket are {' and '.join(states)}")
    expect(machine.run("test", "-e", SOCKET, check=False).returncode != 0, "there is no socket")
    refused = machine.run("terrace", "status", check=False)
    expect(refused.returncode == 1, f"a client is told: {refused.stderr.strip()[:120]}")
    expect(machine.show("ActiveState") == "inactive", "and does not bring the daemon back")
    machine.run("systemctl", "start", "terraced.service")
    expect(machine.show("ActiveState", "terraced.socket") == "active",
           "systemctl start opens the socket again")
    found = machine.client("load")
    expect(found["found"] == 0 and found["wrong"] == 0, "a stop gave the memory back")


def check_socket_activation(machine):
    machine.run("systemctl", "stop", "terraced.service")
    machine.run("systemctl", "start", "terraced.socket")
    expect(machine.show("ActiveState") == "inactive", "the socket alone starts no daemon")
    machine.client("store")
    expect(machine.show("ActiveState") == "active", "the first client does")


def check_drive(machine):
    """The drive tier inside ProtectSystem=strict, by io_uring where the filter lets it."""
    machine.run("sed", "-i", 's|^# paths = .*|paths = ["/var/lib/terrace/nvme"]|;'
                's|^# capacity_bytes = .*|capacity_bytes = "256MiB"|;'
                's|^slab_bytes = "1GiB"|slab_bytes = "64MiB"|', "/etc/terrace/terraced.toml")
    machine.run("install", "-d", "-o", "terrace", "-g", "terrace", "/var/lib/terrace/nvme")
    machine.run("systemctl", "restart", "terraced.service")
    machine.client("store", first=100)
    machine.run("systemctl", "stop", "terraced.service")
    machine.run("systemctl", "start", "terraced.service")
    loaded = machine.client("load", first=100)
    expect(loaded == {"asked": BLOCKS, "found": BLOCKS, "wrong": 0},
           f"after stop and start the drive has what memory had not: {loaded}")


def check_upgrade(machine, paths):
    boot = machine.status()["boot_id"]
    machine.run("dpkg", "--install", "--force-confold", *machine.root.copy(*paths))
    machine.wait(lambda: machine.show("ActiveState") == "active", 60, "active after the upgrade")
    expect(machine.status()["boot_id"] != boot, "an upgrade restarts the daemon")
    loaded = machine.client("load", first=100)
    expect(loaded["found"] == BLOCKS and loaded["wrong"] == 0, f"and is warm: {loaded}")
    adopted = [line for line in machine.journal().splitlines() if 'event="adopted"' in line]
    expect(adopted, f"from memory: {adopted[-1:]}")


def check_purge(machine):
    machine.run("systemctl", "stop", "terraced.service")
    machine.run("dpkg", "--install", "--force-confold",
                *(f"/srv/debs/{p.name}" for p in machine.paths))
    expect(machine.show("ActiveState") == "inactive", "an upgrade leaves a stopped daemon stopped")
    machine.run("systemctl", "start", "terraced.service")
    machine.run("dpkg", "--purge", *NAMES)
    expect(machine.show("LoadState") == "not-found", "after a purge there is no unit")
    left = machine.run("sh", "-c", "ls -d /run/terrace /var/lib/terrace /etc/terrace "
                       "/etc/systemd/system/*/terraced* /usr/bin/terraced", check=False).stdout
    expect(left == "", f"and nothing is left: {left.split()}")
    expect(machine.run("pgrep", "terraced", check=False).returncode == 1, "and no process")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    debian_root.add_options(parser)
    arguments = parser.parse_args()
    debian_root.require("debootstrap", "systemd-nspawn", "nsenter", "dpkg-deb", "cpack", "help2man")
    try:
        today = debian_root.packages(arguments)
        paths = [today[name] for name in NAMES]
        with debian_root.DebianRoot(include=INCLUDE, base=arguments.base) as root:
            old = [debian_root.as_older(path, "0.1.0-1", root.home) for path in paths]
            root.open()
            debian_root.install_dependencies(root, paths, NAMES)
            root.close()
            root.copy(yesterday.ROOT / "tests/long/prompts.py")
            with Booted(root) as machine:
                machine.paths = paths
                check_installation(machine, old)
                for check in (check_restarts, check_watchdog, check_stop, check_socket_activation,
                              check_drive):
                    check(machine)
                check_upgrade(machine, paths)
                check_purge(machine)
    except Failure as failure:
        print(f"VERDICT: FAILED: {failure}")
        return 1
    print("VERDICT: OK: the units do what they say under a systemd of their own")
    return 0


if __name__ == "__main__":
    sys.exit(main())
