"""PyTorch programs on the CPU: real tensors, real processes."""
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import terrace
import terrace.torch
from conftest import LONG_S, connect, let_nobody_store

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "client/python/examples/torch_prefix.py"
CONFIG = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
          "hidden_size": 64, "torch_dtype": "bfloat16", "model_type": "toy"}


def run_example(socket):
    done = subprocess.run([sys.executable, EXAMPLE, socket], capture_output=True, text=True,
                          check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return re.fullmatch(r"loaded (\d+) of 200 tokens, stored (\d+) blocks, logits (\w+)\n",
                        done.stdout).groups()


# PROMISE: T48 a model of transformers
def test_a_second_process_gets_the_same_logits_from_the_first_ones_cache(daemon, client):
    first = run_example(daemon.socket)
    second = run_example(daemon.socket)
    assert first[:2] == ("0", "12") and second[:2] == ("192", "0")
    assert first[2] == second[2]
    daemon.kill()
    daemon.start()
    client.wait_connected(LONG_S)


def caches(tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(1, 2, tokens, 16, generator=generator).to(torch.bfloat16)
                  for _ in range(2)) for _ in range(3)]


@pytest.fixture
def cache(client):
    return terrace.torch.PrefixCache(client, CONFIG, revision="1", block_tokens=8,
                                     timeout_s=LONG_S)


def test_models_that_compute_otherwise_share_nothing(client):
    tokens, past = list(range(45)), caches(45)
    yarn = {**CONFIG, "_name_or_path": "/models/" + "long" * 40,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0}}

    def cache_of(config, **more):
        return terrace.torch.PrefixCache(client, config, revision="1", block_tokens=8,
                                         timeout_s=LONG_S, **more)

    assert cache_of(yarn).save(tokens, past) == 5
    others = [cache_of({**yarn, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
              cache_of(yarn, adapter="sql-1")]
    assert [other.load(tokens) for other in others] == [(0, []), (0, [])]
    assert cache_of(yarn).load(tokens)[0] == 40


def test_every_bit_comes_back(cache):
    tokens = list(range(45))
    past = caches(45)
    assert cache.load(tokens) == (0, [])
    assert cache.save(tokens, past) == 5
    assert cache.save(tokens, past) == 0
    count, loaded = cache.load(tokens)
    assert count == 40
    for (k, v), (expected_k, expected_v) in zip(loaded, past):
        assert k.dtype == torch.bfloat16
        assert torch.equal(k.view(torch.int16), expected_k[:, :, :40].view(torch.int16))
        assert torch.equal(v.view(torch.int16), expected_v[:, :, :40].view(torch.int16))
    # Something is left to compute even if all of it is there.
    assert cache.load(tokens[:40])[0] == 32
    assert cache.load(tokens[:8]) == (0, [])
    assert cache.load(tokens[:20] + [999] * 20)[0] == 16


def test_a_reader_loads_and_saves_nothing(daemon, cache):
    tokens, past = list(range(45)), caches(45)
    assert cache.save(tokens, past) == 5
    let_nobody_store(daemon)
    with connect(daemon) as client:
        reader = terrace.torch.PrefixCache(client, CONFIG, revision="1", block_tokens=8,
                                           timeout_s=LONG_S)
        assert reader.load(tokens)[0] == 40
        assert reader.save([7] * 45, past) == 0


def test_what_transformers_calls_a_cache_serves_as_well(cache):
    past = caches(16)
    layered = type("Cache", (), {"layers": [type("Layer", (), {"keys": k, "values": v})()
                                            for k, v in past]})()
    listed = type("Cache", (), {"key_cache": [k for k, _ in past],
                                "value_cache": [v for _, v in past]})()
    assert cache.save([1] * 16, layered) == 2
    assert cache.save([2] * 16, listed) == 2
    assert torch.equal(cache.load([1] * 17)[1][2][1], cache.load([2] * 17)[1][2][1])


def test_tensors_of_another_shape_are_refused(cache):
    with pytest.raises(terrace.Invalid, match="2 layers"):
        cache.save(list(range(16)), caches(16)[:2])
    with pytest.raises(terrace.Invalid, match="layer 0"):
        cache.save(list(range(16)), [(k.float(), v.float()) for k, v in caches(16)])
    with pytest.raises(terrace.Invalid, match="layer 0"):
        cache.save(list(range(16)), [(k[:, :1], v[:, :1]) for k, v in caches(16)])


def test_without_a_daemon_everything_is_a_miss(daemon, cache):
    tokens = list(range(45))
    assert cache.save(tokens, caches(45)) == 5
    daemon.kill()
    cache.timeout_s = 0.2
    assert cache.load(tokens) == (0, [])
    assert cache.save(tokens, caches(45)) == 0


def layers_as_transformers_has_them(past, computed_count):
    layer = type("Layer", (), {"get_seq_length": lambda self: computed_count})
    found = []
    for k, v in past:
        found.append(layer())
        found[-1].keys, found[-1].values = k, v
    return type("Cache", (), {"layers": found})()


def test_a_cache_that_kept_the_end_of_its_tokens_only_is_not_saved(cache):
    behind_a_window = layers_as_transformers_has_them(caches(24), 45)
    with pytest.raises(terrace.Invalid, match="45 tokens"):
        cache.save(list(range(45)), behind_a_window)
    assert cache.load(list(range(45))) == (0, [])


def test_of_a_cache_of_a_fixed_size_only_what_is_computed_is_saved(cache):
    fixed = layers_as_transformers_has_them(caches(64), 39)
    assert cache.save(list(range(40)), fixed) == 4


def test_dlpack_and_views(client):
    space = terrace.Space.from_hf_config(CONFIG, revision="2", block_tokens=8)
    group = client.open(terrace.SpaceGroup("dlpack", [space]))
    keys = group.hash(list(range(8)))
    pages = torch.arange(space.block_bytes, dtype=torch.int64).to(torch.uint8)

    class Wrapped:
        """Only DLPack."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self):
            return torch.utils.dlpack.to_dlpack(self.tensor)

    with group.reserve(keys) as lease:
        lease.write([Wrapped(pages)])
        assert lease.commit() == 1
    with group.acquire(keys) as lease:
        lease.wait_ready()
        assert bytes(lease.part(0, 0)) == bytes(pages[:space.part_bytes[0]].numpy())
        found = torch.zeros(space.block_bytes, dtype=torch.uint8)
        lease.copy_into(Wrapped(found))
        assert torch.equal(found, pages)
        with pytest.raises(terrace.Invalid, match="contiguous"):
            lease.copy_into(torch.zeros(space.block_bytes, 2, dtype=torch.uint8)[:, 0])
        with pytest.raises(terrace.Invalid, match="contiguous"):
            lease.copy_into(Wrapped(torch.zeros(space.block_bytes, 2, dtype=torch.uint8)[:, 0]))

        class OnDevice:
            __cuda_array_interface__ = {"data": (1 << 40, False)}

        with pytest.raises(terrace.Unsupported, match="device memory"):
            lease.copy_into(OnDevice())


def test_what_a_prefill_takes_is_told_with_later_loads(client, monkeypatch):
    clock = [10.0]
    monkeypatch.setattr("terrace.torch.time.monotonic", lambda: clock[0])
    cache = terrace.torch.PrefixCache(client, CONFIG, revision="r1")
    for _ in range(3):
        with cache.prefill(0, 64):
            clock[0] += 0.128
    cache.save(list(range(100)), caches(100))
    assert cache.load(list(range(100)))[0] == 96
    assert cache.cost.ns_per_token(0, 96, 96) == pytest.approx(2e6, rel=0.05)
    told = []
    acquire = cache.group.acquire
    monkeypatch.setattr(cache.group, "acquire", lambda keys, timeout_s, hints: (
        told.append(hints.recompute_ns_per_token), acquire(keys, timeout_s, hints))[1])
    cache.load(list(range(100)))
    cache.load(list(range(100)), terrace.Hints(recompute_ns_per_token=7))
    assert told == [pytest.approx(2e6, rel=0.05), 7]
