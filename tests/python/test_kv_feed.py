"""What a relay hears of a daemon that hangs, and how it answers peers that do not read: without a
daemon, and by a clock that the test turns."""
import contextlib
import tempfile

import pytest
import zmq

from terrace.kv_events.feed import Feed
from terrace.kv_events.publisher import Publisher
from terrace.kv_events.wire import END_OF_REPLAY, batch

from conftest import LONG_S

FIRST, BLOCKS = 1000, 10
MESSAGES = [batch([{"type": "AllBlocksCleared"}])] + [
    batch([{"type": "BlockStored", "block_hashes": [block], "medium": "CPU"}])
    for block in range(1, BLOCKS + 1)]


class Clock:
    """In seconds; stands still."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class ReplayEnd:
    """A daemon's sockets. What it is asked it answers when the test says so."""

    def __init__(self, context, directory):
        self.endpoints = f"ipc://{directory}/events", f"ipc://{directory}/replay"
        self.events, self.replay = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self.events.bind(self.endpoints[0])
        self.replay.bind(self.endpoints[1])

    def asked(self, feed, clock):
        """Who asks, from which number on."""
        for _ in range(int(LONG_S) * 100):
            feed.turn()
            clock.now += 0.1  # it tries again until it is connected
            if self.replay.poll(10):
                peer, _, number = self.replay.recv_multipart()
                return peer, int.from_bytes(number, "big")
        raise AssertionError("nothing was asked")

    def answer(self, peer, first, last):
        for at in range(first, last):
            self.replay.send_multipart(
                [peer, b"", b"kv@pod@m", (FIRST + at).to_bytes(8, "big"), MESSAGES[at]])

    def end(self, peer):
        self.replay.send_multipart([peer, b"", b"", END_OF_REPLAY, b""])


@pytest.fixture(name="context")
def context_of():
    context = zmq.Context()
    yield context
    context.destroy(0)


def seen(feed, view, is_enough):
    """The blocks that the changes leave, once they are enough."""
    for _ in range(int(LONG_S) * 100):
        for change in feed.turn():
            if change.kind == "cleared":
                view.clear()
            else:
                view.update(change.names)
        if is_enough():
            return view
        zmq.select(list(feed.sockets), [], [], 0.01)
    raise AssertionError(view)


def test_a_late_answer_is_no_answer_to_the_next_question(context):
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory:
        daemon = ReplayEnd(context, directory)
        feed = Feed(context, *daemon.endpoints, clock=clock)
        view = set()
        hung, number = daemon.asked(feed, clock)
        assert number == 0
        daemon.answer(hung, 0, 5)
        assert seen(feed, view, lambda: len(view) == 4) == {1, 2, 3, 4}
        clock.now += 6  # it hangs
        asker, number = daemon.asked(feed, clock)
        assert number == 0 and asker != hung
        with contextlib.suppress(zmq.ZMQError):  # it goes on; nobody is there any more
            daemon.answer(hung, 5, len(MESSAGES))
            daemon.end(hung)
        view.clear()
        daemon.answer(asker, 0, len(MESSAGES))
        daemon.end(asker)
        assert seen(feed, view, lambda: feed.is_heard) == set(range(1, BLOCKS + 1))
        feed.close()


@contextlib.contextmanager
def published(context, clock):
    with tempfile.TemporaryDirectory() as directory:
        publisher = Publisher(context, f"ipc://{directory}/e", f"ipc://{directory}/r", "kv@a@m",
                              clock=clock)
        yield publisher, directory
        publisher.close()


def test_who_comes_again_and_again_is_told_ever_more_rarely(context):
    clock, subscribers = Clock(), []
    with published(context, clock) as (publisher, directory):

        def one_comes_at(now):
            """Whether all is told again then."""
            clock.now = now
            subscribers.append(context.socket(zmq.SUB))
            subscribers[-1].connect(f"ipc://{directory}/e")
            subscribers[-1].setsockopt(zmq.SUBSCRIBE, b"kv@")
            assert publisher.sockets[0].poll(int(LONG_S) * 1000)
            return publisher.turn()

        told_at = [second for second in range(200) if one_comes_at(100.0 + second)]
        pauses = [later - earlier for earlier, later in zip(told_at, told_at[1:])]
        assert pauses == [5, 10, 20, 40, 60, 60], pauses
        clock.now = 1000.0  # nobody comes for long
        assert publisher.turn()
        assert [one_comes_at(now) for now in (1100.0, 1103.0, 1105.0)] == [True, False, True]
        for subscriber in subscribers:
            subscriber.close(0)


def test_an_answer_that_nobody_reads_is_no_reason_to_turn_without_a_pause(context):
    clock = Clock()
    with published(context, clock) as (publisher, directory):
        event = {"type": "BlockStored", "block_hashes": [1], "medium": "CPU"}
        for _ in range(4000):
            publisher.send([event])
        assert publisher.wait_ms is None
        asker = context.socket(zmq.DEALER)
        asker.setsockopt(zmq.RCVHWM, 1)
        asker.connect(f"ipc://{directory}/r")
        asker.send_multipart([b"", bytes(8)])
        assert publisher.sockets[1].poll(int(LONG_S) * 1000)
        publisher.turn()
        waits = []
        while len(waits) < 10 or waits[-10:] != [20] * 10:
            assert len(waits) < 10_000
            publisher.turn()
            waits.append(publisher.wait_ms)
        clock.now += 11
        publisher.turn()
        assert publisher.wait_ms is None, "it is given up"
        asker.close(0)
