#!/usr/bin/env python3
# PROMISE: T28 the latest release and today's
"""The latest release and today's build understand each other, on the wire and on what is kept.

Yesterday's client against today's daemon, the reverse, and both at one daemon; then what one left
for the other: memory held by a keeper (of either release), slabs and catalog after a clean stop and
after kill -9, blocks on a Redis server. Both ways: an upgrade, and the way back. Every block that's
answered has its bytes, and what is not taken over is given up whole: fsck finds a clean drive, on
which no file is that the daemon does not know. docs/COMPATIBILITY.md is the policy.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import yesterday

PROMPTS = 8
BLOCKS = PROMPTS * 32
ALL = {"asked": BLOCKS, "found": BLOCKS, "wrong": 0}
ANSWER_S = 180
REFUSALS = 21
REFUSAL_MS_MAX = 100
# Files of a domain on a drive, and of the daemon's own; anything else would be stranded.
KNOWN = ("slab", "catalog", "group", "secret", "lock", "sock", "generations", "audit", "key",
         "drive-id")


class Failure(Exception):
    """The check cannot go on; its sentence is the verdict."""


def is_listened_at(path):
    """A socket is there before anybody listens at it."""
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # of another kind: ours, which listens as soon as it is there
            return path.exists()
    return True


def expect(holds, sentence):
    if not holds:
        raise Failure(sentence)
    print(f"ok    {sentence}", flush=True)


class Host:
    """One host's directory, in which daemons of either release run one after the other."""

    def __init__(self, directory, redis=None):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir()
        self.socket = self.directory / "t.sock"
        self.keeper_socket = self.directory / "k.sock"
        self.log = self.directory.parent / f"{self.directory.name}.log"
        self.redis = redis
        self.has_drive = False
        self.has_keeper = False
        self.daemon = None
        self.keeper = None

    def configure(self):
        daemon = ['dram_bytes = "64MiB"', 'segment_bytes = "4MiB"',
                  f'state_dir = "{self.directory}"']
        if self.has_keeper:
            daemon.append(f'keeper_socket = "{self.keeper_socket}"')
        lines = ["[daemon]", *daemon]
        if self.has_drive:
            lines += ["[nvme]", f'paths = ["{self.directory / "drive"}"]',
                      'capacity_bytes = "128MiB"', 'slab_bytes = "16MiB"']
        if self.redis:
            # Patient: a busy machine is no question of releases.
            lines += ["[redis]", f'endpoints = ["unix:{self.redis}"]', "command_timeout_ms = 30000",
                      "connect_timeout_ms = 30000", "probe_timeout_us = 10000000"]
        lines += ["[[domain]]", 'name = "upgrade"', f'socket = "{self.socket}"']
        config = self.directory / "t.toml"
        config.write_text("\n".join(lines) + "\n")
        return config

    def spawn(self, *words):
        with open(self.log, "ab") as output:
            return subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def wait_for(self, path, process):
        end = time.monotonic() + ANSWER_S
        while not is_listened_at(path):
            if process.poll() is not None or time.monotonic() > end:
                raise Failure(f"nobody listens at {path}: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def start_keeper(self, build):
        self.has_keeper = True
        self.keeper = self.spawn(build.terraced, "--keeper", "--socket", self.keeper_socket)
        self.wait_for(self.keeper_socket, self.keeper)

    def start(self, build):
        self.socket.unlink(missing_ok=True)
        self.daemon = self.spawn(build.terraced, "--config", self.configure())
        self.wait_for(self.socket, self.daemon)

    def stop(self, number=signal.SIGTERM):
        self.daemon.send_signal(number)
        status = self.daemon.wait(ANSWER_S)
        self.daemon = None
        if status not in (0, -signal.SIGKILL):
            raise Failure(f"terraced ended with {status}: {self.log.read_text()[-2000:]}")

    def close(self):
        for process in (self.daemon, self.keeper):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def client(self, build, verb, first=0):
        done = subprocess.run([sys.executable, yesterday.ROOT / "tests/long/prompts.py", verb,
                               self.socket, str(first), str(PROMPTS)], capture_output=True,
                              text=True, check=False, env=build.environment())
        if done.returncode != 0:
            raise Failure(f"{build.version}'s client could not {verb}: {done.stderr[-2000:]}"
                          f"{self.log.read_text()[-1000:]}")
        return json.loads(done.stdout)

    def stats(self, build):
        done = subprocess.run([build.terrace, "status", "--json", "--socket", self.socket],
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def wait_until(self, build, condition, what):
        end = time.monotonic() + ANSWER_S
        while not condition(self.stats(build)):
            if time.monotonic() > end:
                raise Failure(f"not within {ANSWER_S} s: {what}: {self.stats(build)}")
            time.sleep(0.05)

    def fsck(self, build):
        done = subprocess.run([build.terrace, "fsck", "--verify", "--json", "--config",
                               self.directory / "t.toml"], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr


def check_wire(ours, theirs, directory):
    for daemon, client in ((ours, theirs), (theirs, ours)):
        host = Host(directory / f"wire-{daemon.version}")
        with contextlib.closing(host):
            host.start(daemon)
            title = f"{client.version}'s client and {daemon.version}'s daemon"
            expect(host.client(client, "store")["found"] == BLOCKS, f"{title}: stored {BLOCKS}")
            expect(host.client(client, "load") == ALL, f"{title}: loaded {BLOCKS}")
            expect(host.client(daemon, "load") == ALL, "and a client of its own release did, too")
            host.client(daemon, "store", first=100)
            expect(host.client(client, "load", first=100) == ALL, "and the other way round")
            status = host.stats(client)
            expect(status["domain"]["block_count"] == 2 * BLOCKS,
                   f"{client.version}'s terrace status counts {status['domain']['block_count']}")
            host.stop()


def refusal_ms(path, beginning):
    """Until a daemon has refused a connection that begins so, and closed it."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.settimeout(ANSWER_S)
    one.connect(str(path))
    began = time.monotonic()
    one.sendall(beginning)
    said = b""
    while piece := one.recv(4096):
        said += piece
    one.close()
    return (time.monotonic() - began) * 1000, said


def check_refusals(build, directory):
    """Who speaks another version is told so, and soon: the median, for machines are shared."""
    def hello(magic=0x31435254, least=1, most=1):
        return struct.pack("<IBBHQIBBHII32s", 16 + 48, 1, 1, 0, 1, magic, least, most, 0, 1, 0,
                           b"old")
    host = Host(directory / f"refusals-{build.version}")
    with contextlib.closing(host):
        host.start(build)
        for name, beginning in (("a later version", hello(least=200, most=201)),
                                ("another protocol", hello(magic=7)),
                                ("no Hello", struct.pack("<IBBHQQ", 24, 1, 18, 0, 1, 0))):
            tries = [refusal_ms(host.socket, beginning) for _ in range(REFUSALS)]
            took_ms = sorted(took for took, _ in tries)
            expect(took_ms[REFUSALS // 2] <= REFUSAL_MS_MAX and all(said for _, said in tries),
                   f"{build.version}'s daemon refuses {name} with a sentence after "
                   f"{took_ms[REFUSALS // 2]:.2f} ms ({took_ms[0]:.2f} to {took_ms[-1]:.2f}, limit "
                   f"{REFUSAL_MS_MAX})")
        host.stop()


def check_memory(before, after, keeper, directory):
    host = Host(directory / f"memory-{before.version}-{keeper.version}")
    with contextlib.closing(host):
        host.start_keeper(keeper)
        host.start(before)
        host.client(before, "store")
        host.stop()
        host.start(after)
        found = host.client(after, "load")
        expect(found == ALL, f"memory of {before.version}, kept by a keeper of {keeper.version}, "
                             f"is {after.version}'s: {found}")
        host.stop()


def stranded(host):
    drive = host.directory / "drive"
    return [str(p.relative_to(drive)) for p in drive.rglob("*") if p.is_file()
            and not any(word in str(p.relative_to(drive)) for word in KNOWN)]


def check_drive(before, after, ends_by, directory):
    how = "a clean stop" if ends_by == signal.SIGTERM else "kill -9"
    host = Host(directory / f"drive-{before.version}-{int(ends_by)}")
    host.has_drive = True
    (host.directory / "drive").mkdir()
    with contextlib.closing(host):
        host.start(before)
        host.client(before, "store")
        host.wait_until(before, lambda s: s["lower_tiers"][0]["persisted_block_count"] == BLOCKS,
                        "every block on the drive")
        host.stop(ends_by)
        host.start(after)
        found = host.client(after, "load")
        expect(found == ALL, f"{before.version}'s drive after {how} is {after.version}'s: {found}")
        host.client(after, "store", first=50)
        host.stop()
        status, told = host.fsck(after)
        expect(status == 0, f"{after.version}'s fsck --verify finds it clean"
                            f"{told if status else ''}")
        files = stranded(host)
        expect(not files, f"no file is stranded {files}")


def check_redis(before, after, directory):
    socket = directory / f"redis-{before.version}.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", socket, "--save", "",
                               "--appendonly", "no", "--dir", directory],
                              stdout=subprocess.DEVNULL)
    giver = Host(directory / f"giver-{before.version}", redis=socket)
    taker = Host(directory / f"taker-{before.version}", redis=socket)
    try:
        taker.wait_for(socket, server)
        taker.start(after)
        secret = next(taker.directory.glob("*.secret"))
        (giver.directory / secret.name).write_bytes(secret.read_bytes())
        os.chmod(giver.directory / secret.name, 0o600)
        giver.start(before)
        for host, build in ((taker, after), (giver, before)):
            host.client(build, "load")  # both have heard of the group's generation, if there is one
        giver.client(before, "store")
        giver.wait_until(before, lambda s: s["redis"]["blocks_stored"] == BLOCKS,
                         "every block on the server")
        giver.stop()
        # A daemon that is pressed for time answers a miss where it could have waited: ask again.
        found = taker.client(after, "load")
        end = time.monotonic() + ANSWER_S
        while found != ALL and found["wrong"] == 0 and time.monotonic() < end:
            found = taker.client(after, "load")
        expect(found == ALL, f"{before.version}'s blocks on Redis are {after.version}'s: {found}")
        taker.stop()
    finally:
        giver.close()
        taker.close()
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=yesterday.ROOT / "build/release", type=pathlib.Path)
    arguments = parser.parse_args()
    ours, theirs = yesterday.today(arguments.build), yesterday.release()
    print(f"release {theirs.version} at {yesterday.latest()[1][:12]} against today's", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="terrace-upgrade.") as directory:
            directory = pathlib.Path(directory)
            check_wire(ours, theirs, directory)
            for build in (ours, theirs):
                check_refusals(build, directory)
            for before, after in ((theirs, ours), (ours, theirs)):
                for keeper in (before, after):
                    check_memory(before, after, keeper, directory)
                for ends_by in (signal.SIGTERM, signal.SIGKILL):
                    check_drive(before, after, ends_by, directory)
                check_redis(before, after, directory)
    except Failure as failure:
        print(f"VERDICT: FAILED: {failure}")
        return 1
    print(f"VERDICT: OK: release {theirs.version} and today's build understand each other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
