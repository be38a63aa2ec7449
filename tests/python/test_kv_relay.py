"""KV events that say everything by themselves: engines' relays on a real daemon, and routers that
know a prompt by its tokens alone."""
import contextlib
import errno
import logging
import os
import random
import stat
import tempfile
import time

import pytest

import terrace
from terrace.kv_events import Announcer, Facts, Relay, RelaySettings, names_of
from terrace.kv_events.book import Book
from terrace.kv_events.relay import MEDIA, Batch
from terrace.kv_events.wire import events_in, pack

from conftest import LONG_S, SPACE, block_bytes, connect
from routers import LlmdIndex, Subscriber
from test_kv_events import EventDaemon

STEPS = int(os.environ.get("TERRACE_RELAY_STEPS", "600"))
logger = logging.getLogger("test")


def facts_of(number, parent=0, **named):
    return Facts(1000 + number, 1000 + parent if parent else None, parent,
                 b"".join((number * 4 + i).to_bytes(4, "little") for i in range(4)), 4, **named)


def told(announcer, blocks_max=512):
    """(kind, medium, hashes) of what is taken."""
    return [(event["type"][5:], event["medium"], event["block_hashes"])
            for event in announcer.take(blocks_max)]


class TestAnnouncer:
    """Without sockets."""

    def make(self, blocks_max=100, count=4):
        announcer = Announcer(MEDIA, blocks_max)
        for number in range(1, count + 1):
            announcer.learn(number, facts_of(number, number - 1))
        return announcer

    def test_blocks_that_follow_each_other_are_one_event_that_says_everything(self):
        announcer = self.make()
        announcer.place([1, 2, 3, 4], 0, "CPU", True)
        (event,) = announcer.take(512)
        assert event == {
            "type": "BlockStored", "block_hashes": [1001, 1002, 1003, 1004],
            "parent_block_hash": None, "token_ids": list(range(4, 20)), "block_size": 4,
            "lora_id": None, "lora_name": None, "medium": "CPU", "locality": "LOCAL"}

    def test_a_block_is_told_when_both_have_said_it_and_behind_its_parent(self):
        announcer = Announcer(MEDIA, 100)
        announcer.place([2], 0, "STORAGE", True)
        assert not announcer.has_work
        announcer.learn(2, facts_of(2, 1))
        assert told(announcer) == []
        announcer.place([1], 0, "CPU", True)
        announcer.learn(1, facts_of(1))
        assert told(announcer) == [("Stored", "CPU", [1001]), ("Stored", "STORAGE", [1002])]

    def test_only_differences_are_told(self):
        announcer = self.make()
        announcer.place([1, 2], 0, "CPU", True)
        announcer.place([2], 0, "CPU", False)
        assert told(announcer) == [("Stored", "CPU", [1001])]
        announcer.place([1], 0, "HBM", True)  # for routers the same medium
        assert told(announcer) == []
        announcer.place([1], 0, "CPU", False)
        assert told(announcer) == []
        announcer.place([1], 0, "HBM", False)
        assert told(announcer) == [("Removed", "CPU", [1001])]

    def test_what_hosts_share_is_remote_unless_it_is_called_as_what_is_here(self):
        announcer = self.make()
        announcer.place([1], 0, "EXTERNAL", True)
        announcer.place([1], 0, "HBM", True)
        told_of = {event["medium"]: event["locality"] for event in announcer.take(512)}
        assert told_of == {"CPU": "LOCAL", "EXTERNAL": "REMOTE"}
        announcer.place([1], 0, "EXTERNAL", False)
        (event,) = announcer.take(512)
        assert event == {"type": "BlockRemoved", "block_hashes": [1001], "medium": "EXTERNAL",
                         "locality": "REMOTE"}
        announcer = Announcer(dict(MEDIA, REDIS="STORAGE"), 100)
        announcer.learn(1, facts_of(1))
        announcer.place([1], 0, "EXTERNAL", True)
        (event,) = announcer.take(512)
        assert (event["medium"], event["locality"]) == ("STORAGE", "LOCAL")

    def test_of_another_topic_nothing_is_cleared(self):
        announcer = self.make()
        announcer.place([1], 0, "CPU", True)
        announcer.place([2], 1, "CPU", True)
        told(announcer)
        announcer.clear(1)
        assert told(announcer) == [("Removed", "CPU", [1002])]
        announcer.clear()
        assert told(announcer) == [("Removed", "CPU", [1001])]

    def test_what_is_told_again_is_told_once_whatever_changes_meanwhile(self):
        announcer = self.make(count=8)
        announcer.place(range(1, 9), 0, "CPU", True)
        told(announcer)
        announcer.tell_again()
        announcer.place([6], 0, "STORAGE", True)
        announcer.place([8], 0, "CPU", False)
        index = {}
        while announcer.has_work:
            for kind, medium, hashes in told(announcer, 1):
                for each in hashes:
                    index[each, medium] = index.get((each, medium), 0) + (
                        1 if kind == "Stored" else -1)
        assert index == {**{(1000 + i, "CPU"): 1 for i in range(1, 8)}, (1008, "CPU"): 0,
                         (1006, "STORAGE"): 1}

    def test_facts_above_the_limit_are_forgotten_and_their_blocks_taken_back(self):
        announcer = self.make(blocks_max=3, count=3)
        announcer.place([1, 2, 3], 0, "CPU", True)
        told(announcer)
        announcer.learn(4, facts_of(4, 3))
        assert told(announcer) == [("Removed", "CPU", [1001])]
        announcer.place(range(100, 200), 0, "CPU", True)  # of which nobody here knows
        assert len(announcer._strangers) == 3  # pylint: disable=protected-access

    def test_an_adapter_has_the_number_that_this_engine_gave_it_or_none(self):
        announcer = Announcer(MEDIA, 100)
        for number, (name, weights) in enumerate([("a", ""), ("b", ""), ("a", "new")], 1):
            announcer.learn_packed(number, pack(list(facts_of(
                number, lora_id=7, lora_name=name, weights=weights))))
        announcer.learn(4, facts_of(4))
        announcer.use({"", "new"}, {("", "a"): 3, ("new", "a"): 4})
        announcer.place([1, 2, 3, 4], 0, "CPU", True)
        assert [(event["lora_name"], event["lora_id"]) for event in announcer.take(512)] == [
            ("a", 3), ("b", None), ("a", 4), (None, None)]

    def test_extra_keys_and_adapters_part_events(self):
        announcer = Announcer(MEDIA, 100)
        announcer.learn(1, facts_of(1, extra_keys=["salt"], lora_id=7, lora_name="a"))
        announcer.learn(2, facts_of(2, 1, extra_keys=[], lora_id=7, lora_name="a"))
        announcer.learn(3, facts_of(3, 2))
        announcer.use({""}, {("", "a"): 7})
        announcer.place([1, 2, 3], 0, "CPU", True)
        first, second = announcer.take(512)
        assert first["extra_keys"] == [["salt"], None] and first["lora_name"] == "a"
        assert second["block_hashes"] == [1003] and "extra_keys" not in second


class TestBook:
    """What outlives an engine."""

    def test_what_was_written_is_there_after_a_crash_but_a_torn_end(self, tmp_path):
        book = Book(str(tmp_path), "kv@a@m")
        assert book.load() == []
        book.add(1, b"one")
        book.add(2, b"two" * 1000)
        book.flush([], 0)
        (path,) = tmp_path.glob("*.book")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        whole = path.read_bytes()
        with pytest.raises(BlockingIOError):
            Book(str(tmp_path), "kv@a@m")
        book.close()
        path.write_bytes(whole[:-1])
        again = Book(str(tmp_path), "kv@a@m")
        assert again.load() == [(1, b"one")]
        again.add(3, b"three")
        again.close()
        torn = bytearray(path.read_bytes())
        torn[-1] ^= 1
        path.write_bytes(torn)
        assert Book(str(tmp_path), "kv@a@m").load() == [(1, b"one")]

    def test_others_are_read_as_they_grow_and_are_written_anew(self, tmp_path):
        one, other = Book(str(tmp_path), "one"), Book(str(tmp_path), "other")
        one.load(), other.load()  # pylint: disable=expression-not-assigned
        one.add(1, b"x")
        one.flush([], 0)
        assert other.read_others() == [(1, b"x")]
        assert other.read_others() == []
        for _ in range(40):
            one.add(2, bytes(100_000))
        one.flush([(5, b"live")], 1)
        assert other.read_others() == [(5, b"live")]
        one.add(6, b"more")
        one.flush([], 0)
        assert other.read_others() == [(6, b"more")]
        with pytest.raises(BlockingIOError):
            Book(str(tmp_path), "one")

    def test_books_of_engines_that_are_gone_are_deleted_above_a_limit(self, tmp_path):
        for number in range(5):
            book = Book(str(tmp_path), f"gone{number}")
            book.load()
            book.close()
            os.utime(tmp_path / f"gone{number}.book", (number, number))
        here = Book(str(tmp_path), "here", idle_max=2)
        assert sorted(path.name for path in tmp_path.glob("*.book")) == [
            "gone3.book", "gone4.book", "here.book"]
        here.close()


def test_what_is_wrong_in_the_configuration_is_named():
    good = {"daemon": "ipc:///a", "daemon_replay": "ipc:///b"}
    for more, words in (({"topick": 1}, "'topick'"), ({"daemon": ""}, "kv_events.daemon is"),
                        ({"daemon_replay": None}, "replay_endpoint"), ({"blocks_max": 0}, "is 0"),
                        ({"media": {"TAPE": "x"}}, "TAPE")):
        with pytest.raises(ValueError, match=words):
            RelaySettings.of({**good, **more})
    at_two = RelaySettings.of({**good, "endpoint": "tcp://*:5558"}, rank=2)
    assert at_two.endpoint == "tcp://*:5560"


def test_both_encodings_of_the_daemon_are_read():
    import msgpack  # pylint: disable=import-outside-toplevel

    rows = [["BlockStored", [1], None, [], 16, None, "CPU"], ["BlockRemoved", [1], "CPU"],
            ["AllBlocksCleared"]]
    first, second, third = events_in(msgpack.packb([1.0, rows, 0]))
    assert first["block_hashes"] == [1] and first["medium"] == second["medium"] == "CPU"
    assert third["type"] == "AllBlocksCleared"
    with pytest.raises(ValueError):
        events_in(b"\xc1")


class Prompt:
    """A chain of blocks, as an engine knows it."""

    def __init__(self, number, block_count, salt=b"m"):
        self.tokens = [number] + [i % 7 for i in range(1, block_count * 16)]
        self.digests = [bytes([number % 256, number // 256, i]) + bytes(29)
                        for i in range(block_count)]
        self.names = names_of(self.digests, salt)
        self.hashes = [hash((number, i)) & (1 << 64) - 1 for i in range(block_count)]

    def batch(self, count):
        return Batch(self.names[:count], self.hashes[:count], (0, None), self.tokens[:count * 16],
                     16, group_idx=0, spec_kind="full_attention")


class Rig:
    """A daemon, an engine's relay, and a router; each can be started anew."""

    def __init__(self, directory, engine="a", daemon=None, replay_batches=20, **settings):
        self.directory, self.engine = directory, engine
        self.daemon = daemon or EventDaemon(directory, replay_batches)
        self.settings = {"daemon": f"ipc://{directory}/events",
                         "daemon_replay": f"ipc://{directory}/replay",
                         "endpoint": f"ipc://{directory}/{engine}-events",
                         "replay_endpoint": f"ipc://{directory}/{engine}-replay",
                         "topic": f"kv@{engine}@{{model}}", "book": f"{directory}/books",
                         **settings}
        self.client = connect(self.daemon)
        self.group = self.client.open(terrace.SpaceGroup("tiny", [SPACE]))
        self.relay = self.router = None
        self.start_engine()
        self.start_router()

    def start_engine(self):
        self.relay = Relay(RelaySettings.of(self.settings), "m", logger)

    def start_router(self):
        self.router = Subscriber(self.settings["endpoint"], self.settings["replay_endpoint"],
                                 LlmdIndex())

    def restart_engine(self):
        self.relay.close()
        self.start_engine()

    def restart_router(self):
        self.router.close()
        self.start_router()

    def restart_daemon(self):
        self.daemon.kill()
        self.daemon.start()
        self.client.close()
        self.client = connect(self.daemon)
        self.group = self.client.open(terrace.SpaceGroup("tiny", [SPACE]))

    def keys(self, prompt, count=None):
        return self.group.keys_of_digests(prompt.digests[:count])

    def put(self, prompt, count):
        """Stores the first blocks, as a scheduler would."""
        self.relay.learn(prompt.batch(count))
        with self.group.reserve(self.keys(prompt, count),
                                event_hashes=prompt.names[:count]) as lease:
            lease.write([block_bytes(i) for i in range(count)])  # what is not ours is passed over
            if lease.reserved:
                lease.commit()

    def queried(self, prompt):
        """Of each block where Query says that it is, as routers call it."""
        media = {"hbm": "cpu", "dram": "cpu", "nvme": "storage"}
        found = self.group.query(self.keys(prompt))
        return [{media[tier] for tier in block.tiers} if block.state == "sealed" else set()
                for block in found]

    def reachable(self, prompt):
        """The same of a daemon that was killed, which may have blocks without their parent: to
        routers nothing is behind a block that is nowhere."""
        tiers = self.queried(prompt)
        end = next((at for at, where in enumerate(tiers) if not where), len(tiers))
        return tiers[:end] + [set()] * (len(tiers) - end)

    def agree(self, prompts, wait_s=LONG_S, expected=None):
        expected = expected or self.queried
        deadline = time.monotonic() + wait_s
        while True:
            self.router.turn(20)
            wrong = [(prompt.tokens[0], seen, is_there) for prompt in prompts
                     for seen, is_there in [(self.router.index.tiers_of(prompt.tokens, 16),
                                             expected(prompt))] if seen != is_there]
            if not wrong:
                return
            assert time.monotonic() < deadline, wrong[:3]

    def close(self):
        self.relay.close()
        self.router.close()
        self.client.close()


@pytest.fixture(name="rig")
def rig_of():
    with tempfile.TemporaryDirectory() as directory:
        rig = Rig(directory)
        yield rig
        rig.close()
        rig.daemon.stop()


def test_a_router_knows_prompts_by_their_tokens_alone(rig):
    prompt = Prompt(1, 6)
    rig.put(prompt, 6)
    rig.agree([prompt])
    assert rig.router.index.tiers_of(prompt.tokens, 16)[0] >= {"cpu"}
    rig.group.evict(rig.keys(prompt)[4:])
    rig.agree([prompt])
    assert rig.router.index.tiers_of(prompt.tokens, 16)[4:] == [set(), set()]
    assert rig.router.index.skipped == 0


def test_each_that_starts_anew_is_told_what_there_is(rig):
    prompts = [Prompt(number, 4) for number in range(1, 6)]
    for prompt in prompts:
        rig.put(prompt, 4)
    rig.agree(prompts)
    rig.restart_router()
    rig.agree(prompts)
    rig.restart_engine()  # it has read its book
    rig.agree(prompts)
    rig.group.evict(rig.keys(prompts[0]))
    rig.agree(prompts)
    rig.restart_daemon()
    rig.agree(prompts)
    assert all(tiers == {"storage"} for prompt in prompts[1:]
               for tiers in rig.router.index.tiers_of(prompt.tokens, 16))


def test_two_engines_on_one_daemon_have_a_topic_each_and_know_of_each_others_blocks(rig):
    other = Rig(rig.directory, "b", rig.daemon)
    prompt = Prompt(1, 4)
    rig.put(prompt, 4)
    rig.agree([prompt])
    other.agree([prompt])  # from the other's book
    assert {pod for tiers in other.router.index.tiers.values() for pod, _ in tiers} == {"b"}
    other.close()


def test_while_the_daemon_is_away_nothing_is_announced(rig):
    prompt = Prompt(1, 4)
    rig.put(prompt, 4)
    rig.agree([prompt])
    rig.daemon.kill()
    deadline = time.monotonic() + LONG_S
    while any(rig.router.index.tiers_of(prompt.tokens, 16)):
        assert time.monotonic() < deadline
        rig.router.turn(20)
    rig.daemon.start()
    rig.restart_daemon()
    rig.agree([prompt])


def test_an_engine_never_waits_for_its_relay(rig):
    prompt = Prompt(1, 4)
    rig.relay.close()
    began = time.monotonic()
    for _ in range(10_000):
        rig.relay.learn(prompt.batch(4))
    assert time.monotonic() - began < 5
    assert rig.relay.counters["dropped_facts"] == 4 * (10_000 - 4096)


@pytest.mark.parametrize("verb", ["add", "read_others", "flush"])
def test_a_book_that_cannot_be_kept_ends_nothing(rig, monkeypatch, caplog, verb):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Book, verb, full)
    for number in (1, 2):
        prompt = Prompt(number, 6)
        rig.put(prompt, 6)
        rig.agree([prompt])
        deadline = time.monotonic() + LONG_S
        while "cannot be kept: [Errno 28]" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert rig.relay.is_on and rig.router.index.tiers_of(prompt.tokens, 16)[0] >= {"cpu"}
    assert caplog.text.count("cannot be kept") == 1


def until_logged(caplog, text, count=1):
    deadline = time.monotonic() + LONG_S
    while caplog.text.count(text) < count:
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.02)


def test_a_book_that_cannot_be_opened_ends_nothing_and_is_tried_again(rig, monkeypatch, caplog):
    """Its directory's place is a file's, before the start."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("terrace.kv_events.relay._BOOK_AGAIN_S", 0.1)
    attempts = []
    monkeypatch.setattr("terrace.kv_events.relay.Book",
                        lambda *of: attempts.append(time.monotonic()) or Book(*of))
    books = f"{rig.directory}/books-of-b"
    with open(books, "wb"):
        pass
    other = Rig(rig.directory, "b", rig.daemon, book=books)
    with contextlib.closing(other):
        for number in (1, 2):
            other.put(Prompt(number, 6), 6)
            other.agree([Prompt(number, 6)])
        until_logged(caplog, f"the book of kv events in {books} cannot be opened: [Errno 17]")
        deadline = time.monotonic() + LONG_S
        while len(attempts) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert all(later - at >= 0.1 for at, later in zip(attempts, attempts[1:]))
        assert other.relay.is_on and caplog.text.count("cannot be opened") == 1
        assert "be this user's" in caplog.text and "is kept again" not in caplog.text
        os.unlink(books)
        until_logged(caplog, f"the book of kv events in {books} is kept again")
        other.put(Prompt(3, 6), 6)
        other.agree([Prompt(3, 6)])
        other.restart_engine()  # what it learned without a book is in it, too
        other.restart_router()
        other.agree([Prompt(number, 6) for number in (1, 2, 3)])
    assert caplog.text.count("cannot be opened") == 1


def test_a_book_that_could_not_be_kept_for_a_while_lacks_nothing(rig, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("terrace.kv_events.relay._BOOK_AGAIN_S", 0.1)
    rig.put(Prompt(1, 6), 6)
    rig.agree([Prompt(1, 6)])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for number in (2, 3):  # what is over is said again when it comes back
        with monkeypatch.context() as patch:
            patch.setattr(Book, "flush", full)
            patch.setattr(Book, "_open", full)
            until_logged(caplog, "cannot be kept: [Errno 28]", number - 1)
            rig.put(Prompt(number, 6), 6)
            rig.agree([Prompt(number, 6)])
        until_logged(caplog, "is kept again", number - 1)
    rig.restart_engine()
    rig.restart_router()
    rig.agree([Prompt(number, 6) for number in (1, 2, 3)])
    assert caplog.text.count("cannot be kept") == caplog.text.count("is kept again") == 2


def test_a_book_that_cannot_be_read_is_let_go_and_opened_again(rig, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("terrace.kv_events.relay._BOOK_AGAIN_S", 0.1)
    rig.put(Prompt(1, 6), 6)
    rig.agree([Prompt(1, 6)])
    books, load = [], Book.load

    def load_later(book):
        books.append(book)  # as a traceback would have it: nothing closes it but the relay
        if len(books) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return load(book)

    monkeypatch.setattr(Book, "load", load_later)
    rig.restart_engine()
    until_logged(caplog, "cannot be opened: [Errno 5]")
    until_logged(caplog, "is kept again")
    rig.restart_router()
    rig.agree([Prompt(1, 6)])
    assert len(books) == 2 and caplog.text.count("cannot be opened") == 1


@pytest.mark.parametrize("flushes", [True, False])
def test_a_full_disk_ends_nothing(rig, monkeypatch, caplog, flushes):
    rig.put(Prompt(1, 6), 6)
    rig.agree([Prompt(1, 6)])  # it has its book
    if not flushes:
        monkeypatch.setattr(Book, "flush", lambda *_: None)
    book = rig.relay._book  # pylint: disable=protected-access
    book._file = open("/dev/full", "wb", buffering=1 << 16)  # pylint: disable=consider-using-with
    rig.put(Prompt(2, 6), 6)
    rig.agree([Prompt(2, 6)])
    deadline = time.monotonic() + LONG_S
    while flushes and "cannot be kept: [Errno 28]" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    rig.put(Prompt(3, 6), 6)
    rig.agree([Prompt(3, 6)])
    assert rig.relay.is_on
    rig.relay.close()
    assert caplog.text.count("cannot be kept: [Errno 28]") == 1


@pytest.mark.parametrize("seed", (1, 2))
def test_after_a_random_run_the_routers_view_is_what_query_says(rig, seed):
    """More prompts than DRAM, and in long runs the drive, has room for; thirty restarts."""
    chance = random.Random(seed)
    prompts = [Prompt(number, 10) for number in range(120)]
    restarts = [rig.restart_daemon, rig.restart_engine, rig.restart_router] * 10
    chance.shuffle(restarts)
    for step in range(1, STEPS + 1):
        what, prompt = chance.random(), chance.choice(prompts)
        if what < 0.60:
            rig.put(prompt, chance.randrange(1, 11))
        elif what < 0.61:
            with contextlib.suppress(terrace.Busy):  # the drive has not been told within 3 s
                rig.group.evict(rig.keys(prompt)[chance.randrange(10):])
        elif what < 0.90:
            with rig.group.acquire(rig.keys(prompt)):
                pass
        else:
            rig.router.turn()
        if step % (STEPS // 30) == 0 and restarts:
            restarts.pop()()
    rig.agree(prompts, expected=rig.reachable)
    assert rig.router.index.skipped == 0 and not restarts
