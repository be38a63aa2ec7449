"""The asyncio face: the same verbs, awaited. One Client may serve both faces at once, and any
number of event loops.

    async with aio.Requests(group) as requests:
        lease = await requests.acquire(keys)
"""
import asyncio
import ctypes
import time
from typing import Any, Optional, Tuple

from . import _native
from .answers import Answer
from .calls import Hints, Keys, microseconds, native_of, request_of
from .client import NO_ANSWER, Client
from .errors import Busy, Gone
from .group import Group
from .leases import ReadLease, WriteLease
from .waiting import left_s

lib = _native.lib
_BUSY = 4  # a status
_LOOK_S = 0.05


class Requests:
    """Asynchronous requests on one group, in the running event loop. Close it before the client."""

    def __init__(self, group: Group):
        self._is_open = self._is_listening = False
        self.group = group
        self.client: Client = group.client
        # What is on its way is answered, whoever closes the client meanwhile.
        self._handle = self.client.handle
        self._loop = asyncio.get_running_loop()
        self._pending_count = 0
        self.client.answers.listen(self._handle, self._loop)
        self._is_open = self._is_listening = True
        self._is_idle: "Optional[asyncio.Future[None]]" = None  # somebody closes and waits for it

    async def __aenter__(self) -> "Requests":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for what is on its way: nothing of it may be lost."""
        try:
            while self._pending_count:  # who was answered may have asked again
                if self._is_idle is None:
                    self._is_idle = self._loop.create_future()
                await asyncio.shield(self._is_idle)
        finally:
            self._is_open = False
            if not self._pending_count:
                self._end_listening()

    def _end_listening(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self.client.answers.end_listening(self._loop)

    def __del__(self) -> None:  # nobody has closed it
        if self._is_listening:
            try:
                self._loop.call_soon_threadsafe(self.client.answers.end_listening, self._loop)
            except RuntimeError:  # the loop is closed
                pass

    def _take(self, future: "asyncio.Future[Any]", answer: Answer) -> None:
        """On any thread."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            return self._settle(future, answer)
        try:
            self._loop.call_soon_threadsafe(self._settle, future, answer)
        except RuntimeError:  # the loop is closed: the answer goes, with what it holds
            pass

    def _settle(self, future: "asyncio.Future[Any]", answer: Answer) -> None:
        if not future.cancelled():
            future.set_result(answer)
        self._pending_count -= 1
        if not self._pending_count and self._is_idle is not None:
            self._is_idle.set_result(None)
            self._is_idle = None
        if not self._pending_count and not self._is_open:  # closing was called off
            self._end_listening()

    async def _run(self, function: Any, doing: str, *arguments: Any, for_writers: bool = False
                   ) -> Answer:
        if not self._is_open:
            raise Gone("the Requests are closed")
        future: "asyncio.Future[Answer]" = self._loop.create_future()
        answers, is_sent = self.client.answers, False
        number = answers.expect(lambda answer: self._take(future, answer))
        self._pending_count += 1
        try:
            status = function(*arguments, number, _native.NO_CALLBACK, None)
            is_sent = status == 0
        finally:
            if not is_sent:
                answers.forget(number)
                self._pending_count -= 1
        if status:
            most = self.client.pending_requests_max
            self.client.check(status, doing, for_writers=for_writers, usual="" if status != _BUSY
                              else f"pending_requests_max of the client is {most}, and so many are "
                              "on their way: await some of them first"
                              if answers.expected_count >= most else
                              "the daemon does not read what is sent to it")
        completion = await future
        if completion.status:
            raise self.client.error(completion.status, doing, for_writers=for_writers,
                                    usual="" if completion.status != _BUSY
                                    else NO_ANSWER)
        return completion

    def _keys(self, keys: Keys, request: _native.Request) -> Tuple[Any, ...]:
        return (self.client.handle, self.group.index, *native_of(keys), ctypes.byref(request))

    async def acquire(self, keys: Keys, timeout_s: Optional[float] = None,
                      hints: Optional[Hints] = None, *, member_mask: int = 0, flags: int = 0,
                      load_timeout_s: Optional[float] = None) -> ReadLease:
        """As Group.acquire."""
        request = request_of(timeout_s, hints, member_mask=member_mask, flags=flags,
                             load_deadline_us=microseconds(load_timeout_s))
        done = await self._run(lib.terrace_acquire_async, "acquire", *self._keys(keys, request))
        return ReadLease.of(self.group, done.read_lease)

    async def prefetch(self, keys: Keys, timeout_s: Optional[float] = None,
                       hints: Optional[Hints] = None, *,
                       load_timeout_s: Optional[float] = None) -> int:
        """As Group.prefetch."""
        request = request_of(timeout_s, hints, load_deadline_us=microseconds(load_timeout_s))
        done = await self._run(lib.terrace_prefetch_async, "prefetch", *self._keys(keys, request))
        return done.block_count

    async def reserve(self, keys: Keys, timeout_s: Optional[float] = None,
                      hints: Optional[Hints] = None, *, member_mask: int = 0,
                      flags: int = 0) -> WriteLease:
        """As Group.reserve."""
        request = request_of(timeout_s, hints, member_mask=member_mask, flags=flags)
        done = await self._run(lib.terrace_reserve_async, "reserve", *self._keys(keys, request),
                               for_writers=True)
        return WriteLease.of(self.group, done.write_lease)

    async def commit(self, lease: WriteLease, timeout_s: Optional[float] = None,
                     hints: Optional[Hints] = None) -> int:
        """As WriteLease.commit, after Busy, too."""
        if lease.token == (0, 0):  # nothing was ours to write
            return 0
        request = request_of(timeout_s, hints)
        done = await self._run(lib.terrace_commit_async, "commit", self.client.handle,
                               lease.native, ctypes.byref(request))
        return done.block_count

    async def wait_ready(self, lease: ReadLease, block_count: Optional[int] = None,
                         timeout_s: Optional[float] = None) -> None:
        """As ReadLease.wait_ready, in the loop's executor: a moment at a time, so that of many each
        has its turns, and one that is cancelled holds up neither the loop's end nor the process's.
        """
        wait_s = self.client.default_timeout_s if timeout_s is None else timeout_s
        microseconds(wait_s)  # Invalid for one that is none
        until = time.monotonic() + wait_s
        while True:
            look = self._loop.run_in_executor(None, lease.wait_ready, block_count,
                                              min(_LOOK_S, left_s(until)))
            try:
                return await asyncio.shield(look)
            except Busy:
                if left_s(until) == 0:
                    raise lease.late(block_count, wait_s) from None
            except asyncio.CancelledError:
                await asyncio.wait([look])  # until then the lease is that thread's
                look.exception()  # or the loop tells that nobody has asked for it
                raise
