"""The asyncio face: the same verbs, awaited. One Client may serve both faces at once.

    async with aio.Requests(group) as requests:
        lease = await requests.acquire(keys)
"""
import asyncio
import ctypes
import itertools
from typing import Any, Dict, Optional, Tuple

from . import _native
from .calls import Hints, Keys, microseconds, native_of, request_of
from .client import Client
from .errors import Gone
from .group import Group
from .leases import ReadLease, WriteLease

lib = _native.lib


class Requests:
    """Asynchronous requests on one group, in the running event loop. Close it before the client.

    A client has one queue of completions: have one Requests on it at a time.
    """

    def __init__(self, group: Group):
        self.group = group
        self.client: Client = group.client
        # What is on its way is answered, whoever closes the client meanwhile.
        self._handle = self.client.handle
        self._loop = asyncio.get_running_loop()
        self._pending: Dict[int, "asyncio.Future[Any]"] = {}
        self._numbers = itertools.count(1)
        self._fd = lib.terrace_event_fd(self._handle)
        self._loop.add_reader(self._fd, self._drain)
        self._is_open = True
        self._is_idle: "Optional[asyncio.Future[None]]" = None  # somebody closes and waits for it

    async def __aenter__(self) -> "Requests":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for what is on its way: nothing of it may be lost."""
        while self._pending:  # who was answered may have asked again
            if self._is_idle is None:
                self._is_idle = self._loop.create_future()
            await asyncio.shield(self._is_idle)
        if self._is_open:
            self._loop.remove_reader(self._fd)
            self._is_open = False

    def _drain(self) -> None:
        while True:
            completion = _native.Completion()
            if lib.terrace_poll(self._handle, ctypes.byref(completion)):
                return
            future = self._pending.pop(completion.user_data, None)
            if future is not None and not future.cancelled():
                future.set_result(completion)
            else:  # at once: the next turn of the loop may be after the client's end
                _give_back(completion)
            if not self._pending and self._is_idle is not None:
                self._is_idle.set_result(None)
                self._is_idle = None

    async def _run(self, function: Any, doing: str, *arguments: Any, for_writers: bool = False
                   ) -> _native.Completion:
        if not self._is_open:
            raise Gone("the Requests are closed")
        number = next(self._numbers)
        future: "asyncio.Future[_native.Completion]" = self._loop.create_future()
        self._pending[number] = future
        status = function(*arguments, number, _native.NO_CALLBACK, None)
        if status:
            del self._pending[number]
            self.client.check(status, doing, for_writers=for_writers)
        try:
            completion = await future
        except asyncio.CancelledError:
            if not future.cancelled():  # the answer has come
                _give_back(future.result())
            raise
        if completion.status:
            raise self.client.error(completion.status, doing, for_writers=for_writers)
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
        """As WriteLease.commit."""
        if lease.token == (0, 0):  # nothing was ours to write
            return 0
        request = request_of(timeout_s, hints)
        done = await self._run(lib.terrace_commit_async, "commit", self.client.handle,
                               lease.native, ctypes.byref(request))
        return done.block_count

    async def wait_ready(self, lease: ReadLease, block_count: Optional[int] = None,
                         timeout_s: Optional[float] = None) -> None:
        """As ReadLease.wait_ready, in the loop's executor."""
        await self._loop.run_in_executor(None, lease.wait_ready, block_count, timeout_s)


def _give_back(completion: _native.Completion) -> None:
    """Leases of a completion that nobody waits for."""
    lib.terrace_read_lease_release(ctypes.byref(completion.read_lease), 0)
    lib.terrace_write_lease_abort(ctypes.byref(completion.write_lease))
