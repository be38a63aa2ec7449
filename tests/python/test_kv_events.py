"""A router of the test's own, over real sockets: what it believes is what the daemon serves."""
import os
import signal
import subprocess
import tempfile
import time

import msgpack
import pytest
import zmq

import terrace

from conftest import LONG_S, SPACE, Daemon, block_bytes, connect

END_OF_REPLAY = b"\xff" * 8


class Router:
    """Subscribes, and keeps {hash: set of media}. `numbers` are those of the messages seen."""

    def __init__(self, directory):
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.connect(f"ipc://{directory}/events")
        self.events.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        self.replay_endpoint = f"ipc://{directory}/replay"
        self.topics, self.numbers, self.media, self.raw = set(), [], {}, []

    def take(self, topic, number, payload):
        self.topics.add(topic.decode())
        self.numbers.append(int.from_bytes(number, "big"))
        _, events, rank = msgpack.unpackb(payload)
        assert rank == 0
        for event in events:
            self.raw.append(event)
            if event["type"] == "BlockStored":
                for block in event["block_hashes"]:
                    self.media.setdefault(block, set()).add(event["medium"])
            elif event["type"] == "BlockRemoved":
                for block in event["block_hashes"]:
                    self.media[block].discard(event["medium"])
            else:
                self.media.clear()

    def until(self, wanted):
        """Reads until it believes `wanted`."""
        deadline = time.monotonic() + LONG_S
        while {block: media for block, media in self.media.items() if media} != wanted:
            left_ms = (deadline - time.monotonic()) * 1000
            assert left_ms > 0 and self.events.poll(left_ms), f"{self.media} is not {wanted}"
            self.take(*self.events.recv_multipart())

    def replay(self, first):
        """What the daemon has kept from message `first` on."""
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.replay_endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        messages = []
        while True:
            assert socket.poll(LONG_S * 1000)
            empty, topic, number, payload = socket.recv_multipart()
            assert empty == b""
            if number == END_OF_REPLAY:
                socket.close(0)
                return messages
            messages.append((topic, number, payload))

    def close(self):
        self.events.close(0)
        self.context.term()


class EventDaemon(Daemon):
    """With events, an NVMe tier, and few messages kept."""

    def __init__(self, directory, replay_batches):
        self.directory, self.replay_batches = directory, replay_batches
        os.mkdir(f"{directory}/nvme")
        super().__init__(directory)

    def start(self):
        self.config.write_text(f"""
[daemon]
dram_bytes = "8MiB"
segment_bytes = "2MiB"
[nvme]
paths = ["{self.directory}/nvme"]
capacity_bytes = "64MiB"
slab_bytes = "4MiB"
[kv_events]
endpoint = "ipc://{self.directory}/events"
replay_endpoint = "ipc://{self.directory}/replay"
topic = "kv@pod@{{model}}"
replay_batches = {self.replay_batches}
""")
        super().start()


@pytest.fixture(name="rig")
def rig_of(request):
    """A daemon and a router that hears it."""
    with tempfile.TemporaryDirectory() as directory:
        daemon = EventDaemon(directory, getattr(request, "param", 1000))
        client = connect(daemon)
        router = Router(directory)
        yield daemon, client, router
        router.close()
        client.close()
        daemon.stop()


def put(client, digests, hashes):
    """Stores a chain; True once it is on disk, too."""
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    keys = group.keys_of_digests(digests)
    with group.reserve(keys, event_hashes=hashes) as lease:
        lease.write([block_bytes(i) for i in range(len(keys))])
        assert lease.commit() == len(keys)
    group.wait_persisted(keys, LONG_S)
    return group, keys


def digests_of(chain, count=4):
    return [bytes([chain, i]) + bytes(30) for i in range(count)]


def heard(client, router):
    """A subscriber hears nothing until ZeroMQ has connected it: first blocks, until one is."""
    deadline = time.monotonic() + LONG_S
    chain = 200
    while not router.events.poll(100):
        assert time.monotonic() < deadline
        put(client, digests_of(chain, 1), [1000 + chain])
        chain += 1
    hashes = {1000 + c: {"CPU", "STORAGE"} for c in range(200, chain)}
    for message in router.replay(0):
        router.take(*message)
    router.until(hashes)
    return hashes


def test_a_router_believes_what_is_served(rig):
    daemon, client, router = rig
    believed = heard(client, router)
    group, keys = put(client, digests_of(1), [11, 12, 13, 14])
    believed |= {block: {"CPU", "STORAGE"} for block in (11, 12, 13, 14)}
    router.until(believed)
    chain = next(event for event in router.raw if 11 in event["block_hashes"])
    assert chain["type"] == "BlockStored" and chain["block_size"] == SPACE.block_tokens
    assert chain["parent_block_hash"] is None and chain["token_ids"] == []
    daemon.process.send_signal(signal.SIGSTOP)
    daemon.process.send_signal(signal.SIGCONT)
    group.evict(keys[2:])
    for block in (13, 14):
        del believed[block]
    router.until(believed)
    assert router.topics == {"kv@pod@" + SPACE.model}


def test_what_was_missed_is_repeated_in_order(rig):
    _, client, router = rig
    heard(client, router)
    put(client, digests_of(1), [11, 12, 13, 14])
    router.until(router.media | {block: {"CPU", "STORAGE"} for block in (11, 12, 13, 14)})
    last = max(router.numbers)
    late = Router(os.path.dirname(router.replay_endpoint[len("ipc://"):]))
    messages = late.replay(0)
    assert [int.from_bytes(number, "big") for _, number, _ in messages] == list(range(last + 1))
    for message in messages:
        late.take(*message)
    assert {b: m for b, m in late.media.items() if m} == {
        b: m for b, m in router.media.items() if m}
    assert router.replay(last + 1) == []
    late.close()


@pytest.mark.parametrize("rig", [1], indirect=True)
def test_who_missed_more_than_is_kept_is_told_of_every_block_anew(rig):
    _, client, router = rig
    believed = {}
    for chain in range(1, 4):
        hashes = [chain * 10 + i for i in range(4)]
        put(client, digests_of(chain), hashes)
        believed |= {block: {"CPU", "STORAGE"} for block in hashes}
    deadline = time.monotonic() + LONG_S
    while not router.media:  # asked until the subscription stands and it is heard
        assert time.monotonic() < deadline
        assert len(router.replay(0)) <= 1
        if router.events.poll(6000):
            router.take(*router.events.recv_multipart())
    router.until(believed)


def test_after_kill_9_routers_hear_what_the_disk_still_has(rig):
    daemon, client, router = rig
    believed = heard(client, router)
    put(client, digests_of(1), [11, 12, 13, 14])
    believed |= {block: {"CPU", "STORAGE"} for block in (11, 12, 13, 14)}
    router.until(believed)
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()
    router.media.clear()
    router.numbers.clear()
    daemon.start()
    connect(daemon).close()
    for message in router.replay(0):
        router.take(*message)
    router.until({block: {"STORAGE"} for block in believed})


def test_what_cannot_be_is_refused_by_name(tmp_path):
    def refused(text):
        config = tmp_path / "c.toml"
        config.write_text(text)
        checked = subprocess.run([os.environ["TERRACED"], "--check-config", "--config", config],
                                 capture_output=True, check=False)
        assert checked.returncode != 0
        return checked.stderr.decode()

    assert "kv_events.endpoint is 'here'" in refused('[kv_events]\nendpoint = "here"\n')
    assert "host, domain and model" in refused(
        '[kv_events]\nendpoint = "tcp://*:5557"\ntopic = "kv@{pod}"\n')
    assert "kv_events.endpoint is not set" in refused(
        '[kv_events]\nreplay_endpoint = "tcp://*:5558"\n')
    assert "no known key" in refused('[kv_events]\nendpoints = "tcp://*:5557"\n')
