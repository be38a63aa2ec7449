"""Routers of the tests' own, which read an engine's KV events by others' published rules.

Both real ones of today count how often a block was announced and taken back
(github.com/llm-d/llm-d-kv-cache, pkg/kvevents/event_dedup_filter.go; Dynamo's EventDedupFilter),
and forget counts and blocks of a pod at AllBlocksCleared.
"""
import collections
import struct
import time

import msgpack
import zmq

from conftest import LONG_S

END_OF_REPLAY = b"\xff" * 8


def _cbor_head(major, value):
    if value < 24:
        return bytes([major << 5 | value])
    for code, form, limit in ((24, ">B", 1 << 8), (25, ">H", 1 << 16), (26, ">I", 1 << 32)):
        if value < limit:
            return bytes([major << 5 | code]) + struct.pack(form, value)
    return bytes([major << 5 | 27]) + struct.pack(">Q", value)


def request_key(parent, tokens):
    """llm-d's own key of a block: FNV-64a over canonical CBOR of [parent, tokens, null]
    (pkg/kvcache/kvblock/token_processor.go)."""
    text = (_cbor_head(4, 3) + _cbor_head(0, parent) + _cbor_head(4, len(tokens))
            + b"".join(_cbor_head(0, token) for token in tokens) + b"\xf6")
    key = 0xcbf29ce484222325
    for byte in text:
        key = (key ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return key


class LlmdIndex:
    """What llm-d makes of messages (pkg/kvevents/engineadapter/vllm_adapter.go, pool.go): pod and
    model from a topic of three parts; hashes are u64, of bytes the last eight; media in lower case,
    none is gpu; tokens make request keys behind the parent's, and an event whose parent is unknown
    is passed over; removals name the engine's hash."""

    def __init__(self):
        self.keys = {}  # of engine hashes
        self.tiers = collections.defaultdict(set)  # of request keys: (pod, tier)
        self.counts = collections.Counter()
        self.skipped = 0

    def take(self, topic, payload):
        _, pod, model = topic.decode().split("@")
        _, events, _ = msgpack.unpackb(payload)
        for event in events:
            getattr(self, event["type"])(pod, model, event)

    @staticmethod
    def hash_of(raw):
        return raw if isinstance(raw, int) else int.from_bytes(raw[-8:], "big")

    def BlockStored(self, pod, model, event):  # pylint: disable=invalid-name
        assert isinstance(model, str) and event["lora_name"] is None
        tier = (event["medium"] or "gpu").lower()
        parent = event["parent_block_hash"]
        key = 0 if parent is None else self.keys.get(self.hash_of(parent))
        if key is None:
            self.skipped += 1
            return
        size = event["block_size"]
        assert len(event["token_ids"]) == size * len(event["block_hashes"])
        for i, raw in enumerate(event["block_hashes"]):
            key = request_key(key, event["token_ids"][i * size:(i + 1) * size])
            self.keys[self.hash_of(raw)] = key
            self.tiers[key].add((pod, tier))
            self.counts[pod, tier, self.hash_of(raw)] += 1

    def BlockRemoved(self, pod, _, event):  # pylint: disable=invalid-name
        tier = (event["medium"] or "gpu").lower()
        for raw in event["block_hashes"]:
            counted = (pod, tier, self.hash_of(raw))
            self.counts[counted] -= 1
            if self.counts[counted] <= 0:
                del self.counts[counted]
                self.tiers[self.keys.get(self.hash_of(raw))].discard((pod, tier))

    def AllBlocksCleared(self, pod, _, event):  # pylint: disable=invalid-name
        assert set(event) == {"type"}
        self.skipped = 0  # before it nobody had told the parents
        for tiers in self.tiers.values():
            tiers.difference_update({each for each in tiers if each[0] == pod})
        self.counts = collections.Counter({counted: count for counted, count in self.counts.items()
                                           if counted[0] != pod})

    def tiers_of(self, tokens, block_size):
        """Of each block of a prompt where it is, by its tokens alone."""
        key, found = 0, []
        for at in range(0, len(tokens) - block_size + 1, block_size):
            key = request_key(key, tokens[at:at + block_size])
            found.append({tier for _, tier in self.tiers.get(key, ())})
        return found


class Subscriber:
    """One topic's messages in order: where a number is missed it asks for what it missed, as vLLM's
    and Dynamo's subscribers do. index: who takes them."""

    def __init__(self, endpoint, replay_endpoint, index):
        self.context = zmq.Context()
        self.index = index
        self.expected = None
        self.gaps = 0
        self.events = self.context.socket(zmq.SUB)
        self.events.setsockopt(zmq.RECONNECT_IVL, 20)
        self.events.setsockopt(zmq.LINGER, 0)
        self.events.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.events.connect(endpoint)
        self.replay_endpoint = replay_endpoint

    def turn(self, wait_ms=0):
        while self.events.poll(wait_ms):
            topic, number, payload = self.events.recv_multipart()
            number = int.from_bytes(number, "big")
            if self.expected is not None and number > self.expected:
                self.gaps += 1
                self.replay(self.expected, number)
            if self.expected is None or number >= self.expected:
                self.index.take(topic, payload)
                self.expected = number + 1
            wait_ms = 0

    def replay(self, first, until):
        asker = self.context.socket(zmq.DEALER)
        asker.setsockopt(zmq.LINGER, 0)
        asker.connect(self.replay_endpoint)
        asker.send_multipart([b"", first.to_bytes(8, "big")])
        deadline = time.monotonic() + LONG_S
        while True:
            assert asker.poll(1000 * (deadline - time.monotonic())), "no replay"
            _, topic, number, payload = asker.recv_multipart()
            if number == END_OF_REPLAY:
                break
            if int.from_bytes(number, "big") < until:
                self.index.take(topic, payload)
        asker.close(0)

    def close(self):
        self.events.close(0)
        self.context.term()
