#!/usr/bin/env python3
# PROMISE: T28 an upgrade of the packages
"""The packages on a clean Debian 12: installed, used, upgraded warm, removed and purged.

In a root made by debootstrap, without systemd running: the latest release's daemon as a package,
started by hand as the user terrace beside a keeper; blocks stored by the installed Python client;
an upgrade to today's packages and a restart, after which every block is found in memory, with every
byte; `dpkg -V` finds every file as it was packed; after a purge no file is left.
"""
import argparse
import json
import re
import signal
import sys
import time

import debian_root
import yesterday
from debian_root import Failure

NAMES = ("terraced", "terrace", "libterrace1", "libterrace-dev", "python3-terrace")
CONFIG = "/etc/terrace/terraced.toml"
SOCKET = "/run/terrace/default.sock"
KEEPER = "/run/terrace/keeper.sock"
PROMPTS = 24
BLOCKS = PROMPTS * 32
ANSWER_S = 60


def expect(holds, sentence):
    if not holds:
        raise Failure(sentence)
    print(f"ok    {sentence}", flush=True)


class Host:
    """The root, and the daemon that is started by hand in it."""

    def __init__(self, root):
        self.root = root
        self.log = root.home / "log"
        self.processes = {}

    def apt(self, verb, *words):
        # Nobody is there to be asked: who changed a file of configuration keeps it.
        return self.root.run("apt-get", verb, "-y", "--no-install-recommends",
                             "-o", "Dpkg::Options::=--force-confold", *words)

    def start(self, name, *words, waits_for):
        # What stands outside is nsenter's process; its own number inside is the daemon's.
        self.processes[name] = self.root.start(
            "sh", "-c", f'echo $$ >/run/terrace/{name}.pid; exec terraced "$@"', "sh", *words,
            user="terrace", log=self.log)
        end = time.monotonic() + ANSWER_S
        while self.root.run("test", "-S", waits_for, check=False).returncode != 0:
            if time.monotonic() > end or self.processes[name].poll() is not None:
                raise Failure(f"the {name} does not listen: {self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def start_daemon(self):
        self.start("daemon", "--config", CONFIG, waits_for=SOCKET)

    def stop(self, name):
        pid = self.root.run("cat", f"/run/terrace/{name}.pid").stdout.strip()
        self.root.run("sh", "-c", f"kill {pid}")
        expect(self.processes[name].wait(ANSWER_S) in (0, -signal.SIGTERM),
               f"the {name} stopped")

    def client(self, verb, first, count):
        return json.loads(self.root.run("python3", "/srv/debs/prompts.py", verb, SOCKET, first,
                                        count).stdout)

    def status(self):
        return json.loads(self.root.run("terrace", "status", "--json").stdout)

    def event(self, name):
        """The fields of the log's latest line of that event."""
        lines = [line for line in self.log.read_text().splitlines() if f'event="{name}"' in line]
        expect(lines, f"the log has a line '{name}'")
        print(f"      {lines[-1]}", flush=True)
        return dict(re.findall(r'(\w+)="?([^" ]+)', lines[-1]))


def install(host, paths, version):
    host.apt("install", *host.root.copy(*paths))
    said = host.root.run("terraced", "--version").stdout.strip()
    listed = host.root.run("dpkg-query", "-W", "-f=${Package} ${Version} ${db:Status-Status}\n",
                           *NAMES).stdout
    expect(listed.count(f" {version} installed") == len(NAMES),
           f"{len(NAMES)} packages of version {version} are installed; {said}")
    checked = host.root.run("dpkg", "-V", *NAMES, check=False).stdout
    lines = [line for line in checked.splitlines() if not line.endswith(f"c {CONFIG}")]
    expect(not lines, f"dpkg -V finds every file as it was packed{''.join(lines)}")


def check_fresh_install(host):
    user = host.root.run("getent", "passwd", "terrace").stdout.strip()
    expect("/var/lib/terrace" in user, f"the user is there: {user}")
    # A root that is closed has no /run; tmpfiles made it at the installation.
    modes = host.root.run("stat", "-c", "%n %a %U:%G", "/etc/terrace", "/var/lib/terrace",
                          "/run/terrace").stdout.split("\n")
    expect(modes[:3] == ["/etc/terrace 750 root:terrace", "/var/lib/terrace 700 terrace:terrace",
                         "/run/terrace 750 terrace:terrace"], f"directories: {modes[:3]}")
    expect(host.root.run("dpkg", "-V", *NAMES, check=False).stdout == "", "dpkg -V is silent")
    enabled = host.root.run("ls", "/etc/systemd/system/multi-user.target.wants",
                            "/etc/systemd/system/sockets.target.wants").stdout
    expect("terraced.service" in enabled and "terraced.socket" in enabled, "the units are enabled")


def use(host):
    host.root.copy(yesterday.ROOT / "tests/long/prompts.py")
    # An operator's change, which an upgrade keeps.
    host.root.run("sed", "-i", f's|^# keeper_socket.*|keeper_socket = "{KEEPER}"|', CONFIG)
    host.root.run("terraced", "--check-config", "--config", CONFIG)
    host.start("keeper", "--keeper", "--socket", KEEPER, waits_for=KEEPER)
    host.start_daemon()
    stored = host.client("store", 0, PROMPTS)
    expect(stored["found"] == BLOCKS, f"the installed Python client stored {BLOCKS} blocks")
    loaded = host.client("load", 0, PROMPTS)
    expect(loaded == {"asked": BLOCKS, "found": BLOCKS, "wrong": 0}, f"and loaded them: {loaded}")
    status = host.status()
    expect(status["domain"]["block_count"] == BLOCKS,
           f"terrace status counts {status['domain']['block_count']} blocks, held by "
           f"{status['dram_holder']}")


def upgrade(host, paths):
    before = host.status()
    install(host, paths, re.search(r"_(.+)_", paths[0].name)[1])
    expect(host.status()["boot_id"] == before["boot_id"],
           "the old daemon serves on during the upgrade")
    expect("keeper_socket" in host.root.run("grep", "^keeper_socket", CONFIG).stdout,
           "the operator's configuration is kept")
    host.stop("daemon")
    host.start_daemon()
    after = host.status()
    expect(after["boot_id"] != before["boot_id"],
           f"a restart: version {before['version']} became {after['version']}")
    event = host.event("adopted")
    loaded = host.client("load", 0, PROMPTS)
    expect(loaded == {"asked": BLOCKS, "found": BLOCKS, "wrong": 0},
           f"every block of the old daemon is found in memory: {loaded}, adopted "
           f"{event.get('blocks', '?')}")


def leave(host, before):
    host.stop("daemon")
    host.stop("keeper")
    host.apt("remove", *NAMES)
    kept = host.root.run("ls", CONFIG, "/var/lib/terrace/default.secret").stdout.split()
    expect(len(kept) == 2, f"remove keeps {' and '.join(kept)}")
    program = host.root.run("sh", "-c", "command -v terraced", check=False)
    expect(program.returncode != 0, "and no program")
    host.root.run("dpkg", "--purge", *NAMES)
    runtime = host.root.run("ls", "-d", "/run/terrace", check=False)
    expect(runtime.returncode != 0, "a purge removes sockets")
    host.root.close()
    left = sorted(host.root.files() - before)
    expect(not left, f"and {len(left)} files are left {left[:5]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    debian_root.add_options(parser)
    parser.add_argument("--without-release", action="store_true",
                        help="upgrade from today's daemon under an older version")
    arguments = parser.parse_args()
    debian_root.require("debootstrap", "nsenter", "unshare", "dpkg-deb", "cpack", "help2man")
    try:
        with debian_root.DebianRoot(base=arguments.base) as root:
            today = debian_root.packages(arguments)
            paths = [today[name] for name in NAMES]
            replace = {}
            if not arguments.without_release:
                release = yesterday.release()
                replace = {"terraced": [("usr/bin/terraced", release.terraced),
                                        ("etc/terrace/terraced.toml", release.config)],
                           "terrace": [("usr/bin/terrace", release.terrace)]}
            old = [debian_root.as_older(path, "0.1.0-1", root.home, replace.get(name, ()))
                   for name, path in zip(NAMES, paths)]
            root.open()
            host = Host(root)
            debian_root.install_dependencies(root, paths, NAMES)
            root.close()
            before = root.files()
            root.open()
            install(host, old, "0.1.0-1")
            check_fresh_install(host)
            use(host)
            upgrade(host, paths)
            leave(host, before)
    except Failure as failure:
        print(f"VERDICT: FAILED: {failure}")
        return 1
    print("VERDICT: OK: installed, used, upgraded warm, removed and purged on a clean Debian 12")
    return 0


if __name__ == "__main__":
    sys.exit(main())
