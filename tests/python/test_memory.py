"""Less memory while the daemon serves, and more again: `terrace config set daemon.dram_bytes`."""
import contextlib
import random
import threading
import time

import terrace

from conftest import LONG_S, SPACE, block_bytes, connect, run_terrace

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


def set_dram(daemon, value):
    status, output, errors = run_terrace("config", "set", f"daemon.dram_bytes={value}",
                                         "--socket", daemon.socket)
    assert status == 0, (output, errors)


def until(what, limit_s=LONG_S):
    began = time.monotonic()
    while not what():
        assert time.monotonic() < began + limit_s
        time.sleep(0.01)
    return time.monotonic() - began


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


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no MemAvailable")


def test_memory_is_given_back_while_others_need_it(daemon):
    with connect(daemon) as client:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))

        def fill():
            for prompt in range(PROMPTS):
                with contextlib.suppress(terrace.NoSpace, terrace.Busy):
                    with group.reserve(group.hash(tokens_of(prompt))) as lease:
                        lease.write(payload_of(prompt)[:len(lease)])
                        lease.commit()
            return populated_bytes(client) == 64 * MIB

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
        set_dram_reserve(daemon, 0)


def set_dram_reserve(daemon, count):
    status, output, errors = run_terrace("config", "set", f"daemon.memory_reserve_bytes={count}",
                                         "--socket", daemon.socket)
    assert status == 0, (output, errors)
