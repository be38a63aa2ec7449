"""A prefill instance hands over to a decode instance: layers in time, deaths, deadlines, hosts."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest
import torch

import terrace
import terrace.handoff
import terrace.torch
from conftest import LONG_S, Daemon, connect, die_with_parent, let_nobody_store, until

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "client/python/examples/handoff.py"
LAYERS, BLOCK = 3, 8
CONFIG = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
          "hidden_size": 64, "torch_dtype": "bfloat16", "model_type": "toy"}
TOKENS = list(range(45))


def past_of(tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(1, 2, tokens, 16, generator=generator).to(torch.bfloat16)
                  for _ in range(2)) for _ in range(LAYERS)]


def cache_of(client, **named):
    return terrace.torch.PrefixCache(client, CONFIG, revision="1", block_tokens=BLOCK,
                                     timeout_s=LONG_S, **named)


@pytest.fixture
def caches(daemon):
    """Of the two instances."""
    with connect(daemon) as giving, connect(daemon) as taking:
        yield cache_of(giving), cache_of(taking)


def equal(found, expected, tokens):
    return all(torch.equal(a.view(torch.int16), b[:, :, :tokens].view(torch.int16))
               for a, b in zip(found, expected))


def put_layer(giver, past, layer, tokens=45):
    giver.put(layer, *(t[:, :, :tokens] for t in past[layer]))


def test_a_layer_is_taken_while_the_next_ones_are_not_there(caches):
    past = past_of(45)
    with terrace.handoff.Giver(caches[0], TOKENS) as giver, \
            terrace.handoff.Taker(caches[1], TOKENS, timeout_s=LONG_S) as taker:
        assert taker.tokens == 40 and len(taker) == LAYERS
        for layer in range(LAYERS):
            put_layer(giver, past, layer)
            assert giver.block_count == (5 if layer == LAYERS - 1 else 0)
            assert equal(taker[layer], past[layer], 40)
            assert taker._lease.ready_count == 0 or layer == LAYERS - 1
        assert taker.whole()[0] == 40


def test_a_reader_hands_nothing_over(daemon, client):
    let_nobody_store(daemon)
    with connect(daemon) as reader:
        with terrace.handoff.Giver(cache_of(reader), TOKENS) as giver:
            for layer in range(LAYERS):
                put_layer(giver, past_of(45), layer)
        assert giver.block_count == 0


def test_chunks_of_a_prompt_are_handed_over_as_they_come(caches):
    past = past_of(45)
    with terrace.handoff.Giver(caches[0], TOKENS) as giver, \
            terrace.handoff.Taker(caches[1], TOKENS, timeout_s=LONG_S) as taker:
        for end in (20, 30, 45):
            for layer in range(LAYERS):
                put_layer(giver, past, layer, end)
            taker._lease.wait_ready(end // BLOCK, LONG_S)
            tokens, layers = taker.whole()
            assert tokens == end // BLOCK * BLOCK
            assert all(equal(layers[i], past[i], tokens) for i in range(LAYERS))
        assert equal(taker[-1], past[-1], 40)


def test_a_giver_that_gives_up_leaves_whole_blocks(caches):
    past = past_of(45)
    giver = terrace.handoff.Giver(caches[0], TOKENS)
    with terrace.handoff.Taker(caches[1], TOKENS, timeout_s=LONG_S) as taker:
        for layer in range(LAYERS):
            put_layer(giver, past, layer, 17)
        put_layer(giver, past, 0)
        assert equal(taker[0], past[0], 40)
        giver.close()
        with pytest.raises(terrace.Unavailable):
            taker[1]
        tokens, layers = taker.whole()
        assert tokens == 16 and all(equal(layers[i], past[i], 16) for i in range(LAYERS))


def test_a_silent_giver_costs_no_more_than_the_deadline(caches):
    giver = terrace.handoff.Giver(caches[0], TOKENS)
    with terrace.handoff.Taker(caches[1], TOKENS, timeout_s=0.2) as taker:
        assert taker.tokens == 40
        with pytest.raises(terrace.Unavailable):
            taker[0]
        assert taker.whole() == (0, [])
        with pytest.raises(terrace.Unavailable):  # at once
            taker[0]
    giver.close()


def test_nobody_gives(caches):
    with terrace.handoff.Taker(caches[1], TOKENS, timeout_s=LONG_S, idle_s=0.05) as taker:
        assert taker.tokens == 0 and not taker and taker.whole() == (0, [])
        with pytest.raises(terrace.Unavailable):
            taker[0]
    assert terrace.handoff.Taker(caches[1], [1], timeout_s=LONG_S).tokens == 0


def test_what_is_stored_already_is_not_given_again(caches):
    past = past_of(45)
    assert caches[0].save(TOKENS[:30], past) == 3
    with terrace.handoff.Giver(caches[0], TOKENS) as giver, \
            terrace.handoff.Taker(caches[1], TOKENS, timeout_s=LONG_S) as taker:
        for layer in range(LAYERS):
            put_layer(giver, past, layer)
            assert equal(taker[layer], past[layer], 40)
        assert giver.block_count == 2


def test_without_a_daemon_both_go_on(daemon, caches):
    giver = terrace.handoff.Giver(caches[0], TOKENS)
    daemon.kill()
    past = past_of(45)
    for layer in range(LAYERS):
        put_layer(giver, past, layer)
    giver.close()
    caches[0].timeout_s = 0.05
    with terrace.handoff.Giver(caches[0], TOKENS) as giver:
        put_layer(giver, past, 0)
        assert giver.block_count == 0
    with terrace.handoff.Taker(caches[1], TOKENS, timeout_s=0.1) as taker:
        assert taker.whole() == (0, [])


def test_tensors_of_another_model_are_refused(caches):
    with terrace.handoff.Giver(caches[0], TOKENS) as giver:
        k = torch.zeros(1, 2, 45, 16)
        with pytest.raises(terrace.Invalid, match="float32"):
            giver.put(0, k, k)


# ---- processes ----


class Instance:
    def __init__(self, socket, role, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, EXAMPLE, socket, role, *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def step(self, count):
        for _ in range(count):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline().startswith("layer "), self.process.stderr.read()

    def ends(self):
        """(all it said, the digest)."""
        out, err = self.process.communicate(timeout=4 * LONG_S)
        assert self.process.returncode == 0, err
        return out, re.search(r"logits (\w{64})", out).group(1)


@pytest.fixture(scope="module")
def reference():
    return Instance("-", "alone").ends()[1]


def reserved_count(client):
    return client.stats()["domain"]["reserved_count"]


def test_decode_takes_what_prefill_computes(daemon, client, reference):
    prefill = Instance(daemon.socket, "prefill", "--step")
    until(lambda: reserved_count(client) == 12)
    decode = Instance(daemon.socket, "decode", "--timeout", "120")
    assert decode.process.stdout.readline() == "announced 192 tokens\n"
    prefill.step(12)  # 3 chunks of 4 layers; decode has the end of the prompt to itself
    out, digest = decode.ends()
    assert "took 192 tokens" in out and digest == reference
    for _ in range(4):
        prefill.process.stdin.write("\n")
    assert prefill.ends()[1] == reference


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_decode_computes_the_rest_when_prefill_is_lost_midway(daemon, client, reference, number):
    prefill = Instance(daemon.socket, "prefill", "--step")
    until(lambda: reserved_count(client) == 12)
    prefill.step(4 + 2)  # one chunk, and half of the next one
    decode = Instance(daemon.socket, "decode", "--timeout",
                      "120" if number == signal.SIGKILL else "5")
    assert decode.process.stdout.readline() == "announced 192 tokens\n"
    prefill.process.send_signal(number)
    out, digest = decode.ends()
    assert "the rest did not come" in out and "took 64 tokens" in out and digest == reference
    prefill.process.kill()
    prefill.process.communicate()


@pytest.fixture
def hosts():
    """Two daemons, each with its own memory, and a Redis server that both share."""
    if shutil.which("redis-server") is None:
        pytest.skip("SKIPPED: redis-server is not installed; run tools/setup to test a hand-off "
                    "between hosts")
    with tempfile.TemporaryDirectory() as directory:
        server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", f"{directory}/redis.sock", "--save", "",
             "--appendonly", "no", "--dir", directory], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
        secret = pathlib.Path(directory) / "secret"
        tool = pathlib.Path(os.environ["TERRACE_BUILD"]) / "tools" / "terrace"
        subprocess.run([tool, "domain", "new", secret], check=True, stdout=subprocess.DEVNULL)
        found = []
        for name in ("one", "two"):
            os.mkdir(f"{directory}/{name}")
            found.append(Daemon(f"{directory}/{name}", f'''
[redis]
endpoints = ["unix:{directory}/redis.sock"]
[[domain]]
name = "shared"
socket = "{directory}/{name}/t.sock"
secret_file = "{secret}"
'''))
        clients = [connect(each) for each in found]
        until(lambda: all(c.stats()["redis"]["is_ready"] for c in clients))
        yield found, clients
        for each in clients:
            each.close()
        for each in found:
            each.stop()
        server.kill()
        server.wait()


def test_decode_on_another_host_takes_it_through_redis(hosts, reference):
    daemons, _ = hosts
    decode = Instance(daemons[1].socket, "decode", "--timeout", "120")
    prefill = Instance(daemons[0].socket, "prefill")
    assert prefill.ends()[1] == reference
    out, digest = decode.ends()
    assert "took 192 tokens" in out and digest == reference


def test_decode_on_another_host_does_not_wait_for_a_dead_prefill(hosts, reference):
    daemons, clients = hosts
    prefill = Instance(daemons[0].socket, "prefill", "--step")
    until(lambda: reserved_count(clients[0]) == 12)
    prefill.step(4)
    until(lambda: clients[0].stats()["redis"]["blocks_stored"] == 4)
    prefill.process.kill()
    prefill.process.communicate()
    out, digest = Instance(daemons[1].socket, "decode", "--timeout", "6").ends()
    assert "took 64 tokens" in out and digest == reference


def test_what_lies_on_the_drive_is_taken_too():
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory, f'''
[nvme]
paths = ["{directory}/nvme"]
capacity_bytes = "64MiB"
slab_bytes = "16MiB"
''')
        past = past_of(45)
        with connect(daemon) as client:
            giving = cache_of(client)
            assert giving.save(TOKENS, past) == 5
            giving.group.wait_persisted(giving.group.hash(TOKENS), LONG_S)
        daemon.stop()
        daemon.start()
        with connect(daemon) as client:
            until(lambda: cache_of(client).group.match(
                cache_of(client).group.hash(TOKENS)).block_count == 5)
            taking = cache_of(client)
            until(lambda: terrace.handoff.Taker(taking, TOKENS, timeout_s=LONG_S).tokens == 40)
            with terrace.handoff.Taker(taking, TOKENS, timeout_s=LONG_S) as taker:
                assert all(equal(taker[layer], past[layer], 40) for layer in range(LAYERS))
        daemon.stop()
