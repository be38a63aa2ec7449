"""Processes that end without closing anything, with work under way: they end at once beside a
daemon that hangs, and touch no memory that is gone."""
import os
import signal
import subprocess
import sys
import time

from conftest import LONG_S

SOON_S = LONG_S / 10  # a thread that waits does so for LONG_S
BEGIN = """
import sys, time
from conftest import LONG_S, SPACE, block_bytes
import terrace
client = terrace.Client(sys.argv[1], default_timeout_s=LONG_S)
client.wait_connected(LONG_S)
group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
keys = group.hash(list(range(160)))
began = time.monotonic()
def wait():
    assert time.monotonic() < began + LONG_S
    time.sleep(0.001)
def ready():
    print("ready", flush=True)
    assert sys.stdin.readline() == "go on\\n"
"""
END = """
print("end", time.monotonic(), flush=True)
"""


class Process:
    """Of a program; it has called ready() when this is made."""

    def __init__(self, daemon, program):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN + program + END,
             daemon.socket], text=True, cwd=os.path.dirname(__file__), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._line = self._process.stdout.readline()

    def end(self):
        """Seconds from its last line to its end, and what it has printed."""
        assert self._line == "ready\n", self._process.communicate()[1]
        out, error = self._process.communicate("go on\n", timeout=2 * LONG_S)
        ended = time.monotonic()
        assert self._process.returncode == 0, (self._process.returncode, error[-2000:])
        assert error == ""
        return ended - float(out.split("end ")[1].split()[0]), out


def expect_soon(daemon, program):
    """It ends soon, though the daemon hangs meanwhile."""
    process = Process(daemon, program)
    daemon.process.send_signal(signal.SIGSTOP)
    took_s, out = process.end()
    daemon.process.send_signal(signal.SIGCONT)
    assert took_s < SOON_S
    return out


VLLM_WORKER = """
from vllm_driver import ONE_SHARE
from terrace.vllm.copies import InStep
from terrace.vllm.messages import Load
from terrace.vllm.worker import WorkerHalf
writing = group.reserve(keys)
writing.write([block_bytes(n) for n in range(10)])
scheduler = terrace.Client(sys.argv[1], default_timeout_s=LONG_S)
scheduler.wait_connected(LONG_S)
following = scheduler.open(group.spec).acquire(keys, flags=terrace.ACQUIRE_FOLLOW)
half = WorkerHalf(group, lambda: InStep({}), shares=ONE_SHARE, load_timeout_s=LONG_S)
load = lambda n: half.load([Load(f"r{n}", following.token, [list(range(10))])])
load(0)
while not half._waiting._awaited:
    wait()
ready()
half._committer.submit(writing.commit)
for n in range(1, 50):
    load(n)
time.sleep(0.1)
"""


def test_a_vllm_worker_waits_for_no_load_and_no_commit(daemon):
    expect_soon(daemon, VLLM_WORKER)


VLLM_KERNELS = """
from vllm_driver import ONE_SHARE
from terrace.vllm.copies import InStep
from terrace.vllm.messages import Load
from terrace.vllm.worker import WorkerHalf
class Copies(InStep):
    def mark(self):
        return kernels_end
def kernels_end():
    time.sleep(0.7)
    print("kernels ended", flush=True)
half = WorkerHalf(group, lambda: Copies({}), shares=ONE_SHARE, load_timeout_s=LONG_S)
ready()
half.load([Load("r", (1, 1), [[0]])])
time.sleep(0.1)
"""


def test_a_vllm_worker_ends_a_wait_for_the_engines_kernels(daemon):
    """Which is torch's: a thread that comes back from there must find an interpreter."""
    _, out = Process(daemon, VLLM_KERNELS).end()
    assert "kernels ended" in out


VLLM_TIER = """
import numpy
from test_vllm_tier import ReqContext, TransferJob, make_driver
from conftest import SlowTier
from pytest import MonkeyPatch
SlowTier(MonkeyPatch())
driver = make_driver(type("Daemon", (), {"socket": sys.argv[1]}))
driver.add([1, 2])
driver.run()
def load(n):
    driver.manager.tier.submit_load(TransferJob(n, tuple(chain), numpy.array([2, 3]), True,
                                                ReqContext(req_id=f"r{n}")))
from test_vllm_tier import _chain
chain = _chain([1, 2])
for n in range(100, 105):
    load(n)
while len(driver.manager.tier._waiting._awaited) < 5:
    wait()
ready()
driver.add([3, 4])
driver.step()
for n in range(105, 150):
    load(n)
time.sleep(0.1)
"""


def test_a_vllm_tier_waits_for_no_load_and_no_store(daemon):
    expect_soon(daemon, VLLM_TIER)


LMCACHE = """
from test_lmcache_loads import Loads
from conftest import SlowTier
from pytest import MonkeyPatch
loads = Loads(type("Daemon", (), {"socket": sys.argv[1]}), 1)
SlowTier(MonkeyPatch())
(row,) = loads.rows
for _ in range(5):
    loads.begin(row)
while len(loads.adapter._room._awaited) < 5:
    wait()
ready()
for _ in range(50):
    loads.begin(row)
(new,) = loads.engine.rows([7, 8])
loads.adapter.submit_store_task(new, [loads.engine.memory_of(key) for key in new])
loads.adapter.submit_lookup_and_lock_task(new)
time.sleep(0.1)
"""


def test_an_lmcache_adapter_waits_for_no_task(daemon):
    expect_soon(daemon, LMCACHE)


COPIES = """
import atexit, ctypes, numpy
from terrace.buffers import Addresses
from terrace.threads import LentMemory, Pool
with group.reserve(keys) as lease:
    lease.write([block_bytes(n) for n in range(10)])
    assert lease.commit() == 10
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
size = 10 * SPACE.block_bytes
address = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_size_t(0))
def take_back():  # as who shares memory does
    assert libc.munmap(address, size) == 0
atexit.register(take_back)
first = numpy.arange(10) * SPACE.block_bytes + address
addresses = Addresses(numpy.stack([first, first + SPACE.part_bytes[0]], 1).astype(
    numpy.uint64).reshape(-1))
pool, memory = Pool(2, "copies"), LentMemory("the pages")
lease = group.acquire(keys)
lease.wait_ready()
def copy():
    with memory.used():
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            lease.copy_into(addresses)
            assert ctypes.string_at(address, 256) == block_bytes(0)[:256]
        print("copied", flush=True)
def come_late():
    time.sleep(0.5)
    try:
        with memory.used():
            print("too late", flush=True)
    except terrace.Gone:
        pass
for work in copy, come_late, copy:
    pool.submit(work)
ready()
"""


def test_memory_that_is_copied_to_stays_and_nothing_begins_behind_it(daemon):
    _, out = Process(daemon, COPIES).end()
    assert out.count("copied") == 1 and "late" not in out


STORES = """
from terrace.threads import Pool
lease = group.reserve(keys)
lease.write([block_bytes(n) for n in range(10)])
pools = [Pool(1, "first"), Pool(1, "second")]
ready()
def copied():
    time.sleep(0.01)
    pools[1].submit(lease.commit)
pools[0].submit(copied)
"""


def test_what_was_submitted_is_done_where_the_daemon_answers(daemon, group):
    Process(daemon, STORES).end()
    assert group.match(group.hash(list(range(160)))).block_count == 10


FORKS = """
import os
from terrace.threads import LentMemory, Pool
pool, memory = Pool(1, "parents"), LentMemory("the parent's")
def use():
    with memory.used():
        time.sleep(1.0)  # in a child for ever
pool.submit(use)
time.sleep(0.1)
ready()
child = os.fork()
if child == 0:
    sys.exit(0)  # as any program ends
deadline = time.monotonic() + LONG_S / 2
ended = (0, 0)
while ended == (0, 0) and time.monotonic() < deadline:
    time.sleep(0.001)
    ended = os.waitpid(child, os.WNOHANG)
if ended == (0, 0):
    os.kill(child, 9)
print(f"status {ended[1] if ended[0] == child else None}", flush=True)
"""


def test_a_forked_child_waits_for_none_of_its_parents_threads(daemon):
    assert "status 0" in Process(daemon, FORKS).end()[1]


AIO = """
import asyncio
from terrace import aio
writing = group.reserve(keys)
writing.write([block_bytes(n) for n in range(10)])
async def main():
    async with aio.Requests(group) as requests:
        with await requests.acquire(keys, flags=terrace.ACQUIRE_FOLLOW) as lease:
            waiting = asyncio.ensure_future(requests.wait_ready(lease))
            await asyncio.sleep(0.05)
            ready()
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                print("cancelled", flush=True)
began = time.monotonic()
asyncio.run(main())
assert time.monotonic() - began < LONG_S / 6
"""


def test_an_event_loop_waits_for_no_wait_that_was_cancelled(daemon):
    assert "cancelled" in expect_soon(daemon, AIO)
