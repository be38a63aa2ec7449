"""The rig of the chaos checks: one terraced with a small arena in a private directory, client
processes (terrace-chaos) that play roles, and a verdict.

Everything a check starts ends with it: children are killed on the way out and die with this
process, an alarm bounds the whole run, and the directory is removed.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20
CPUS_MAX = 2
ANSWER_S = 20
ERROR_LINES_MAX = 3
PR_SET_PDEATHSIG = 1
EXIT_SKIPPED = 77

STATUS_NAMES = ("ok", "not found", "exists", "no space", "busy", "invalid", "corrupt", "i/o",
                "gone", "unsupported")
PHASES = ("start", "idle", "acquire", "verify", "release", "reserve", "write", "commit", "abort")
RECORDING_ROLES = ("worker", "archivist", "witness")  # which erase and store what others read
FINDINGS_SHOWN = 5
COUNTERS = ("phase", "ops", "blocks_verified", "bytes_verified", "blocks_wrong",
            "blocks_committed", "boot_id", "boots_seen", "blocks_since_boot", "call_us_max",
            "calls_late")


class Failure(Exception):
    """The check cannot go on; its sentence is the verdict."""


def parse_arguments(doc, limit_s, **numbers):
    """--short, --build and one --name per number: name=(long, short)."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release",
                        help="build directory with daemon/terraced and tests/chaos/terrace-chaos")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--seed", type=int, default=1)
    for name, (long_value, short_value) in numbers.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=None,
                            help=f"default {long_value}, with --short {short_value}")
    arguments = parser.parse_args()
    for name, (long_value, short_value) in numbers.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, short_value if arguments.short else long_value)
    arguments.limit_s = limit_s
    return arguments


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_until(condition, limit_s, interval_s=0.01):
    """The seconds until condition() was true; None if it was not within limit_s."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(interval_s)
    return time.monotonic() - began


class Client:
    """One terrace-chaos process."""

    def __init__(self, rig, role, **options):
        self.role = role
        self.name = f"{role}-{rig.next_number()}"
        self.progress_path = rig.directory / f"{self.name}.progress"
        self.error_path = rig.directory / f"{self.name}.err"
        self.history_path = rig.directory / f"{self.name}.history"
        options = {"socket": rig.socket_path, "name": self.name,
                   "progress": self.progress_path, **options}
        if rig.has_histories and role in RECORDING_ROLES:
            options["history"] = self.history_path
        if rig.small_bytes:
            options["small_bytes"] = rig.small_bytes
        arguments = [str(x) for name, value in options.items()
                     for x in ("--" + name.replace("_", "-"), value)]
        with open(self.error_path, "wb") as errors:
            self.process = subprocess.Popen(
                [rig.chaos, role, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, preexec_fn=die_with_parent)
        self.unread = b""

    @property
    def pid(self):
        return self.process.pid

    def line(self, limit_s=ANSWER_S):
        """The next line of its output."""
        end = time.monotonic() + limit_s
        while b"\n" not in self.unread:
            left_s = max(0, end - time.monotonic())
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                raise Failure(f"{self.name} said nothing for {limit_s} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise Failure(f"{self.name} ended with status {self.process.wait()}: "
                              f"{self.errors() or 'no word'}")
            self.unread += piece
        line, self.unread = self.unread.split(b"\n", 1)
        return line.decode()

    def expect(self, word, limit_s=ANSWER_S):
        """The words of the next line, which must start with `word`."""
        words = self.line(limit_s).split()
        if not words or words[0] != word:
            raise Failure(f"{self.name} said '{' '.join(words)}' instead of '{word}'")
        return words[1:]

    def tell(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failure(f"{self.name} ended with status {self.process.wait()}: "
                          f"{self.errors() or 'no word'}") from None

    def ask(self, line, limit_s=ANSWER_S):
        self.tell(line)
        answer = json.loads(self.line(limit_s))
        if "error" in answer:
            raise Failure(f"the daemon answered {answer['error']}: {self.errors()}")
        return answer

    def counters(self):
        page = self.progress_path.read_bytes() if self.progress_path.exists() else b""
        if len(page) < 27 * 8:
            return dict.fromkeys(COUNTERS, 0) | {"statuses": [0] * 16}
        words = struct.unpack("<27Q", page[:27 * 8])
        return dict(zip(COUNTERS, words)) | {"statuses": list(words[11:])}

    def errors(self):
        """What it wrote to standard error: the first lines."""
        lines = self.error_path.read_text(errors="replace").splitlines()
        more = [f"... {len(lines) - ERROR_LINES_MAX} lines more"] * (len(lines) > ERROR_LINES_MAX)
        return "\n".join(lines[:ERROR_LINES_MAX] + more)

    def signal(self, number):
        self.process.send_signal(number)

    def finish(self, limit_s=ANSWER_S):
        """Ends it in good order; its exit status (negative: the signal that ended it)."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} did not end within {limit_s} s of SIGTERM") from None

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


class Rig:
    """A daemon, its clients, and what is checked about them. A context manager."""

    def __init__(self, arguments, dram_mib=64, segment_mib=4, nvme_mib=0, slab_mib=16,
                 nvme_keys=None, keeper=False, domain_keys=None, redis_mib=0, histories=False,
                 small_bytes=0, daemon_environment=None, **daemon_keys):
        self.terraced = arguments.build / "daemon/terraced"
        self.chaos = arguments.build / "tests/chaos/terrace-chaos"
        missing = [str(p) for p in (self.terraced, self.chaos) if not os.access(p, os.X_OK)]
        if missing:
            sys.exit(f"missing: {', '.join(missing)}. Build first: cmake --preset release && "
                     "cmake --build build/release --target terraced terrace-chaos, or name "
                     "another build directory with --build")
        self.arguments = arguments
        self.random = random.Random(arguments.seed)
        self.dram_bytes = dram_mib * MIB
        self.nvme_bytes = nvme_mib * MIB
        self.nvme_keys = {"slab_bytes": slab_mib * MIB, **(nvme_keys or {})}
        self.daemon_keys = {"dram_bytes": self.dram_bytes, "segment_bytes": segment_mib * MIB,
                            **daemon_keys}
        self.domain_keys = domain_keys or {}
        self.redis_mib = redis_mib
        self.has_histories = histories
        self.small_bytes = small_bytes
        self.daemon_environment = daemon_environment
        self.clients = []
        self.has_keeper = keeper
        self.keeper = None
        self.redis = None
        self.daemon = None
        self.daemon_starts = 0
        self.number = 0
        self.failures = []
        self.summary = ""  # what the verdict says when nothing failed
        self.console_client = None

    def __enter__(self):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS_MAX])
        # One rig may stand inside another: each puts back what it found.
        self.alarm_before = signal.signal(signal.SIGALRM, self._out_of_time)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.alarm_before_s = signal.alarm(self.arguments.limit_s)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="terrace-chaos."))
        self.socket_path = self.directory / "terrace.sock"
        self.log_path = self.directory / "terraced.log"
        self.nvme_path = self.directory / "nvme"
        keys = {"state_dir": str(self.directory), "log_level": "warn", **self.daemon_keys}
        if self.has_keeper:
            keys["keeper_socket"] = str(self.directory / "keeper.sock")
            self.start_keeper()
        lines = ["[daemon]", *(f"{k} = {json.dumps(v)}" for k, v in keys.items())]
        if self.nvme_bytes:
            nvme = {"paths": [str(self.nvme_path)], "capacity_bytes": self.nvme_bytes,
                    **self.nvme_keys}
            lines += ["[nvme]", *(f"{k} = {json.dumps(v)}" for k, v in nvme.items())]
        if self.redis_mib:
            self.redis_path = self.directory / "redis.sock"
            self.start_redis()
            lines += ["[redis]", f'endpoints = ["unix:{self.redis_path}"]']
        lines += ["[[domain]]", 'name = "chaos"', f'socket = "{self.socket_path}"']
        lines += [f"{k} = {json.dumps(v)}" for k, v in self.domain_keys.items()]
        (self.directory / "terraced.toml").write_text("\n".join(lines) + "\n")
        self.start_daemon()
        return self

    def __exit__(self, kind, error, _):
        signal.signal(signal.SIGALRM, self.alarm_before)
        signal.alarm(self.alarm_before_s)
        for client in self.clients:
            client.close()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGCONT)
            self.daemon.kill()
            self.daemon.wait()
        for process in (self.keeper, self.redis):
            if process is not None:
                process.kill()
                process.wait()
        log = self.log_path.read_text(errors="replace").splitlines()[-20:]
        shutil.rmtree(self.directory, ignore_errors=True)
        if kind is Failure:
            self.check(False, str(error))
        if self.failures:
            print("\n".join(["the end of terraced's log:", *log]))
        return kind is Failure

    def _out_of_time(self, *_):
        raise Failure(f"not done after {self.arguments.limit_s} s")

    def next_number(self):
        self.number += 1
        return self.number

    # ---- the daemon ----
    def start_daemon(self):
        with open(self.log_path, "ab") as log:
            self.daemon = subprocess.Popen(
                [self.terraced, "--config", self.directory / "terraced.toml"], stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, env=self.daemon_environment,
                preexec_fn=die_with_parent)
        self.daemon_starts += 1

    def start_keeper(self):
        path = self.directory / "keeper.sock"
        with open(self.log_path, "ab") as log:
            self.keeper = subprocess.Popen([self.terraced, "--keeper", "--socket", path],
                                           stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                           preexec_fn=die_with_parent)
        if wait_until(path.exists, ANSWER_S) is None:
            raise Failure("the keeper does not listen")

    def start_redis(self):
        """A server that forgets what was used longest ago where more than redis_mib is given."""
        with open(self.log_path, "ab") as log:
            self.redis = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", self.redis_path, "--save", "",
                 "--appendonly", "no", "--maxmemory", f"{self.redis_mib}mb", "--maxmemory-policy",
                 "allkeys-lru"], stdout=subprocess.DEVNULL, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent, cwd=self.directory)
        if wait_until(self.redis_path.exists, ANSWER_S) is None:
            raise Failure("redis-server does not listen")

    def shared_bytes(self):
        """What the memfds that anybody here holds or maps take, each counted once."""
        processes = [p.pid for p in (self.keeper, self.daemon) if p is not None]
        processes += [c.pid for c in self.clients if c.process.poll() is None]
        held, mapped = {}, {}
        for pid in processes:
            # A process may be gone, or have closed what was there a moment ago.
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        path = f"/proc/{pid}/fd/{fd}"
                        if os.readlink(path).startswith("/memfd:"):
                            status = os.stat(path)
                            held[status.st_ino] = status.st_blocks * 512
            with contextlib.suppress(OSError):
                for line in open(f"/proc/{pid}/maps", encoding="utf-8"):
                    fields = line.split(maxsplit=5)
                    if len(fields) > 5 and fields[5].startswith("/memfd:"):
                        begin, end = (int(x, 16) for x in fields[0].split("-"))
                        inode = int(fields[4])
                        mapped[inode] = max(mapped.get(inode, 0), end - begin)
        # Of what is mapped only, nobody can tell how much is populated: all of it, then.
        return sum(held.values()) + sum(n for i, n in mapped.items() if i not in held)

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def require_daemon(self):
        status = self.daemon.poll()
        if status is not None:
            raise Failure(f"terraced ended with status {status}")

    def daemon_fds(self):
        """A daemon that cannot be dumped shows its descriptors to root alone."""
        try:
            return os.listdir(f"/proc/{self.daemon.pid}/fd")
        except PermissionError:
            print("SKIPPED, so not checked here: it counts the daemon's descriptors, which only "
                  "root can see")
            sys.exit(EXIT_SKIPPED)

    def daemon_fd_count(self):
        """Without the catalog's files, which RocksDB opens and closes as it compacts."""
        count = 0
        for fd in self.daemon_fds():
            with contextlib.suppress(OSError):  # it may have been closed
                count += "/catalog/" not in os.readlink(f"/proc/{self.daemon.pid}/fd/{fd}")
        return count

    def daemon_fd_count_at_rest(self):
        """The least of a second: a daemon that has just started still holds some for a moment."""
        counts = []
        for _ in range(20):
            counts.append(self.daemon_fd_count())
            time.sleep(0.05)
        return min(counts)

    def daemon_memory(self):
        """Private resident bytes, and allocated bytes of each memfd, by name."""
        self.require_daemon()
        fields = {}
        for line in open(f"/proc/{self.daemon.pid}/status", encoding="ascii"):
            name, _, value = line.partition(":")
            if name.startswith("Rss"):
                fields[name] = int(value.split()[0]) * 1024
        files = {}
        directory = f"/proc/{self.daemon.pid}/fd"
        for fd in self.daemon_fds():
            with contextlib.suppress(OSError):
                target = os.readlink(f"{directory}/{fd}")
                if target.startswith("/memfd:"):
                    status = os.stat(f"{directory}/{fd}")
                    files[(target, status.st_ino)] = status.st_blocks * 512
        return fields["RssAnon"], fields["RssShmem"], files

    # ---- clients ----
    def client(self, role, **options):
        client = Client(self, role, **options)
        self.clients.append(client)
        return client

    def console(self, **options):
        """A console that stays connected; its prompts are the ones `audit` reads."""
        self.console_client = self.client("console", **options)
        try:
            self.console_client.expect("ready")
        except Failure:
            self.require_daemon()
            raise
        return self.console_client

    def stats(self):
        """The figures of the domain."""
        return self.console_client.ask("stats")["domain"]

    # ---- verdicts ----
    def check(self, holds, sentence):
        print(("ok    " if holds else "FAIL  ") + sentence, flush=True)
        if not holds:
            self.failures.append(sentence)

    def check_clients(self, clients):
        """No client ever saw a wrong byte or an answer that only a broken caller gets."""
        total = dict.fromkeys(COUNTERS, 0)
        statuses = [0] * 16
        for client in clients:
            counters = client.counters()
            for name in COUNTERS:
                total[name] += counters[name]
            statuses = [a + b for a, b in zip(statuses, counters["statuses"])]
            for line in client.errors().splitlines():
                print(f"      {client.name}: {line}")
        self.check(total["blocks_wrong"] == 0,
                   f"{total['blocks_wrong']} wrong of {total['blocks_verified']} blocks verified "
                   f"({total['bytes_verified'] / MIB:.0f} MiB), by {len(clients)} clients that "
                   f"committed {total['blocks_committed']} blocks")
        self.check(total["blocks_verified"] > 0, "there were blocks to verify")
        answers = ", ".join(f"{STATUS_NAMES[i]} {n}" for i, n in enumerate(statuses) if n)
        self.check(statuses[5] == statuses[6] == statuses[9] == 0, f"answers: {answers}")
        return total

    def check_histories(self, clients, settled):
        """No call of any of them was answered what cannot have been; what they add up to. Their
        histories are gone then."""
        judged = subprocess.run(
            [self.chaos, "judge", "--directory", self.directory, "--settled", str(int(settled))],
            capture_output=True, text=True, check=False)
        for line in judged.stderr.splitlines()[:FINDINGS_SHOWN]:
            print(f"      {line}")
        if not judged.stdout.startswith("{"):
            raise Failure(f"the judge ended with {judged.returncode}: {judged.stderr}")
        total = json.loads(judged.stdout)
        self.check(total["findings"] == 0 and total["blocks_read"] > 0,
                   f"{total['findings']} of {total['operations']} operations that {len(clients)} "
                   f"clients wrote down cannot have been; {total['blocks_read']} blocks read, "
                   f"{total['commits']} committed, {total['erasures']} erasures")
        if total["findings"] == 0:
            for client in clients:
                client.history_path.unlink(missing_ok=True)
        return total

    def forget_clients(self, clients):
        """Of those that have ended nothing is asked any more: a long run has many."""
        for client in clients:
            client.close()
            for path in (client.progress_path, client.error_path):
                path.unlink(missing_ok=True)
        gone = set(clients)
        self.clients = [client for client in self.clients if client not in gone]

    def check_nothing_left(self, limit_s=5):
        """With every client gone, the ledger is exact and everything can be evicted."""
        names = ("reserved_count", "lease_count", "fenced_bytes")
        waited_s = wait_until(lambda: all(self.stats()[n] == 0 for n in names), limit_s)
        stats = self.stats()
        held = ", ".join(f"{n} {stats[n]}" for n in names)
        self.check(waited_s is not None, f"nothing held: {held}")
        ledger = self.console_client.ask("ledger")
        is_below = self.nvme_bytes or self.redis_mib  # then not every block has slots in DRAM
        self.check((is_below or
                    stats["slot_bytes_used"] == ledger["blocks"] * 2 * ledger["slot_bytes"])
                   and stats["block_count"] == ledger["blocks"],
                   f"slot_bytes_used {stats['slot_bytes_used']} = {ledger['blocks']} blocks x 2 "
                   f"slots x {ledger['slot_bytes']}, block_count {stats['block_count']}")
        self.console_client.ask("evict")
        stats = self.stats()
        self.check(stats["slot_bytes_used"] == 0 and stats["block_count"] == 0,
                   f"after evicting all: slot_bytes_used {stats['slot_bytes_used']}, block_count "
                   f"{stats['block_count']}")

    def verdict(self):
        """The last line; the exit status."""
        if self.failures:
            print("VERDICT: FAILED: " + "; ".join(self.failures[:3]))
            return 1
        print("VERDICT: OK: " + self.summary)
        return 0
