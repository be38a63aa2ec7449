"""What was missed, and why: each cause is brought about; `terrace explain` and `hitrate` name it.

A case leaves keys that an engine will miss at their first; what explain says of them before, and
what hitrate counts of one acquire, stands in the table beside it.
"""
import contextlib
import json
import tempfile
import time
from dataclasses import replace

import pytest

import terrace
from terrace import Hints

from conftest import LONG_S, SPACE, Daemon, block_bytes, connect, run_terrace, store, until

MIB = 1 << 20
BLOCKS = 4
# The one policy under which the first prompt is sure to make room for the others: what the default
# keeps is a guess that hangs on when each came.
BY_AGE = 'eviction = "lru"\n'
NVME = ('[nvme]\npaths = ["{directory}/nvme"]\ncapacity_bytes = "256MiB"\nslab_bytes = "8MiB"\n'
        'io = "threads"\n')


class Stage:
    """A daemon, a client of it, and a group."""

    def __init__(self, more="", memory=None):
        self.directory = tempfile.TemporaryDirectory()
        options = {} if memory is None else {"memory": memory}
        self.daemon = Daemon(self.directory.name, more.format(directory=self.directory.name),
                             **options)
        self.client = connect(self.daemon)
        self.spec = terrace.SpaceGroup("tiny", [SPACE])
        self.group = self.client.open(self.spec)

    def restart(self):
        self.client.close()
        self.daemon.kill()
        self.daemon.start()
        self.client = connect(self.daemon)
        self.group = self.client.open(self.spec)

    def end(self):
        self.client.close()
        self.daemon.stop()
        self.directory.cleanup()

    def terrace(self, *arguments):
        status, out, errors = run_terrace(*arguments, "--socket", self.daemon.socket)
        assert status == 0, (arguments, out, errors)
        return out

    def explain(self, keys):
        return json.loads(self.terrace("explain", *keys.hex(), "--group", self.spec.name, "--json"))

    def missed(self):
        rows = json.loads(self.terrace("hitrate", "--json"))["rows"]
        return rows[0]["windows"]["start"]["blocks_missed"]


def tokens_of(prompt, blocks=BLOCKS):
    return [1 + prompt * 10_000 + i for i in range(blocks * SPACE.block_tokens)]


def fill(stage, prompts=range(100, 400), hints=None):
    """Some 90 MiB of other prompts, where there are 64."""
    for prompt in prompts:
        keys = stage.group.hash(tokens_of(prompt))
        with contextlib.suppress(terrace.NoSpace, terrace.Busy):
            with stage.group.reserve(keys, hints=hints) as lease:
                lease.write([block_bytes(i) for i in range(len(lease))])
                lease.commit()


def on_the_drive_alone(stage):
    keys = store(stage.group, tokens_of(1))
    stage.group.wait_persisted(keys)
    stage.restart()
    return keys


def never_stored(stage):
    return stage.group.hash(tokens_of(1))


def of_another_prompt_behind_the_second_block(stage):
    store(stage.group, tokens_of(1))
    return stage.group.hash(tokens_of(1, 2) + tokens_of(2, 2))


def lost_with_the_daemon(stage):
    keys = store(stage.group, tokens_of(1))
    stage.restart()
    return keys


def by_a_writer_that_died(stage):
    keys = stage.group.hash(tokens_of(1))
    other = connect(stage.daemon)
    other.open(stage.spec).reserve(keys)
    other.close()
    until(lambda: stage.explain(keys)["reason"] != "being_written")
    return keys


def being_written(stage):
    keys = stage.group.hash(tokens_of(1))
    stage.other = connect(stage.daemon)
    stage.lease = stage.other.open(stage.spec).reserve(keys)
    return keys


def evicted_to_make_room(stage):
    keys = store(stage.group, tokens_of(1))
    fill(stage)
    return keys


def refused_for_room(stage):
    """All memory is held by leases."""
    stage.leases = []
    for prompt in range(100, 400):
        with contextlib.suppress(terrace.NoSpace, terrace.Busy):
            lease = stage.group.reserve(stage.group.hash(tokens_of(prompt)))
            stage.leases.append(lease)
            if not lease.reserved:
                break
    keys = stage.group.hash(tokens_of(1))
    with contextlib.suppress(terrace.NoSpace, terrace.Busy), stage.group.reserve(keys) as lease:
        assert not lease.reserved
    return keys


def not_admitted_below(stage):
    keys = store(stage.group, tokens_of(1))
    fill(stage)
    return keys


def expired(stage):
    keys = stage.group.hash(tokens_of(1))
    with stage.group.reserve(keys, hints=Hints(ttl_s=1)) as lease:
        lease.write([block_bytes(i) for i in range(BLOCKS)])
        assert lease.commit() == BLOCKS
    time.sleep(1.3)
    return keys


def evicted_by_an_operator(stage):
    keys = store(stage.group, tokens_of(1))
    stage.terrace("evict", *keys.hex(), "--yes")
    return keys


def evicted_by_age(stage):
    keys = store(stage.group, tokens_of(1))
    time.sleep(1.1)
    stage.terrace("evict", "--older-than", "1s", "--yes")
    return keys


def evicted_by_its_engine(stage):
    keys = store(stage.group, tokens_of(1))
    stage.group.evict(keys)
    return keys


def reset(stage):
    keys = store(stage.group, tokens_of(1))
    stage.group.reset()
    return keys


def broken_on_the_drive(stage):
    keys = store(stage.group, tokens_of(1))
    stage.group.wait_persisted(keys)
    stage.client.close()
    stage.daemon.kill()
    for slab in sorted((stage.daemon.config.parent / "nvme" / "default").glob("slab-*.terrace")):
        with open(slab, "r+b") as file:
            for at in range(1 * MIB // 4, 8 * MIB, 4096):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]) if byte else b"")
    stage.daemon.start()
    stage.client = connect(stage.daemon)
    stage.group = stage.client.open(stage.spec)
    with stage.group.acquire(keys) as lease:  # whoever reads it first finds out
        with contextlib.suppress(terrace.TerraceError):
            lease.wait_ready()
    return keys


def slower_than_computing(stage):
    stage.hints = Hints(recompute_ns_per_token=1)
    return on_the_drive_alone(stage)


def in_another_group(stage, **differing):
    other = replace(SPACE, **differing)
    group = stage.client.open(terrace.SpaceGroup("other", [other]))
    keys = group.hash(tokens_of(1))
    with group.reserve(keys) as lease:
        lease.write([block_bytes(i) for i in range(BLOCKS)])
        assert lease.commit() == BLOCKS
    return stage.group.hash(tokens_of(1))


def of_another_dtype(stage):
    return in_another_group(stage, dtype="f16")


def of_another_revision(stage):
    return in_another_group(stage, revision="r2")


def without_its_window(stage):
    full, sliding = SPACE, replace(SPACE, attention="sliding", window_tokens=16, attention_group=1)
    stage.spec = terrace.SpaceGroup("hybrid", [full, sliding])
    stage.client.close()
    stage.client = terrace.Client(stage.daemon.socket, default_timeout_s=LONG_S)
    stage.client.wait_connected(LONG_S)
    stage.group = stage.client.open(stage.spec, 3)
    keys = stage.group.hash(tokens_of(1))
    with stage.group.reserve(keys) as lease:
        for key in range(len(keys)):
            for part, data in enumerate((b"a" * 50_000, b"b" * 20_000)):
                lease.write_part(key, part, data, 0)
            lease.mark_absent(key, 1)
        assert lease.commit() == BLOCKS
    return keys


def of_a_bypassed_domain(stage):
    keys = store(stage.group, tokens_of(1))
    stage.terrace("drain", "--bypass")
    until(lambda: stage.client.is_bypassed)
    return keys


# case: more of the configuration, explain's reason, its cause, hitrate's cause
CASES = {
    never_stored: ("", "never_seen", None, "cold"),
    of_another_prompt_behind_the_second_block: ("", "never_seen", None, "cold"),
    lost_with_the_daemon: ("", "never_seen", None, "cold"),
    by_a_writer_that_died: ("", "never_seen", None, "cold"),
    being_written: ("", "being_written", None, "late"),
    evicted_to_make_room: (BY_AGE, "forgotten", "capacity", "capacity"),
    refused_for_room: ("", "forgotten", "quota", "quota"),
    not_admitted_below: (BY_AGE + NVME + 'admission = "second_use"\n', "forgotten", "admission",
                         "admission"),
    expired: ("", "forgotten", "expired", "expired"),  # or still there: see below
    evicted_by_an_operator: ("", "forgotten", "operator", "operator"),
    evicted_by_age: ("", "forgotten", "operator", "operator"),
    evicted_by_its_engine: ("", "forgotten", "operator", "operator"),
    reset: ("", "forgotten", "operator", "operator"),
    broken_on_the_drive: (NVME, "forgotten", "corrupt", "corrupt"),
    slower_than_computing: (NVME, "none", None, "late"),
    of_another_dtype: ("", "never_seen", None, "cold"),
    of_another_revision: ("", "never_seen", None, "cold"),
    without_its_window: ("", "window", None, "mismatch"),
    of_a_bypassed_domain: ("", "none", None, None),
}


SENTENCES = {
    ("never_seen", None): "never stored, or longer ago than the daemon remembers",
    ("being_written", None): "being written by session ",
    ("forgotten", "capacity"): "evicted to make room, ",
    ("forgotten", "quota"): "no room could be made for it",
    ("forgotten", "admission"): "evicted from DRAM, and not thought worth writing below, ",
    ("forgotten", "expired"): "past its time to live",
    ("forgotten", "operator"): "evicted by an operator, ",
    ("forgotten", "corrupt"): "its bytes were not those that were stored, ",
    ("window", None): "bytes of a windowed member are missing",
    ("none", None): "4 of 4 blocks are usable",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_cause_is_named(case):
    more, reason, cause, counted = CASES[case]
    stage = Stage(more)
    try:
        keys = case(stage)
        said = stage.explain(keys)
        if case is expired and said["reason"] == "expired":
            said.update(reason="forgotten", cause="expired")
        assert (said["reason"], said["cause"]) == (reason, cause), said
        told = stage.terrace("explain", *keys.hex(), "--group", stage.spec.name)
        assert SENTENCES[reason, cause] in told
        for differing in said["near"]:
            assert (f"differs only in {differing['field']}: '{differing['other']}', "
                    f"not '{differing['asked']}'") in told
        assert bool(said["near"]) == (case in (of_another_dtype, of_another_revision))
        before = stage.missed()
        with stage.group.acquire(keys, hints=getattr(stage, "hints", None)) as lease:
            hit = lease.block_count
        after = stage.missed()
        missed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert missed == ({counted: BLOCKS - hit} if counted else {})
    finally:
        stage.end()
