"""A router of the test's own, over real sockets: what it believes is what the daemon serves."""
import ctypes
import errno
import os
import pathlib
import platform
import signal
import socket
import struct
import subprocess
import tempfile
import time

import msgpack
import pytest
import zmq

import terrace

from conftest import LONG_S, SPACE, Daemon, block_bytes, connect, until
from zmtp import RawPeer

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
        asker = self.context.socket(zmq.DEALER)
        asker.connect(self.replay_endpoint)
        asker.send_multipart([b"", first.to_bytes(8, "big")])
        messages = []
        while True:
            assert asker.poll(LONG_S * 1000)
            empty, topic, number, payload = asker.recv_multipart()
            assert empty == b""
            if number == END_OF_REPLAY:
                asker.close(0)
                return messages
            messages.append((topic, number, payload))

    def close(self):
        self.events.close(0)
        self.context.term()


class EventDaemon(Daemon):
    """With events, few messages kept, and an NVMe tier unless DRAM has an eviction policy."""

    def __init__(self, directory, replay_batches, policy=None):
        self.directory, self.replay_batches, self.policy = directory, replay_batches, policy
        os.mkdir(f"{directory}/nvme")
        super().__init__(directory)

    def start(self):
        below = f"""
[nvme]
paths = ["{self.directory}/nvme"]
capacity_bytes = "64MiB"
slab_bytes = "4MiB"
""" if self.policy is None else f'eviction = "{self.policy}"\nsegments_spare = 4'
        self.config.write_text(f"""
[daemon]
dram_bytes = "8MiB"
segment_bytes = "2MiB"
{below}
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
    chain = next(event for event in router.raw if 11 in event.get("block_hashes", ()))
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
    numbers = [int.from_bytes(number, "big") for _, number, _ in messages]
    assert numbers == list(range(numbers[0], last + 1))
    assert b"AllBlocksCleared" in messages[0][2]  # whatever a daemon before this one told
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
        kept = router.replay(0)
        # What is not kept any more is taken back.
        assert len(kept) <= 2 and b"AllBlocksCleared" in kept[0][2]
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


def test_routers_that_stay_and_ask_nothing_are_right_after_each_restart(rig):
    """Nobody has subscribed yet when a daemon begins, so they are told once they have."""
    daemon, client, router = rig
    believed = {block: {"CPU", "STORAGE"} for block in (11, 12, 13, 14)}
    put(client, digests_of(1), list(believed))
    routers = [router] + [Router(daemon.directory) for _ in range(2)]
    for each in routers:
        each.until(believed)
    for _ in range(2):
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        daemon.start()
        for each in routers:
            each.until({block: {"STORAGE"} for block in believed})
    for each in routers[1:]:
        each.close()


@pytest.mark.parametrize("policy", ("arc", "hazard", "lru", "s3fifo"))
def test_tails_that_leave_dram_are_told(policy):
    """DRAM alone: room for a prompt is made by the tails of others."""
    prompts, blocks = 24, 16
    with tempfile.TemporaryDirectory() as directory:
        daemon = EventDaemon(directory, 10_000, policy)
        client = connect(daemon)
        router = Router(directory)
        until(lambda: client.stats()["domain"]["segments_populated"] == 4)
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        chains = []
        for prompt in range(prompts):
            keys = group.keys_of_digests(digests_of(prompt, blocks))
            hashes = [1 + prompt * blocks + i for i in range(blocks)]
            chains.append((keys, hashes))
            with group.reserve(keys, event_hashes=hashes) as lease:
                lease.write([block_bytes(i) for i in range(blocks)])
                assert lease.commit() == blocks
        evicted = client.stats()["domain"]["blocks_evicted"]
        assert evicted >= 128
        served = {block_hash: {"CPU"} for keys, hashes in chains
                  for block_hash, block in zip(hashes, group.query(keys)) if "dram" in block.tiers}
        assert len(served) == prompts * blocks - evicted
        until(lambda: client.stats()["kv_events"]["events"] == prompts * blocks + evicted)
        for message in router.replay(0):
            router.take(*message)
        router.until(served)
        removed = [h for e in router.raw if e["type"] == "BlockRemoved" for h in e["block_hashes"]]
        assert len(removed) == len(set(removed)) == evicted
        assert client.stats()["kv_events"]["lost"] == 0
        router.close()
        client.close()
        daemon.stop()


def resident_bytes(daemon):
    status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def test_hostile_peers_cost_a_bystander_nothing(rig):
    daemon, client, router = rig
    believed = heard(client, router)
    first = len(router.numbers)
    for prompt in range(1, 30):
        put(client, digests_of(prompt, 2), [prompt * 10, prompt * 10 + 1])
        believed |= {prompt * 10 + i: {"CPU", "STORAGE"} for i in range(2)}
    router.until(believed)
    before = resident_bytes(daemon)
    for name, kind in (("events", b"SUB"), ("replay", b"DEALER")):
        peer = RawPeer(socket.socket(socket.AF_UNIX), f"{daemon.directory}/{name}", kind)
        peer.claim(1 << 30)
        assert peer.is_hung_up(), name
    greedy = []
    for _ in range(32):  # thousands of requests, and no answer is read
        peer = router.context.socket(zmq.DEALER)
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.RCVHWM, 1)
        peer.connect(router.replay_endpoint)
        peer.send_multipart([b""] * 5000)
        for _ in range(1000):
            peer.send_multipart([b"", bytes(8)])
        greedy.append(peer)
    for prompt in range(30, 40):
        put(client, digests_of(prompt, 2), [prompt * 10, prompt * 10 + 1])
        believed |= {prompt * 10 + i: {"CPU", "STORAGE"} for i in range(2)}
    router.until(believed)
    numbers = router.numbers[first:]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    told = {}

    def all_are_counted():
        told.update(client.stats()["kv_events"])
        return told["replays"] + told["replays_refused"] >= 32 * 1001

    until(all_are_counted)
    assert told["replays_refused"] > 30_000 and told["lost"] == 0 and told["is_on"]
    assert resident_bytes(daemon) - before < 64 << 20
    assert router.replay(router.numbers[-1] + 1) == []
    for peer in greedy:
        peer.close(0)


def test_the_units_address_filter_is_told_of_at_start(tmp_path, monkeypatch):
    def log_of(endpoint):
        with tempfile.TemporaryDirectory() as directory:
            daemon = Daemon(directory, f'[kv_events]\nendpoint = "{endpoint}"\n')
            connect(daemon).close()
            daemon.stop()
            return daemon.log.read_text()

    monkeypatch.delenv("INVOCATION_ID", raising=False)  # started by hand
    assert "IPAddressDeny" not in log_of("tcp://127.0.0.1:*")
    monkeypatch.setenv("INVOCATION_ID", "0" * 32)
    said = log_of("tcp://127.0.0.1:*")
    assert said.count("IPAddressDeny=any") == 1 and "IPAddressAllow=" in said
    assert "kv_events.endpoint = tcp://127.0.0.1:*" in said
    assert "IPAddressDeny" not in log_of(f"ipc://{tmp_path}/events")


def refuse_netlink():
    """What a unit without AF_NETLINK in RestrictAddressFamilies= does to a process from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    socket_number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    instructions = b"".join(struct.pack("=HBBI", *one) for one in (
        (0x20, 0, 0, 0),                # the call's number
        (0x15, 0, 3, socket_number),
        (0x20, 0, 0, 16),               # its first argument
        (0x15, 0, 1, socket.AF_NETLINK),
        (0x06, 0, 0, 0x00050000 | errno.EAFNOSUPPORT),
        (0x06, 0, 0, 0x7FFF0000)))
    filled = ctypes.create_string_buffer(instructions)
    program = struct.pack("HxxxxxxP", 6, ctypes.addressof(filled))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, program, 0, 0) == 0  # a filter of system calls


def test_without_a_way_to_list_interfaces_it_says_so_and_what_needs_none_works(tmp_path):
    def start(endpoint):
        config = tmp_path / "c.toml"
        config.write_text(f'[kv_events]\nendpoint = "{endpoint}"\n[daemon]\ndram_bytes = "8MiB"\n'
                          f'segment_bytes = "2MiB"\nstate_dir = "{tmp_path}/state"\n')
        return subprocess.Popen(  # pylint: disable=consider-using-with,subprocess-popen-preexec-fn
            [os.environ["TERRACED"], "--config", config, "--socket", tmp_path / "t.sock"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=refuse_netlink)

    refused = start("tcp://127.0.0.1:*")
    said = refused.communicate(timeout=30)[1].decode()
    assert refused.returncode == 1, (refused.returncode, said)
    assert "tcp://127.0.0.1:*" in said and "AF_NETLINK" in said
    for endpoint in ("tcp://*:*", f"ipc://{tmp_path}/events"):
        with start(endpoint) as works:
            try:
                with terrace.Client(str(tmp_path / "t.sock")) as client:
                    client.wait_connected(30.0)
            finally:
                works.kill()


def test_a_path_that_is_somebody_elses_stays_so(rig, tmp_path):
    daemon, client, router = rig
    believed = heard(client, router)
    path = f"{daemon.directory}/events"
    socket_file = os.stat(path).st_ino
    other = Daemon(tmp_path, f'[kv_events]\nendpoint = "ipc://{path}"\n')
    try:
        with connect(other) as client_of_other:
            assert not client_of_other.stats()["kv_events"]["is_on"]
    finally:
        other.stop()
    assert f"process {daemon.process.pid}, holds {path}.lock" in other.log.read_text()
    assert os.stat(path).st_ino == socket_file
    put(client, digests_of(1, 1), [11])
    router.until(believed | {11: {"CPU", "STORAGE"}})


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    letter = tmp_path / "letter"
    letter.write_text("of somebody's")
    config = tmp_path / "c.toml"
    config.write_text(f'[kv_events]\nendpoint = "ipc://{letter}"\n[daemon]\ndram_bytes = "8MiB"\n'
                      f'segment_bytes = "2MiB"\nstate_dir = "{tmp_path}/state"\n')
    refused = subprocess.run([os.environ["TERRACED"], "--config", config, "--socket",
                              tmp_path / "t.sock"], capture_output=True, check=False, timeout=30)
    assert refused.returncode == 1 and b"something else than a socket" in refused.stderr
    assert letter.read_text() == "of somebody's"


def test_a_socket_whose_file_is_removed_is_made_again(rig):
    daemon, client, router = rig
    believed = heard(client, router)
    path = f"{daemon.directory}/events"
    os.unlink(path)
    until(lambda: os.path.exists(path))
    put(client, digests_of(1, 1), [11])
    router.until(believed | {11: {"CPU", "STORAGE"}})
    assert client.stats()["kv_events"]["is_on"]


def test_what_cannot_be_is_refused_by_name(tmp_path):
    def refused(text):
        config = tmp_path / "c.toml"
        config.write_text(text)
        checked = subprocess.run([os.environ["TERRACED"], "--check-config", "--config", config,
                                  "--socket", tmp_path / "t.sock"],
                                 capture_output=True, check=False)
        assert checked.returncode != 0
        return checked.stderr.decode()

    assert "kv_events.endpoint is 'here'" in refused('[kv_events]\nendpoint = "here"\n')
    assert "host, domain and model" in refused(
        '[kv_events]\nendpoint = "tcp://*:5557"\ntopic = "kv@{pod}"\n')
    assert "kv_events.endpoint is not set" in refused(
        '[kv_events]\nreplay_endpoint = "tcp://*:5558"\n')
    assert "no known key" in refused('[kv_events]\nendpoints = "tcp://*:5557"\n')
