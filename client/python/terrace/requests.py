"""Requests of a thread that must not wait: sent now, looked at later.

An engine's scheduler asks, goes on, and asks again in its next step. Everyday answers (busy, gone,
nothing there) look alike here: None.
"""
import collections
import ctypes
import time
from typing import Any, Deque, Optional, Set, Tuple

from . import _native
from .answers import Answer
from .calls import Hints, Keys, microseconds, native_of, request_of
from .client import Client
from .errors import Gone, numbers
from .group import Group
from .leases import ReadLease, WriteLease

lib = _native.lib
# After so many requests in a row without an answer, none is sent for a while.
_FAILURES_MAX = 3
_NO_ANSWER = (4, 7, 8)  # busy, i/o error, gone
_PAUSE_S_MAX = 30.0
_MUTE_S = 0.1
# What is stored aside from an engine's steps may be answered this late: a daemon whose memory is on
# its way answers when there is room, and nobody waits for it meanwhile.
STORE_TIMEOUT_S = 1.0
# Another thread may take the answer that one waits for: then it looks so often.
_LOOK_S = 0.02


class Pause:
    """A daemon that does not answer is left alone for a while, longer each time, so that it costs
    nothing. Another one, or one that is connected to again, has done nothing wrong yet."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._boot_id = 0  # of the daemon that did not answer
        self._failures = 0
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        """Nothing should be sent now."""
        return time.monotonic() < self._until and self._found_boot_id() == self._boot_id

    def note(self, has_answered: bool) -> None:
        """What became of a request."""
        boot_id = self._found_boot_id()
        if boot_id != self._boot_id:
            self._boot_id, self._failures, self._until = boot_id, 0, 0.0
        if has_answered:
            self._failures, self._until = 0, 0.0
            return
        if time.monotonic() < self._until:  # others of the same silence
            return
        self._failures += 1
        if self._failures >= _FAILURES_MAX:
            pause_s = min(_PAUSE_S_MAX, 0.5 * 2 ** (self._failures - _FAILURES_MAX))
            self._until = time.monotonic() + pause_s

    def _found_boot_id(self) -> int:
        try:
            return self._client.boot_id
        except Gone:  # closed meanwhile
            return self._boot_id


class Pending:
    """A request on its way. `lease` and `is_done` are what became of it; of a reserve also
    `reserved_count`, keys that are ours to write, `no_room_count`, keys that got no room (all of
    them if there was no answer), `no_room_first`, the first of those, and `is_passed_by`: they are
    worth less than all that is there, and need not be offered again."""

    def __init__(self, key_count: int = 0, is_done: bool = False) -> None:
        self.is_done = is_done
        self.lease: Any = None
        self.is_given_up = False
        self.reserved_count = 0
        self.no_room_count = key_count
        self.no_room_first = 0
        self.is_passed_by = False

    def give_up(self) -> None:
        """Nobody wants it any more: what it holds, or will hold, is released."""
        self.is_given_up = True
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.__exit__(None, None, None)


class Asker:
    """Sends requests on one group and collects their answers. One thread at a time. `is_paused`:
    nothing is sent."""

    def __init__(self, group: Group, timeout_s: float, load_timeout_s: Optional[float] = None):
        self.group = group
        self.timeout_s = timeout_s  # of an answer; of a reserve STORE_TIMEOUT_S if that is more
        self.load_timeout_s = load_timeout_s  # of the blocks that an acquire brings to DRAM
        self._pending: Set[Pending] = set()
        self._arrived: Deque[Tuple[Pending, Answer]] = collections.deque()
        self._pause = Pause(group.client)
        self._mute_until = 0.0

    @property
    def is_paused(self) -> bool:
        """Whatever is asked now is answered at once, with nothing."""
        return self._pause.is_on

    @property
    def pending_count(self) -> int:
        """Requests whose answers have not been collected."""
        return len(self._pending)

    def acquire(self, keys: Keys, hints: Optional[Hints] = None, *, parent: Any = None,
                first_position: int = 0) -> Pending:
        """lease: a ReadLease of at least one block, or None."""
        return self._send(lib.terrace_acquire_async, self.timeout_s, keys, hints, parent,
                          first_position)

    def reserve(self, keys: Keys, hints: Optional[Hints] = None, *, parent: Any = None,
                first_position: int = 0, event_hashes: Any = None) -> Pending:
        """lease: a WriteLease with at least one key to write, or None; a reader asks for none."""
        if self.group.client.is_reader:
            return Pending(0, is_done=True)  # none of the keys is offered again
        return self._send(lib.terrace_reserve_async, max(self.timeout_s, STORE_TIMEOUT_S), keys,
                          hints, parent, first_position, event_hashes)

    def touch(self, keys: Keys, hints: Hints, wait_s: float) -> None:
        """Says of blocks what `hints` say. Of use, not needed: it waits wait_s at most, and where
        that was too short nothing more is said for a while."""
        if self.is_paused or time.monotonic() < self._mute_until:
            return
        request = request_of(wait_s, hints)
        status = lib.terrace_touch(self.group.client.handle, self.group.index,
                                   *native_of(keys), ctypes.byref(request))
        if status in _NO_ANSWER:
            self._mute_until = time.monotonic() + _MUTE_S

    def _send(self, function: Any, timeout_s: float, keys: Keys, hints: Optional[Hints],
              parent: Any, first_position: int, event_hashes: Any = None) -> Pending:
        pending = Pending(len(keys))
        # Fewer names than keys are of a daemon that was started anew since the first were made.
        are_names_fewer = event_hashes is not None and len(event_hashes) != len(keys)
        if are_names_fewer or self.is_paused:
            pending.is_done = True
            return pending
        request = request_of(timeout_s, hints, first_position=first_position,
                             load_deadline_us=microseconds(self.load_timeout_s))
        if parent is not None:
            request.parent = parent
        if event_hashes is not None:
            request.event_hashes = numbers("an event hash", event_hashes)
        native, count = native_of(keys)
        answers, arrived = self.group.client.answers, self._arrived
        try:
            handle = self.group.client.handle
        except Gone:  # closed
            pending.is_done = True
            return pending
        number = answers.expect(lambda answer: arrived.append((pending, answer)))
        self._pending.add(pending)
        status = function(handle, self.group.index, native, count,
                          ctypes.byref(request), number, _native.NO_CALLBACK, None)
        if status:
            answers.forget(number)
            self._pending.remove(pending)
            pending.is_done = True
            if answers.expected_count < self.group.client.pending_requests_max:
                self._note(status)
            # Else it was this client that had no room for it: the daemon was not asked.
        return pending

    def _note(self, status: int) -> None:
        self._pause.note(status not in _NO_ANSWER)

    def collect(self) -> None:
        """Takes the answers that are there."""
        client = self.group.client
        try:
            if self._pending:
                client.answers.collect(client.handle)
        except Gone:  # closed: nothing comes any more
            self._give_up_all()
        self._take_arrived()

    def _give_up_all(self) -> None:
        self._take_arrived()
        for pending in self._pending:
            pending.is_done = True
        self._pending.clear()

    def _take_arrived(self) -> None:
        while self._arrived:
            self._take(*self._arrived.popleft())

    def _take(self, pending: Pending, completion: Answer) -> None:
        self._pending.remove(pending)
        self._note(completion.status)
        if completion.status == 0:
            self._take_lease(completion, pending)
        pending.is_done = True
        if pending.is_given_up:
            pending.give_up()

    def _take_lease(self, completion: Answer, pending: Pending) -> None:
        lease: Any
        if completion.kind == 1:
            lease = ReadLease.of(self.group, completion.read_lease)
            is_useful = lease.block_count > 0
        else:
            lease = WriteLease.of(self.group, completion.write_lease)
            answers = lease.statuses
            pending.reserved_count = answers.count("ok")
            pending.no_room_count = answers.count("no space")
            pending.no_room_first = answers.index("no space") if pending.no_room_count else 0
            pending.is_passed_by = pending.no_room_count > 0 and lease.is_passed_by
            is_useful = pending.reserved_count > 0
        if is_useful:
            pending.lease = lease
        else:
            lease.__exit__(None, None, None)

    def wait(self, pending: Pending, wait_s: float) -> bool:
        """Whether its answer is there, after `wait_s` at most."""
        deadline = time.monotonic() + wait_s
        client = self.group.client
        while True:
            self._take_arrived()
            left_s = deadline - time.monotonic()
            if pending.is_done or left_s <= 0:
                return pending.is_done
            answer = Answer()
            try:
                status = lib.terrace_poll_until(client.handle, microseconds(min(left_s, _LOOK_S)),
                                                ctypes.byref(answer))
            except Gone:  # closed
                self._give_up_all()
                continue
            if status == 0:
                client.answers.give(answer)
            else:  # at once, perhaps: another thread has it, and is about to hand it over
                time.sleep(min(0.0005, max(0.0, deadline - time.monotonic())))
