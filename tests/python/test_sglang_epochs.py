"""terrace.sglang where weights are exchanged while SGLang runs: which pages are of which."""
import contextlib
import pathlib
import socket
import subprocess
import sys
import types

import pytest

from conftest import LONG_S, die_with_parent
from test_sglang import hashes, indices_of, make, store, wait_populated
from terrace.sglang import epoch as epoch_module


class Serving:
    """What SGLang says of itself in a scheduler's process."""
    weight_version = "default"


@pytest.fixture
def serving(monkeypatch):
    """An instance's; another one's is not looked at here."""
    now = Serving()
    module = types.ModuleType("sglang.srt.runtime_context")
    module.get_serving = lambda: now
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", module)
    return now


def test_a_flush_leaves_what_was_computed_before_to_others(daemon, client):
    wait_populated(client)
    one, peer = make(daemon), make(daemon)
    keys = hashes(3)
    right = store(one, keys, 1)
    one.mem_pool_host.clear()  # behind an update of the weights, as far as anybody can tell
    assert one.batch_exists(keys) == 0
    assert one.batch_get_v1(keys, indices_of([7, 8, 9])) == [False] * 3
    assert peer.batch_get_v1(keys, indices_of([7, 8, 9])) == [True] * 3
    assert [peer.mem_pool_host.bytes_of(7 + i) for i in range(3)] == [right[i] for i in range(3)]
    peer.mem_pool_host.fill(range(3), 1)  # a peer with the old weights goes on
    assert all(peer.batch_set_v1(hashes(3, b"more"), indices_of(range(3))))
    assert one.batch_exists(hashes(3, b"more")) == 0
    store(one, keys, 2)
    assert one.batch_exists(keys) == 3
    keeps = make(daemon, flush_keeps=True)
    assert keeps.batch_exists(keys) == 3
    keeps.mem_pool_host.clear()
    assert keeps.batch_exists(keys) == 3, "its weights never change"


def test_ranks_that_are_flushed_alike_stay_together(daemon, client, monkeypatch):
    wait_populated(client)
    monkeypatch.setattr(epoch_module, "_launch", lambda: "of both ranks")
    ranks = [make(daemon, is_mla=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    keys = hashes(3)
    for flushes in range(3):
        store(ranks[0], keys, 10 + flushes)
        assert [rank.batch_exists(keys) for rank in ranks] == [3, 3]
        for rank in ranks:
            rank.mem_pool_host.clear()
        assert [rank.batch_exists(keys) for rank in ranks] == [0, 0]


def test_two_instances_of_one_parent_share_nothing_behind_a_flush(daemon, client):
    wait_populated(client)
    one, other = make(daemon), make(daemon)
    keys = hashes(3)
    for backend in (one, other):  # weights of their own, of which nobody says which they are
        backend.mem_pool_host.clear()
    store(one, keys, 1)
    assert (one.batch_exists(keys), other.batch_exists(keys)) == (3, 0)


RANK = """
import sys
from torch import distributed
import test_sglang  # what stands in for SGLang
from terrace.sglang.epoch import _launch
distributed.init_process_group("gloo", init_method=sys.argv[1], world_size=2,
                               rank=int(sys.argv[2]))
print(_launch())
distributed.barrier()  # the first one has the store
"""


def test_ranks_agree_on_a_word_that_no_other_instance_has():
    pytest.importorskip("torch")
    with contextlib.ExitStack() as held:
        instances = []
        for _ in range(2):
            free = held.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            instances.append(f"tcp://127.0.0.1:{free.getsockname()[1]}")
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, address, str(rank)],
                              stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
                              cwd=pathlib.Path(__file__).parent)
             for address in instances for rank in range(2)]
    words = [rank.communicate(timeout=4 * LONG_S)[0].strip() for rank in ranks]
    assert words[0] == words[1] != words[2] == words[3] and all(words)


def update(serving, backends, version, flush_cache=True):
    """As SGLang's scheduler: it flushes, and then records the version, if there is one."""
    recv_req = types.SimpleNamespace(weight_version=version, flush_cache=flush_cache)
    for backend in backends if recv_req.flush_cache else ():
        backend.mem_pool_host.clear()
    if version is not None:
        serving.weight_version = version


def test_instances_that_are_told_the_same_version_share(daemon, client, serving):
    wait_populated(client)
    one, peer = make(daemon), make(daemon)
    keys = hashes(3)
    store(one, keys, 1)
    update(serving, [one, peer], "step 7")
    assert one.batch_exists(keys) == 0 and peer.batch_exists(keys) == 0
    right = store(one, keys, 2)
    assert peer.batch_get_v1(keys, indices_of([7, 8, 9])) == [True] * 3
    assert [peer.mem_pool_host.bytes_of(7 + i) for i in range(3)] == [right[i] for i in range(3)]
    update(serving, [one], None)  # nobody else has these weights
    assert one.batch_exists(keys) == 0 and peer.batch_exists(keys) == 3
    store(one, keys, 3)
    assert one.batch_exists(keys) == 3
    update(serving, [one], "step 7")  # again: whether they are the same nobody knows
    assert one.batch_exists(keys) == 0 and peer.batch_exists(keys) == 3


def test_an_update_without_a_flush_is_behind_none(daemon, client, serving):
    wait_populated(client)
    backend = make(daemon)
    keys = hashes(3)
    store(backend, keys, 1)
    update(serving, [backend], "step 7", flush_cache=False)
    # Until there is one pages of both are about.
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1(keys, indices_of(range(3))) == [False] * 3
    backend.mem_pool_host.clear()
    store(backend, keys, 2)
    assert backend.batch_exists(keys) == 3
    update(serving, [backend], None)
    assert backend.batch_exists(keys) == 0


def test_a_flush_behind_a_version_is_of_no_version(daemon, client, serving):
    wait_populated(client)
    old, new = make(daemon), make(daemon)
    new._epoch._launch = "another instance"
    keys = hashes(3)
    update(serving, [old], "step 7")
    store(old, keys, 1)
    serving.weight_version = "default"
    update(serving, [new], "step 7")
    update(serving, [new], None)  # other weights
    assert new.batch_exists(keys) == 0
    new.mem_pool_host.clear()
    assert new.batch_exists(keys) == 0 and new.batch_exists(hashes(1)) == 0
