#!/usr/bin/env python3
# PROMISE: T26 every call that fails once, of the client library and of the daemon
"""Calls to the system fail, one by one: first those of the client library, then the daemon's.

A preloaded shim (tests/faults/fault_shim.cc) has the Nth call of a kind fail, for N = 1, 2, 3, …
until nothing is struck any more; memory, files, mappings, messages, connections, threads, and of
the daemon also what it does to its drive and to its Redis server. A client
(tests/faults/fault_client.cc) asks everything that the C ABI has.

Of the library: every call is answered in time with a code of the header and without a wrong byte,
all works again on the same client and on a new one, which finds what was committed, and neither
side keeps a descriptor, a session, a lease or a slot.
Of the daemon: it may miss, refuse to start with a sentence, or end with one; it serves no wrong
byte, and starts again afterwards, when all works and what had been stored is right or missed.
"""
import collections
import datetime
import errno
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

import rig

# In the order of tests/faults/faults.h.
CALLS = ("malloc", "open", "mmap", "ftruncate", "fallocate", "memfd", "socket", "connect",
         "accept", "recv", "send", "event", "epoll", "wait", "thread", "ring", "sync", "rename",
         "write", "read")
PAGE_WORDS = 3 + len(CALLS)
OF_CLIENT = {"malloc": ("ENOMEM",), "open": ("EMFILE",), "mmap": ("ENOMEM",), "memfd": ("EMFILE",),
             "ftruncate": ("ENOSPC",), "socket": ("EMFILE",), "connect": ("EAGAIN", "EACCES"),
             "recv": ("ECONNRESET", "ENOMEM", "EINTR"), "send": ("ENOBUFS", "EPIPE", "EAGAIN"),
             "event": ("EMFILE",), "epoll": ("ENOSPC", "ENOMEM"), "wait": ("EINTR",),
             "thread": ("EAGAIN",),
             "read": ("EINTR",), "write": ("EINTR",)}
OF_DAEMON = {"malloc": ("ENOMEM",), "open": ("EMFILE", "EIO"), "mmap": ("ENOMEM",),
             "ftruncate": ("ENOSPC",), "fallocate": ("ENOSPC", "ENOMEM"), "memfd": ("EMFILE",),
             "socket": ("EMFILE",), "connect": ("ECONNREFUSED", "EAGAIN"),
             "accept": ("EMFILE", "ECONNABORTED"), "recv": ("ENOMEM", "ECONNRESET"),
             "send": ("ENOBUFS", "EPIPE"), "event": ("EMFILE",), "epoll": ("ENOSPC", "ENOMEM"),
             "thread": ("EAGAIN",), "ring": ("EAGAIN", "ENOMEM"), "sync": ("EIO",),
             "rename": ("EIO",), "write": ("ENOSPC", "EIO"), "read": ("EIO",)}
REDIS_MIB = 64
DAEMON_BYTES_MIN = 64 << 10
CLIENT_S = 120
START_S = 20
END_S = 20
RELOAD_S = 0.05
SIGABRT = 6
# Asio takes no notice when it cannot watch what it wakes itself by (its pipe of signals): a daemon
# that met this at its start serves, and its supervisor has to end it. One whose means are gone for
# longer does not start.
DEAFENING = ("epoll",)
INFO, READY = "level=info", 'event="ready"'
REFUSALS = (1, 2)  # it cannot start; its configuration cannot be read
FAILURES_MAX = 20


class Page:
    """The shim's page; tests/faults/faults.h."""

    def __init__(self, path):
        self.path = path
        self.reset(False)

    def reset(self, is_armed):
        self.path.write_bytes(struct.pack(f"<{PAGE_WORDS}Q", is_armed, *[0] * (PAGE_WORDS - 1)))

    def read(self):
        """(struck, where the caller was, calls by name)"""
        words = struct.unpack(f"<{PAGE_WORDS}Q", self.path.read_bytes()[:8 * PAGE_WORDS])
        return bool(words[1]), words[2], dict(zip(CALLS, words[3:]))

    def disarm(self):
        with open(self.path, "r+b") as page:
            page.write(struct.pack("<Q", 0))


class Stage(rig.Rig):
    """A rig whose daemon may run with the shim."""
    environment = {}

    def start_daemon(self):
        with open(self.log_path, "ab") as log:
            self.daemon = subprocess.Popen(
                [self.terraced, "--config", self.directory / "terraced.toml"], stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, preexec_fn=rig.die_with_parent,
                env=os.environ | self.environment)
        self.daemon_starts += 1


class Faults:
    def __init__(self, stage, build):
        self.stage = stage
        self.page = Page(stage.directory / "faults")
        self.shim = build / "tests/faults/libterrace_fault_shim.so"
        self.program = build / "tests/faults/terrace-fault-client"
        self.struck = collections.Counter()
        self.ends = collections.Counter()  # of daemons that were struck
        self.prompt = 1
        self.random = random.Random(datetime.date.today().toordinal() * stage.arguments.seed)

    def environment(self, objects, fault=None, **more):
        chosen = {} if fault is None else {"TERRACE_FAULT": fault}
        return {"LD_PRELOAD": str(self.shim), "TERRACE_FAULT_PAGE": str(self.page.path),
                "TERRACE_FAULT_OBJECTS": objects, **chosen, **more}

    def client(self, mode, prompt, environment=None):
        """Its exit status, and what it printed."""
        try:
            done = subprocess.run([self.program, self.stage.socket_path, mode, str(prompt)],
                                  capture_output=True, text=True, timeout=CLIENT_S, check=False,
                                  env=os.environ | (environment or {}),
                                  preexec_fn=rig.die_with_parent)
        except subprocess.TimeoutExpired as late:
            return -1, f"hangs: {(late.stdout or b'').decode()}"
        return done.returncode, done.stdout + done.stderr

    def next_prompt(self):
        self.prompt += 10
        return self.prompt

    def chosen(self, kinds, calls):
        """(call, errno's name, numbers to try); --short: of half of the calls one error, and one
        number of those that a run without a fault had, others each day."""
        if not self.stage.arguments.short:
            return [(call, error, range(1, 1 << 30)) for call, errors in kinds.items()
                    for error in errors]
        there_are = [call for call in kinds if calls[call] > 0]
        return [(call, self.random.choice(kinds[call]), [self.random.randint(1, calls[call])])
                for call in self.random.sample(there_are, (len(there_are) + 1) // 2)]

    def fail(self, what, place, said):
        """Noted, and gone on: one run finds all that there is to mend."""
        self.stage.check(False, f"{what} at {place:#x}: {said.strip()}")
        if len(self.stage.failures) >= FAILURES_MAX:
            raise rig.Failure("there may be more")

    # ---- the library's calls ----
    def daemon_is_as_before(self, fds_before):
        """Nothing of the client's is left; else what is."""
        def left():
            stats = self.stage.console_client.ask("stats")
            held = {n: stats["domain"][n] for n in ("lease_count", "reserved_count", "fenced_bytes",
                                                    "block_count", "slot_bytes_used")}
            held["sessions"] = len(stats["sessions"]) - 1
            held["fds"] = max(0, self.stage.daemon_fd_count() - fds_before)
            return {name: n for name, n in held.items() if n}
        if rig.wait_until(lambda: not left(), 10) is None:
            return f"the daemon keeps {left()}"
        return None

    def library(self):
        objects = "libterrace.so"
        self.page.reset(False)
        status, said = self.client("strict", self.next_prompt(), self.environment(objects))
        calls = self.page.read()[2]
        self.stage.check(status == 0, f"without a fault: {calls_text(calls)}")
        if status != 0:
            self.fail("without a fault", 0, said)
        fds_before = self.stage.daemon_fd_count_at_rest()
        for call, error, numbers in self.chosen(OF_CLIENT, calls):
            for number in numbers:
                what = f"libterrace, {call} {number}, {error}"
                self.page.reset(False)
                status, said = self.client("strict", self.next_prompt(), self.environment(
                    objects, f"{call}:{number}:{getattr(errno, error)}"))
                is_struck, place, _ = self.page.read()
                if status != 0:
                    self.fail(what, place, said)
                self.stage.require_daemon()
                if left := self.daemon_is_as_before(fds_before):
                    self.fail(what, place, left)
                if not is_struck:
                    break
                self.struck[call] += 1
        self.stage.check(self.struck.total() > 0, f"libterrace met {calls_text(self.struck)}")

    # ---- the daemon's calls ----
    def wait_serving(self):
        """The daemon takes connections, or has ended."""
        def is_over():
            return (self.stage.daemon.poll() is not None or self.stage.socket_path.exists())
        return rig.wait_until(is_over, START_S) is not None

    def end_daemon(self):
        """Its exit status after SIGTERM; None if it had to be killed."""
        if self.stage.daemon.poll() is None:
            self.stage.daemon.terminate()
        try:
            return self.stage.daemon.wait(END_S)
        except subprocess.TimeoutExpired:
            self.stage.kill_daemon()
            return None

    def start(self, environment):
        self.stage.environment = environment
        self.stage.socket_path.unlink(missing_ok=True)
        log_bytes = self.stage.log_path.stat().st_size
        self.stage.start_daemon()
        self.stage.environment = {}
        return log_bytes

    def said_since(self, log_bytes):
        return self.stage.log_path.read_bytes()[log_bytes:].decode(errors="replace").strip()

    def one_daemon(self, what, fault):
        """A daemon with a fault, and its successor. Whether it was struck."""
        self.page.reset(True)
        log_bytes = self.start(self.environment(
            "main,libstdc++,librocksdb", fault, TERRACE_FAULT_BYTES_MIN=str(DAEMON_BYTES_MIN)))
        served = self.wait_serving()
        prompt = self.next_prompt()
        status, said = 0, ""
        if served and self.stage.daemon.poll() is None:
            status, said = self.client("lenient", prompt)
            self.stage.daemon.send_signal(signal.SIGHUP)  # it reads its configuration again
            time.sleep(RELOAD_S)
        is_struck, place, calls = self.page.read()
        self.page.disarm()
        if status != 0:
            self.fail(what, place, said)
        died_early = self.stage.daemon.poll() is not None
        status = self.end_daemon()
        sentence = self.said_since(log_bytes)
        last_word = "".join([line for line in sentence.splitlines() if INFO not in line][-1:])
        is_deaf = status is None and call_of(fault) in DEAFENING
        if not served or (status is None and not is_deaf):
            self.fail(what, place, f"the daemon {'does not end' if served else 'hangs'}: "
                                   f"{sentence}")
        if READY in sentence and died_early and status in REFUSALS:
            self.fail(what, place, f"the daemon ended while it served: {sentence}")
        # Memory that the system does not give has no sentence but the runtime's.
        is_told = "terminate called" not in sentence or (
            call_of(fault) == "malloc" and "bad_alloc" in sentence)
        is_end = is_deaf or status in (0, *REFUSALS, -SIGABRT)
        if not is_end or (status != 0 and not is_deaf and not (last_word and is_told)):
            self.fail(what, place, f"the daemon ended with {status}: {last_word or 'no word'}")
        if is_struck:
            how = ("went on, deaf to SIGTERM" if is_deaf else "went on" if not died_early else
                   "refused to start" if status in REFUSALS else "ended with a sentence")
            self.ends[how] += 1
            if died_early:
                print(f"      {what} at {place:#x}: {how}: {last_word[:150]}",
                      flush=True)
        # Its successor has all its means.
        self.start({})
        if not self.wait_serving() or self.stage.daemon.poll() is not None:
            self.fail(what, place, f"the next start: {self.said_since(log_bytes)}")
        for mode, number in (("recall", prompt), ("strict", self.next_prompt())):
            status, said = self.client(mode, number)
            if status != 0:
                self.fail(f"{what}, the next daemon", place, said)
        self.end_daemon()
        return is_struck, calls

    def add_redis(self):
        """The daemons share a server, which itself never fails."""
        if shutil.which("redis-server") is None:
            print("SKIPPED: no redis-server (tools/setup): calls of the Redis thread do not fail",
                  flush=True)
            return
        self.stage.redis_mib = REDIS_MIB
        self.stage.redis_path = self.stage.directory / "redis.sock"
        self.stage.start_redis()
        with open(self.stage.directory / "terraced.toml", "a", encoding="ascii") as config:
            config.write(f'[redis]\nendpoints = ["unix:{self.stage.redis_path}"]\n')

    def daemons(self):
        self.stage.kill_daemon()
        self.add_redis()
        shutil.rmtree(self.stage.nvme_path, ignore_errors=True)
        _, calls = self.one_daemon("without a fault", None)
        print(f"      without a fault: {calls_text(calls)}", flush=True)
        self.ends.clear()
        struck = collections.Counter()
        for call, error, numbers in self.chosen(OF_DAEMON, calls):
            for number in numbers:
                # On empty drives and on such as were left, in turns.
                if number % 2 == 0:
                    shutil.rmtree(self.stage.nvme_path, ignore_errors=True)
                fault = f"{call}:{number}:{getattr(errno, error)}"
                is_struck, _ = self.one_daemon(f"terraced, {call} {number}, {error}", fault)
                if not is_struck:
                    break
                struck[call] += 1
        ends = ", ".join(f"{how} {n}" for how, n in sorted(self.ends.items()))
        self.stage.check(struck.total() > 0, f"terraced met {calls_text(struck)}: {ends}")
        self.struck += struck


def call_of(fault):
    return (fault or "").partition(":")[0]


def calls_text(calls):
    return ", ".join(f"{name} {n}" for name, n in calls.items() if n)


def main():
    arguments = rig.parse_arguments(__doc__, 7200, library=(1, 1), daemon=(1, 1))
    arguments.build = arguments.build.resolve()
    stage = Stage(arguments, dram_mib=32, segment_mib=2, nvme_mib=64, slab_mib=16,
                  log_level="info")
    with stage:
        faults = Faults(stage, arguments.build)
        if arguments.library:
            console = stage.console()
            faults.library()
            console.close()
            stage.clients.remove(console)
        if arguments.daemon:
            faults.daemons()
        stage.summary = f"{faults.struck.total()} calls failed: {calls_text(faults.struck)}"
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
