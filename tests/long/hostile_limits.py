#!/usr/bin/env python3
# PROMISE: T33 clients that take what they can
# PROMISE: T36 clients that take what they can
# PROMISE: T37 how long a lookup of another domain's keys takes
# PROMISE: T22 others beside a client that stops with all it can take
"""Clients that take what they can get, one kind after the other, against a daemon of two domains:
a bystander in the other domain, of another user, does not notice.

  sessions  connects, says Hello and closes, a thousand times at a time; then, each time with a slot
  strangers connects and says nothing
  crowd     makes ten thousand connections: silent, in half a frame, in one of 4 GiB
  reserve   reserves one key a quarter of a million times over, of 8,192 parts, eight leases at once
  stopped   takes all memory it can, holds it, and stops
  holes     punches holes in its arena

Of each: what the bystander's requests take (p99) while it goes on; while it goes on against another
daemon, which costs the machine the same CPU; and while a process only burns CPU, in turns. Whether
new sessions and `terrace status` come through; what the daemon has grown by, and that it lives. As
root, `holes` is also done with an arena of huge pages whose pool is then emptied.
"""
import array
import contextlib
import ctypes
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import rig

HELLO, OPEN, MATCH, ACQUIRE, JOIN, RELEASE, RESERVE, COMMIT, STATS = 1, 2, 3, 4, 6, 7, 10, 11, 18
FRAME_MORE, FLAT = 1, 1
FALLOC_PUNCH = 3  # PUNCH_HOLE | KEEP_SIZE
ATTACKER_UID, BYSTANDER_UID = 12344, 12345
RATIO_MAX = 1.5
STOPPED_RATIO_MAX = 1.2
CROWD = 10_000
LOOKUP_US_MAX = 1
LOOKUP_SERIES_MAX = 3
SESSIONS_PER_PROCESS_MAX = 256  # the default
NR_HUGEPAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")


class Gone(Exception):
    pass


class Session:
    """One connection; one request at a time."""

    def __init__(self, path, limit_s=20):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))  # with a limit it would not wait for a queue that is full
        self.socket.settimeout(limit_s)
        self.fds = []
        self.next_id = 1
        self.status, self.body = self.call(HELLO, struct.pack("<IBBHII32s", 0x31435254, 1, 1, 0, 1,
                                                              0, b"limits"))

    def receive(self, count):
        data = bytearray()
        while len(data) < count:
            room = socket.CMSG_SPACE(16 * 4)
            piece, extra, _, _ = self.socket.recvmsg(min(count - len(data), 1 << 20), room)
            for level, kind, fds in extra:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    got = array.array("i")
                    got.frombytes(fds[:len(fds) // 4 * 4])
                    self.fds += got
            if not piece:
                raise Gone
            data += piece
        return bytes(data)

    def send(self, verb, body):
        request_id = self.next_id
        self.next_id += 1
        pages = [body[i:i + (1 << 19)] for i in range(0, len(body), 1 << 19)] or [b""]
        for i, page in enumerate(pages):
            flags = FRAME_MORE if i + 1 < len(pages) else 0
            self.socket.sendall(struct.pack("<IBBHQ", 16 + len(page), 1, verb, flags, request_id)
                                + page)
        return request_id

    def call(self, verb, body):
        """(status, body) of the answer; news in between is skipped."""
        request_id = self.send(verb, body)
        data = b""
        while True:
            size, _, _, flags, answered = struct.unpack("<IBBHQ", self.receive(16))
            page = self.receive(size - 16)
            if answered != request_id:
                continue
            data += page
            if not flags & FRAME_MORE:
                return data[8], data[16:]

    def open(self, name, members=1, parts=1, self_mask=None):
        body = struct.pack("<IIQ", len(name), members,
                           (1 << members) - 1 if self_mask is None else self_mask) + name.encode()
        for rank in range(members):
            fields = (("model", name), ("revision", "r"), ("adapter", ""), ("dtype", "bf16"),
                      ("quantisation", ""), ("layers", 1), ("kv_heads", 1), ("head_size", 64),
                      ("attention", "gqa"), ("window_tokens", 0), ("layout", "nhd"),
                      ("block_tokens", 16), ("tp_rank", rank), ("tp_size", members),
                      ("pp_rank", 0), ("pp_size", 1), ("cp_rank", 0), ("cp_size", 1),
                      ("attention_group", 0), ("salt", ""), ("part_bytes", f"{parts}x4096"))
            text = "".join(f"{k}={v}\n" for k, v in fields).encode()
            body += struct.pack("<IB3x", len(text), 0) + text
        status, answer = self.call(OPEN, body)
        if status != 0:
            raise rig.Failure(f"Open: {answer.decode(errors='replace')}")
        return struct.unpack_from("<16xI", answer)[0]

    def keys(self, verb, group, keys, flags=0, mask=0):
        return self.call(verb, struct.pack("<IIIIQ16s", group, len(keys), flags, 0, mask, b"")
                         + hints() + b"".join(keys))

    def store(self, group, keys):
        """Reserves and commits what is new, in Spaces of one member and one part; blocks sealed."""
        status, answer = self.keys(RESERVE, group, keys)
        if status != 0:
            return 0
        token = answer[:16]
        if not any(token):
            return 0
        key_count, slot_count = struct.unpack_from("<II", answer, 24)
        reserved = [i for i in range(key_count) if answer[40 + 16 * i] == 0]
        entries = b""
        for slot, index in enumerate(reserved):
            segment, _, row, generation = struct.unpack_from("<IIII", answer,
                                                             40 + 16 * key_count + 16 * slot)
            entries += struct.pack("<IHHHHIII", index, 0, 0, 0, 1, row, segment, generation)
        status, answer = self.call(COMMIT, token + struct.pack("<II", slot_count, 1) + hints()
                                   + entries)
        return struct.unpack_from("<II", answer)[1] if status == 0 else 0

    def close(self):
        self.socket.close()
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def hints():
    return struct.pack("<IIQIIIBBBB", 0, 0, 0, 0, 0, 0, 0, 255, 0, 0)


def chain(count, seed):
    return [struct.pack("<QQ", seed << 32 | i + 1, seed) for i in range(count)]


# ---- what hostile clients do; each runs in a process of its own until it is killed ----
def sessions(path, _):
    while True:
        for _ in range(1023):
            with contextlib.suppress(OSError, Gone):
                Session(path).close()
        time.sleep(0.25)


def sessions_with_slots(path, _):
    number = 0
    while True:
        number += 1
        with contextlib.suppress(OSError, Gone, rig.Failure):
            one = Session(path)
            if one.status != 0:
                one.close()
                time.sleep(0.02)
                continue
            one.keys(RESERVE, one.open("hostile"), chain(1, 1 << 20 | number))
            one.close()


def strangers(path, _):
    while True:
        held = []
        for _ in range(256):
            with contextlib.suppress(OSError):
                one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                one.settimeout(1)
                one.connect(str(path))
                held.append(one)
        time.sleep(0.05)
        for one in held:
            one.close()


def crowd(path, ready):
    """Whom the daemon closes comes again."""
    hello = struct.pack("<IBBHQIBBHII32s", 16 + 48, 1, HELLO, 0, 1, 0x31435254, 1, 1, 0, 1, 0,
                        b"crowd")
    beginnings = (b"", hello[:40], hello + struct.pack("<IBBHQ", 0xFFFFFFFF, 1, OPEN, 0, 2))
    resource.setrlimit(resource.RLIMIT_NOFILE, (CROWD + 100, CROWD + 100))
    held = []

    def come(number):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(str(path))  # however long the daemon's queue is
        with contextlib.suppress(OSError):
            one.send(beginnings[number % len(beginnings)])
        one.setblocking(False)
        return one

    for number in range(CROWD):
        held.append(come(number))
    ready.set()
    while True:
        for number, one in enumerate(held):
            with contextlib.suppress(BlockingIOError):
                try:
                    gone = one.recv(4096) == b""
                except ConnectionError:
                    gone = True
                if gone:
                    one.close()
                    held[number] = come(number)
            if number % 500 == 0:
                time.sleep(0.05)


def reserve(path, _):
    """Eight leases at a time, each asked for with one key over and over."""
    one = Session(path, 120)
    group = one.open("hostile-wide", members=64, parts=128)
    number = 0
    while True:
        tokens = []
        for _ in range(8):
            number += 1
            status, answer = one.keys(RESERVE, group, chain(1, 2 << 20 | number) * (1 << 18), FLAT,
                                      mask=1)
            if status == 0:
                tokens.append(answer[:16])
        time.sleep(0.1)
        for token in tokens:
            one.call(RELEASE, token + hints())


def stopped(path, ready):
    """Fills what it may with leased blocks, then stops."""
    one = Session(path)
    group = one.open("hostile")
    misses = number = 0
    while misses < 20:
        number += 1
        keys = chain(256, 3 << 20 | number)
        sealed = one.store(group, keys)
        one.keys(ACQUIRE, group, keys)
        misses = 0 if sealed else misses + 1
        if not sealed:
            time.sleep(0.05)
    ready.set()
    os.kill(os.getpid(), signal.SIGSTOP)


def holes(path, _):
    one, two = Session(path), Session(path)
    group = one.open("hostile")
    two.open("hostile")
    libc = ctypes.CDLL(None, use_errno=True)
    number = 0
    while True:
        number += 1
        keys = chain(64, 4 << 20 | number)
        one.store(group, keys)
        time.sleep(0.02)  # the daemon computes their checksums
        for fd in one.fds[:-1]:
            libc.fallocate(fd, FALLOC_PUNCH, ctypes.c_long(0), ctypes.c_long(os.fstat(fd).st_size))
        status, answer = two.keys(ACQUIRE, group, keys)
        time.sleep(0.03)
        if status == 0 and any(answer[:16]):
            two.call(RELEASE, answer[:16] + hints())


def burn(_, __):
    """As an attack would, without the daemon."""
    while True:
        pass


def sleep(_, __):
    while True:
        time.sleep(1)


def become(uid):
    """Another user, if this one may."""
    rig.die_with_parent()
    if os.geteuid() == 0:
        os.setgid(uid)
        os.setuid(uid)
        rig.die_with_parent()  # which the change of user has undone


def start(attack, path):
    ready = multiprocessing.Event()

    def run():
        become(ATTACKER_UID)
        attack(path, ready)

    process = multiprocessing.Process(target=run, daemon=True)
    process.start()
    return process, ready


def end(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()


# ---- the bystander ----
def work(path, pipe):
    """Says, for each time it is asked, the p99 of its requests meanwhile and what went wrong."""
    become(BYSTANDER_UID)
    one = Session(path)
    group = one.open("bystander")
    keys = chain(64, 5 << 20)
    stored = 0
    while stored < len(keys):
        stored += one.store(group, keys)
        time.sleep(0.02)
    while True:
        seconds = pipe.recv()
        took_us, missed, opened = [], 0, 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter_ns()
            status, answer = one.keys(ACQUIRE, group, keys)
            blocks = struct.unpack_from("<I", answer, 24)[0] if status == 0 else 0
            if status == 0 and blocks:
                one.call(RELEASE, answer[:16] + hints())
            took_us.append((time.perf_counter_ns() - began) / 1000)
            missed += blocks != len(keys)
            if len(took_us) % 200 == 0:
                another = Session(path)
                opened += another.status == 0
                missed += another.status != 0
                another.close()
            time.sleep(0.0002)
        took_us.sort()
        pipe.send((took_us[len(took_us) * 99 // 100], len(took_us), missed, opened))


class Stage:
    """A daemon with two domains, the attackers' and the bystander's."""

    def __init__(self, arguments, **keys):
        self.arguments = arguments
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="terrace-limits."))
        os.chmod(self.directory, 0o755)
        self.theirs, self.ours = (self.directory / f"{d}.sock" for d in ("hostile", "bystander"))
        keys = {"state_dir": str(self.directory), "log_level": "error", "dram_bytes": 64 << 20,
                "segment_bytes": 4 << 20, "hugepages": "off", **keys}
        lines = ["[daemon]", *(f"{k} = {json.dumps(v)}" for k, v in keys.items())]
        for name in ("hostile", "bystander"):
            lines += ["[[domain]]", f'name = "{name}"', f'socket = "{self.directory}/{name}.sock"',
                      'socket_mode = "0666"', f"dram_guaranteed_bytes = {24 << 20}"]
        (self.directory / "terraced.toml").write_text("\n".join(lines) + "\n")
        self.log = open(self.directory / "log", "wb")
        self.daemon = subprocess.Popen(
            [arguments.build / "daemon/terraced", "--config", self.directory / "terraced.toml"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            preexec_fn=rig.die_with_parent)
        if rig.wait_until(self.ours.exists, 20) is None:
            raise rig.Failure("the daemon does not listen: " + (self.directory / "log").read_text())
        self.pipe, theirs = multiprocessing.Pipe()
        self.bystander = multiprocessing.Process(target=work, args=(self.ours, theirs), daemon=True)
        self.bystander.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.bystander, self.daemon):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self.daemon.wait()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def measure(self, seconds):
        self.pipe.send(seconds)
        if not self.pipe.poll(seconds + 30):
            raise rig.Failure("the bystander waits for ever")
        return self.pipe.recv()

    def touch_indexes(self):
        """A domain's first blocks touch its index's whole table, in huge pages: no attack's."""
        for seed, path in enumerate((self.theirs, self.ours)):
            one = Session(path)
            group = one.open("first")
            for part in range(4):
                one.store(group, chain(256, 7 << 20 | seed << 8 | part))
            one.close()
        time.sleep(0.5)

    def heap_bytes(self):
        for line in open(f"/proc/{self.daemon.pid}/status", encoding="ascii"):
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        return 0

    def status_works(self):
        one = Session(self.theirs)
        status, answer = one.call(STATS, bytes(8)) if one.status == 0 else (one.status, b"")
        one.close()
        return json.loads(answer) if status == 0 else None


class Verdict:
    def __init__(self):
        self.failures = []

    def check(self, holds, sentence):
        print(("ok    " if holds else "FAIL  ") + sentence, flush=True)
        if not holds:
            self.failures.append(sentence)


def attacked(verdict, stage, elsewhere, attack, heap_mib_max, ratio_max=RATIO_MAX):
    """Windows with the attack and without, in turns: beside none, beside a process that only burns
    CPU, and beside the same attack on a daemon that is not the bystander's. The slowest of these is
    the floor: a virtual CPU that sleeps meanwhile wakes slowly, and on two CPUs an attacker and the
    daemon that it keeps busy leave a third process little, whosever daemon that is."""
    name = attack.__name__
    p99s = {"attack": [], "elsewhere": [], "burn": [], "sleep": []}
    missed_all = opened_all = 0
    heap_before = stage.heap_bytes()
    heap_max = heap_before
    status = None
    for _ in range(stage.arguments.pairs):
        for kind, what, path in (("burn", burn, None), ("sleep", sleep, None),
                                 ("elsewhere", attack, elsewhere.theirs),
                                 ("attack", attack, stage.theirs)):
            process, ready = start(what, path)
            if what in (stopped, crowd):
                ready.wait(60)
            p99, _, missed, opened = stage.measure(stage.arguments.window_s)
            p99s[kind].append(p99)
            heap_max = max(heap_max, stage.heap_bytes())
            if kind == "attack":
                missed_all += missed
                opened_all += opened
                status = stage.status_works()
            end(process)
    burning, asleep, beside, attacking = (statistics.median(p99s[k])
                                          for k in ("burn", "sleep", "elsewhere", "attack"))
    floor = max(burning, asleep, beside)
    verdict.check(attacking <= ratio_max * floor,
                  f"{name}: the bystander's p99 is {attacking:.0f} us, {burning:.0f} beside a "
                  f"process that only burns CPU, {asleep:.0f} beside none, {beside:.0f} while "
                  f"another daemon is attacked: {attacking / floor:.2f} x (median of "
                  f"{stage.arguments.pairs} windows each, in turns)")
    verdict.check(missed_all == 0 and opened_all > 0,
                  f"{name}: {missed_all} of its requests went wrong, {opened_all} new sessions of "
                  "its user were opened meanwhile")
    verdict.check(status is not None,
                  f"{name}: root's status was answered in the attacker's domain")
    verdict.check(heap_max - heap_before <= heap_mib_max << 20,
                  f"{name}: the daemon's heap grew by {(heap_max - heap_before) / rig.MIB:.1f} MiB "
                  f"(limit {heap_mib_max})")
    if stage.daemon.poll() is not None:
        raise rig.Failure(f"{name}: terraced ended with status {stage.daemon.returncode}")
    return status


def guarantee_is_there(verdict, stage):
    """With all else taken by a stopped process, the other domain fills what it is guaranteed."""
    process, ready = start(stopped, stage.theirs)
    if not ready.wait(60):
        raise rig.Failure("stopped: it does not come to its end")
    one = Session(stage.ours)
    group = one.open("bystander")
    sealed, number, began = 0, 0, time.monotonic()
    want = (24 << 20) // 4096 - 64 - 1024
    while sealed < want and time.monotonic() - began < 20:
        number += 1
        sealed += one.store(group, chain(256, 6 << 20 | number))
    verdict.check(sealed >= want, f"stopped: {sealed * 4096 / rig.MIB:.0f} MiB of the 24 that the "
                  f"other domain is guaranteed were stored in {time.monotonic() - began:.1f} s")
    one.close()
    end(process)


def lookups_tell_nothing(verdict, stage):
    """Whether another domain has a key does not show in how long a Match takes: medians, of calls
    in random turns; a series that a busy machine has spoilt is repeated."""
    one = Session(stage.theirs)
    group = one.open("hostile")
    theirs = chain(64, 5 << 20)  # what the bystander has, in its domain
    for series in range(1, LOOKUP_SERIES_MAX + 1):
        took_ns = ([], [])
        for number in range(stage.arguments.lookups):
            is_there = random.getrandbits(1)
            key = theirs[number % 64] if is_there else chain(1, 8 << 20 | number)[0]
            began = time.perf_counter_ns()
            status, answer = one.keys(MATCH, group, [key], FLAT)
            took_ns[is_there].append(time.perf_counter_ns() - began)
            if status != 0 or struct.unpack_from("<I", answer)[0] != 0:
                raise rig.Failure(f"lookups: status {status}, or a hit")
        absent, present = (statistics.median(took) / 1000 for took in took_ns)
        if abs(present - absent) <= LOOKUP_US_MAX:
            break
    verdict.check(abs(present - absent) <= LOOKUP_US_MAX,
                  f"lookups: a Match of a key that another domain has takes {present:.2f} us, of "
                  f"one that nobody has {absent:.2f}: {present - absent:+.2f} (limit "
                  f"{LOOKUP_US_MAX}), in series {series}")
    one.close()


def huge_pages(verdict, arguments):
    """The same holes in huge pages, of which there are none left then."""
    if os.geteuid() != 0:
        return print("skip  holes in huge pages: only root sets vm.nr_hugepages")
    before = NR_HUGEPAGES.read_text()
    try:
        NR_HUGEPAGES.write_text("40")
        if int(NR_HUGEPAGES.read_text()) < 40:
            return print("skip  holes in huge pages: the machine has no 80 MiB of them")
        with Stage(arguments, hugepages="on") as stage:
            stage.measure(1)
            NR_HUGEPAGES.write_text("0")  # what is free goes now, and what is punched when it is
            process, _ = start(holes, stage.theirs)
            _, count, missed, _ = stage.measure(max(arguments.window_s, 3))
            lost = (stage.status_works() or {}).get("arena_pages_lost", 0)
            end(process)
            verdict.check(stage.daemon.poll() is None and lost > 0 and missed == 0,
                          f"holes in huge pages: {lost} pages were lost, the daemon lives, "
                          f"{missed} of {count} of the bystander's requests went wrong")
    finally:
        NR_HUGEPAGES.write_text(before)


def main():
    arguments = rig.parse_arguments(__doc__, 600, pairs=(7, 2), window_s=(3, 1),
                                    lookups=(40_000, 4_000))
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("VERDICT: FAILED: not done in time"))
    signal.alarm(arguments.limit_s)
    verdict = Verdict()
    try:
        with Stage(arguments) as stage, Stage(arguments) as elsewhere:
            stage.touch_indexes()
            elsewhere.touch_indexes()
            lookups_tell_nothing(verdict, stage)
            attacked(verdict, stage, elsewhere, sessions, heap_mib_max=16)
            attacked(verdict, stage, elsewhere, sessions_with_slots, heap_mib_max=16)
            attacked(verdict, stage, elsewhere, strangers, heap_mib_max=16)
            status = attacked(verdict, stage, elsewhere, crowd, heap_mib_max=64)
            sessions_held = status["domain"]["session_count"] if status else 0
            came = status["connections_accepted"] + status["connections_refused"] if status else 0
            verdict.check(0 < sessions_held <= SESSIONS_PER_PROCESS_MAX + 1
                          and came >= arguments.pairs * CROWD,
                          f"crowd: {came} connections in {arguments.pairs} windows, of which "
                          f"{sessions_held} are sessions (limit {SESSIONS_PER_PROCESS_MAX} a "
                          "process, and the one that asks)")
            attacked(verdict, stage, elsewhere, stopped, heap_mib_max=32,
                     ratio_max=STOPPED_RATIO_MAX)
            guarantee_is_there(verdict, stage)
            attacked(verdict, stage, elsewhere, holes, heap_mib_max=32)
        # A block of 64 members and 128 parts has 32 MiB.
        wide = {"dram_bytes": 1 << 30, "segment_bytes": 16 << 20}
        with Stage(arguments, **wide) as stage, Stage(arguments, **wide) as elsewhere:
            stage.touch_indexes()
            elsewhere.touch_indexes()
            attacked(verdict, stage, elsewhere, reserve, heap_mib_max=64)
        huge_pages(verdict, arguments)
    except rig.Failure as failure:
        verdict.check(False, str(failure))
    if verdict.failures:
        print("VERDICT: FAILED: " + "; ".join(verdict.failures[:3]))
        return 1
    print("VERDICT: OK: no client took from another what it is to have")
    return 0


if __name__ == "__main__":
    sys.exit(main())
