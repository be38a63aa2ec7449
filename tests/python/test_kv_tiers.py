"""A router's view of every tier, the Redis server that hosts share among them, is what Query says,
whoever of daemon, router and server was away in between."""
import collections
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

import msgpack
import pytest
import zmq

import terrace

from conftest import LONG_S, SPACE, Daemon, block_bytes, die_with_parent, terrace_path
from routers import Subscriber

STEPS = int(os.environ.get("TERRACE_KV_STEPS", "1500"))
TTL_S = 10  # the least there is: it passes in a run
MEDIA = {"hbm": "HBM", "dram": "CPU", "nvme": "STORAGE", "redis": "EXTERNAL"}


class View:
    """Counts what it is told, as routers do."""

    def __init__(self):
        self.counts = collections.Counter()
        self.localities = {}
        self.seen_empty = 0  # messages that left nothing, where there was something
        self.cleared = 0

    def take(self, _topic, payload):
        _, events, _ = msgpack.unpackb(payload)
        had_some = bool(self.counts)
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.counts.clear()
                self.cleared += 1
                continue
            self.localities[event["medium"]] = event["locality"]
            step = 1 if event["type"] == "BlockStored" else -1
            for block in event["block_hashes"]:
                count = max(self.counts[block, event["medium"]] + step, 0)
                self.counts[block, event["medium"]] = count
                if count == 0:
                    del self.counts[block, event["medium"]]
        if had_some and not self.counts and any(e["type"] == "AllBlocksCleared" for e in events):
            self.seen_empty += 1


class Router(Subscriber):
    """Asks for all there is when it begins, and now and then for what it may have missed."""

    def __init__(self, directory, view=None):
        super().__init__(f"ipc://{directory}/events", f"ipc://{directory}/replay", view or View())

    def catch_up(self):
        asker = self.context.socket(zmq.DEALER)
        asker.setsockopt(zmq.LINGER, 0)
        asker.connect(self.replay_endpoint)
        asker.send_multipart([b"", (self.expected or 0).to_bytes(8, "big")])
        while asker.poll(15_000):  # a daemon that is being started may not answer
            _, topic, number, payload = asker.recv_multipart()
            if number == b"\xff" * 8:
                break
            number = int.from_bytes(number, "big")
            if self.expected is None or number >= self.expected:
                self.index.take(topic, payload)
                self.expected = number + 1
        asker.close(0)

    def miss(self, count):
        """So many messages never reach it."""
        while count > 0 and self.events.poll(0):
            self.events.recv_multipart()
            count -= 1


class Rig:
    def __init__(self, directory, device, replay_batches):
        self.directory, self.device = directory, device
        self.server = None
        self.start_server()
        os.mkdir(f"{directory}/nvme")
        secret = pathlib.Path(directory) / "secret"
        subprocess.run([terrace_path(), "domain", "new", secret], check=True,
                       stdout=subprocess.DEVNULL)
        self.daemon = Daemon(directory, f"""
[nvme]
paths = ["{directory}/nvme"]
capacity_bytes = "16MiB"
slab_bytes = "4MiB"
[hbm]
capacity_bytes = "4MiB"
slab_bytes = "4MiB"
device = "host"
[redis]
endpoints = ["unix:{directory}/redis.sock"]
ttl_s = {TTL_S}
[kv_events]
endpoint = "ipc://{directory}/events"
replay_endpoint = "ipc://{directory}/replay"
topic = "kv@pod@{{model}}"
replay_batches = {replay_batches}
[[domain]]
name = "shared"
socket = "{directory}/t.sock"
secret_file = "{secret}"
""", 'dram_bytes = "8MiB"\nsegment_bytes = "2MiB"\n')
        self.client = self.group = None
        self.connect()
        self.router = Router(directory)
        self.router.catch_up()

    def start_server(self):
        self.server = subprocess.Popen(  # pylint: disable=consider-using-with
            ["redis-server", "--port", "0", "--unixsocket", f"{self.directory}/redis.sock",
             "--save", "", "--appendonly", "no", "--dir", self.directory],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def kill_server(self):
        self.server.kill()
        self.server.wait()

    def connect(self):
        self.client = terrace.Client(self.daemon.socket, default_timeout_s=LONG_S,
                                     device=self.device)
        self.client.wait_connected(LONG_S)
        self.group = self.client.open(terrace.SpaceGroup("tiny", [SPACE]))

    def until_ready(self):
        deadline = time.monotonic() + LONG_S
        while not self.client.stats()["redis"]["is_ready"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def restart_daemon(self):
        self.client.close()
        self.daemon.kill()
        self.daemon.start()
        self.connect()

    def restart_server(self):
        self.kill_server()
        self.start_server()

    def restart_router(self):
        self.router.close()
        self.router = Router(self.directory)
        self.router.catch_up()

    def put(self, prompt, count):
        keys = self.keys(prompt)[:count]
        with self.group.reserve(keys, event_hashes=prompt.hashes[:count]) as lease:
            lease.write([block_bytes(i) for i in range(count)])  # what is not ours is passed over
            if lease.reserved:
                lease.commit()

    def use(self, prompt):
        with self.group.acquire(self.keys(prompt), flags=terrace.ACQUIRE_DEVICE):
            pass

    def keys(self, prompt):
        return self.group.keys_of_digests(prompt.digests)

    def told(self, prompts):
        """As Query says, by hash and medium."""
        return {(block_hash, MEDIA[tier]) for prompt in prompts
                for block_hash, block in zip(prompt.hashes, self.group.query(self.keys(prompt)))
                for tier in block.tiers}

    def agree(self, prompts):
        deadline = time.monotonic() + LONG_S
        asked_at = time.monotonic()
        while True:
            self.router.turn(20)
            if time.monotonic() > asked_at + 1:
                self.router.catch_up()
                asked_at = time.monotonic()
            told = self.told(prompts)
            seen = self.router.index.counts
            if set(seen) == told and all(count == 1 for count in seen.values()):
                return told
            wrong = sorted(set(seen) ^ told)[:5]
            assert time.monotonic() < deadline, (wrong, [each in told for each in wrong])

    def close(self):
        self.router.close()
        self.client.close()
        self.daemon.stop()
        self.kill_server()


class Prompt:
    def __init__(self, number, block_count=6):
        self.digests = [bytes([number, i]) + bytes(30) for i in range(block_count)]
        self.hashes = [1 + number * 100 + i for i in range(block_count)]


@pytest.fixture(name="rig")
def rig_of(request):
    if shutil.which("redis-server") is None:
        pytest.skip("SKIPPED: redis-server is not installed; run tools/setup")
    with tempfile.TemporaryDirectory() as directory, terrace.Device("host", workers=2) as device:
        rig = Rig(directory, device, getattr(request, "param", 10_000))
        rig.until_ready()
        yield rig
        rig.close()


def media_of(rig, prompt):
    """Of its first block."""
    rig.agree([prompt])
    return {medium for block_hash, medium in rig.router.index.counts
            if block_hash == prompt.hashes[0]}


def until(rig, prompt, is_right):
    deadline = time.monotonic() + LONG_S
    while not is_right(media_of(rig, prompt)):
        assert time.monotonic() < deadline, media_of(rig, prompt)


def test_each_tier_is_a_medium_and_what_the_server_drops_is_not_told_for_ever(rig):
    prompt = Prompt(1)
    rig.put(prompt, 6)
    until(rig, prompt, lambda media: "EXTERNAL" in media)
    stored_at = time.monotonic()
    while "HBM" not in media_of(rig, prompt):
        rig.use(prompt)
        assert time.monotonic() < stored_at + LONG_S
    until(rig, prompt, lambda media: media == {"HBM", "CPU", "STORAGE", "EXTERNAL"})
    assert rig.router.index.localities == {
        "HBM": "LOCAL", "CPU": "LOCAL", "STORAGE": "LOCAL", "EXTERNAL": "REMOTE"}
    until(rig, prompt, lambda media: "EXTERNAL" not in media)
    assert stored_at + TTL_S - 2 < time.monotonic() < stored_at + TTL_S + 2
    # Served, it is given again; a server that is away takes it back.
    rig.use(prompt)
    until(rig, prompt, lambda media: "EXTERNAL" in media)
    rig.kill_server()
    until(rig, prompt, lambda media: media and "EXTERNAL" not in media)
    rig.start_server()
    rig.until_ready()
    assert "EXTERNAL" not in media_of(rig, prompt)  # it has come back empty
    rig.use(prompt)
    until(rig, prompt, lambda media: "EXTERNAL" in media)
    rig.group.evict(rig.keys(prompt))
    rig.agree([prompt])
    assert not rig.router.index.counts


@pytest.mark.parametrize("rig", [5], indirect=True)
def test_no_view_is_empty_for_a_moment_because_somebody_missed_something(rig):
    prompts = [Prompt(number) for number in range(30)]
    for prompt in prompts:
        rig.put(prompt, 6)
    rig.agree(prompts)
    for _ in range(3):
        late = Router(rig.directory)
        late.catch_up()  # more than is kept: everybody is told anew
        late.close()
    rig.agree(prompts)
    assert rig.client.stats()["kv_events"]["republications"] >= 1
    assert rig.router.index.cleared >= 2 and rig.router.index.seen_empty == 0


@pytest.mark.parametrize("rig", [200], indirect=True)
def test_after_random_steps_the_routers_view_is_what_query_says(rig):
    """More prompts than DRAM and the drive have room for."""
    seed = int(os.environ.get("TERRACE_KV_SEED", "1"))
    chance = random.Random(seed)
    prompts = [Prompt(number) for number in range(120)]
    troubles = ([rig.restart_daemon] * 6 + [rig.restart_router] * 6 + [rig.restart_server] * 6
                + [rig.kill_server, rig.start_server] * 2)
    every = max(STEPS // len(troubles), 1)
    order = chance.sample(range(18), 18)
    troubles[:18] = [troubles[i] for i in order]
    seen = collections.Counter()
    for step in range(1, STEPS + 1):
        what, prompt = chance.random(), chance.choice(prompts)
        if what < 0.35:
            rig.put(prompt, chance.randrange(1, 7))
        elif what < 0.36:
            rig.group.evict(rig.keys(prompt)[chance.randrange(6):])
        elif what < 0.90:
            rig.use(chance.choice(prompts[:20]) if chance.random() < 0.5 else prompt)
        elif what < 0.99:
            rig.router.turn()
        else:
            rig.router.miss(chance.randrange(50))
        if step % every == 0 and troubles:
            troubles.pop(0)()
        if step % 500 == 0:
            seen.update(medium for _, medium in rig.agree(prompts))
    seen.update(medium for _, medium in rig.agree(prompts))
    assert not troubles and set(seen) == set(MEDIA.values()), seen
