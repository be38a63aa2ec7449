"""Less memory while the daemon serves, and more again: `terrace config set daemon.dram_bytes`."""
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import terrace

from conftest import SPACE, block_bytes, connect, run_terrace, until

MIB = 1 << 20
SEGMENT_BYTES = 2 * MIB
PROMPT_BLOCKS, PROMPTS = 8, 150  # 84 MiB in slots, of 64 that there are


def tokens_of(prompt):
    return [prompt * 1000 + i for i in range(PROMPT_BLOCKS * 16)]


def payload_of(prompt):
    return [block_bytes(i, prompt % 97) for i in range(PROMPT_BLOCKS)]


class Engine(threading.Thread):
    """Stores and loads prompts, and compares what it reads, until it is told to stop."""

    def __init__(self, daemon, seed):
        super().__init__()
        self.client = connect(daemon)
        self.draw = random.Random(seed)
        self.ends = threading.Event()
        self.loaded = self.stored = self.wrong = 0
        self.failure = None

    def run(self):
        try:
            group = self.client.open(terrace.SpaceGroup("tiny", [SPACE]))
            while not self.ends.is_set():
                self.serve(group, self.draw.randrange(PROMPTS))
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self.client.close()

    def serve(self, group, prompt):
        keys, payload = group.hash(tokens_of(prompt)), payload_of(prompt)
        with group.acquire(keys) as lease:
            have = lease.block_count
            found = bytearray(have * SPACE.block_bytes)
            if have:
                lease.copy_into(found)
            self.wrong += found != b"".join(payload[:have])
            self.loaded += have
        if have == len(keys):
            return
        with contextlib.suppress(terrace.NoSpace, terrace.Busy), group.reserve(keys) as lease:
            lease.write(payload[:len(lease)])
            self.stored += lease.commit()


def populated_bytes(client):
    return client.stats()["domain"]["segments_populated"] * SEGMENT_BYTES


def is_filled(client, group):
    """Whether all memory is populated, after every prompt was offered once more."""
    for prompt in range(PROMPTS):
        with contextlib.suppress(terrace.NoSpace, terrace.Busy):
            with group.reserve(group.hash(tokens_of(prompt))) as lease:
                lease.write(payload_of(prompt)[:len(lease)])
                lease.commit()
    return populated_bytes(client) == 64 * MIB


def set_dram(daemon, value):
    status, output, errors = run_terrace("config", "set", f"daemon.dram_bytes={value}",
                                         "--socket", daemon.socket)
    assert status == 0, (output, errors)


def test_memory_is_halved_and_comes_back_while_engines_work(daemon):
    engines = [Engine(daemon, seed) for seed in (1, 2)]
    with connect(daemon) as watcher:
        for engine in engines:
            engine.start()
        until(lambda: populated_bytes(watcher) == 64 * MIB)
        set_dram(daemon, "32MiB")
        took_s = until(lambda: populated_bytes(watcher) <= 32 * MIB)
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            assert populated_bytes(watcher) <= 32 * MIB
            time.sleep(0.01)
        assert watcher.stats()["domain"]["segments_leaving"] == 0
        loaded = [engine.loaded for engine in engines]
        set_dram(daemon, "64MiB")
        until(lambda: populated_bytes(watcher) == 64 * MIB)
        until(lambda: all(engine.loaded > before for engine, before in zip(engines, loaded)))
    for engine in engines:
        engine.ends.set()
        engine.join()
    print(f"halved within {took_s:.2f} s; {sum(e.loaded for e in engines)} blocks loaded, "
          f"{sum(e.stored for e in engines)} stored")
    assert [engine.failure for engine in engines] == [None, None]
    assert sum(engine.wrong for engine in engines) == 0
    assert all(engine.loaded > 0 and engine.stored > 0 for engine in engines)


def available_bytes(name="MemAvailable:"):
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name}")


def test_memory_is_given_back_while_others_need_it(daemon):
    with connect(daemon) as client:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))

        def fill():
            return is_filled(client, group)

        until(fill)
        # More than there is: all goes but the domain's one segment, whatever else the machine does.
        set_dram_reserve(daemon, available_bytes() + (4 << 30))
        took_s = until(lambda: populated_bytes(client) <= SEGMENT_BYTES)
        print(f"62 MiB were given back within {took_s:.2f} s")
        assert client.stats()["domain"]["segments_leaving"] == 0
        fill()
        assert populated_bytes(client) <= SEGMENT_BYTES
        # There is enough: it comes again, some seconds later.
        set_dram_reserve(daemon, 1 * MIB)
        until(fill)
        log = daemon.log.read_text()
        assert "memory is given back: others need it" in log
        assert 'dram_at_most="2MiB"' in log, "what is guaranteed stays, and is told"
        set_dram_reserve(daemon, 0)


def set_dram_reserve(daemon, count):
    status, output, errors = run_terrace("config", "set", f"daemon.memory_reserve_bytes={count}",
                                         "--socket", daemon.socket)
    assert status == 0, (output, errors)


# Processes that read a file which does not fit into their memory, over and over.
THRASH = r"""
import mmap, os, random, sys
path, count, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "wb") as file:
    for _ in range(megabytes):
        file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
with open(path, "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
print("thrashes", flush=True)
for _ in range(count - 1):
    if os.fork() == 0:
        break
while True:
    pages[random.randrange(len(pages))]
"""


def stalled_us():
    with open("/proc/pressure/memory", encoding="ascii") as file:
        return int(file.readline().rsplit("total=", 1)[1])


@contextlib.contextmanager
def thrashing(path):
    """Pressure that the whole machine tells of, though there is memory: of a cgroup of its own."""
    group = pathlib.Path("/sys/fs/cgroup/memory/terrace-thrash")
    try:
        stalled_us()
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text("100663296", encoding="ascii")
    except (OSError, IndexError) as why:
        pytest.skip(f"no pressure can be made here: {why}")
    join = f"echo 0 > {group}/cgroup.procs && exec {sys.executable} -c '{THRASH}' {path} 16 400"
    thrash = subprocess.Popen(["sh", "-c", join], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert thrash.stdout.readline() == b"thrashes\n"
        yield
    finally:
        os.killpg(thrash.pid, signal.SIGKILL)
        thrash.wait()
        thrash.stdout.close()
        until(lambda: not (group / "cgroup.procs").read_text(encoding="ascii"))
        group.rmdir()


def test_memory_is_given_back_under_pressure_though_there_is_enough(daemon, tmp_path):
    with connect(daemon) as client:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))

        def fill():
            return is_filled(client, group)

        until(fill)
        # Enough is available, and less than that lies free: the rest is file cache, as if in use.
        available, free = available_bytes(), available_bytes("MemFree:")
        if available - free < 256 * MIB:
            pytest.skip("there is too little file cache for the two to differ")
        set_dram_reserve(daemon, (available + free) // 2)
        with thrashing(tmp_path / "pages"):
            before_us, began = stalled_us(), time.monotonic()
            time.sleep(3)  # and nobody asks the daemon anything: it gives back by itself
            left_bytes = populated_bytes(client)
            share = (stalled_us() - before_us) / (time.monotonic() - began) / 1e6
        print(f"{share:.0%} of 3 s in pressure, {(64 * MIB - left_bytes) >> 20} MiB given back")
        if share < 0.2:
            pytest.skip(f"pressure was {share:.0%} of the time: too little to be certain of")
        # A sixteenth each second: of two seconds at least.
        assert left_bytes <= 64 * MIB * 15 * 15 // (16 * 16) + SEGMENT_BYTES
        set_dram_reserve(daemon, 1 * MIB)
        until(fill)
        set_dram_reserve(daemon, 0)
