"""Client: the connection to a terraced, for threads that may block. asyncio has its own face:
terrace.aio.

Times are seconds; a call without `timeout_s` takes the client's default. Everyday answers are
exceptions of the class Unavailable, after which a program goes on without the cache.
"""
import contextlib
import ctypes
import json
import os
import weakref
from typing import Any, Dict, Iterator, Optional

from . import _native, denied
from .answers import Answers
from .calls import microseconds
from .errors import Gone, TerraceError, from_status, is_everyday, number, text_of, wrong_type
from .group import Group
from .space import SpaceGroup

lib = _native.lib
_BUSY, _GONE = 4, 8  # statuses
NO_ANSWER = ("no answer by the deadline: the daemon is stopped, hangs or is busy; `terrace status` "
             "and its log tell")
_IO = 7  # a status: of a client that cannot be made, that the process has no descriptors left


class _Handle(ctypes.c_void_p):
    """A native client. Destroyed with its last reference: a call on its way holds one, too."""


def _native_of(device: Any) -> Any:
    native = getattr(device, "native", None)
    if not isinstance(native, ctypes.c_void_p):
        raise wrong_type("device", device, "a terrace.Device")
    return native


class Client:
    """A connection to one domain of a terraced. Reconnects by itself; use it as a context manager.

    socket_path: the domain's socket. Nothing here blocks longer than its deadline.
    pinned_bytes_max: of pin_arena, at a time; None: as much as there is, 0: nothing.
    device: the Device in whose memory terraced keeps blocks, too (hbm.device). This client maps
    that memory, and has blocks copied there and back when terraced asks; acquire and join_read with
    ACQUIRE_DEVICE answer blocks where they lie there, for PagedCache.load. A daemon without such a
    tier says so in last_error, and everything else works.
    """

    def __init__(self, socket_path: str, *, name: str = "python",
                 default_timeout_s: float = 1.0, pending_requests_max: int = 256,
                 reply_spin_us: int = 50, pinned_bytes_max: Optional[int] = None,
                 device: Any = None):
        if not isinstance(socket_path, (str, os.PathLike)):
            raise wrong_type("socket_path", socket_path, "a path")
        if device is not None and _native_of(device).value is None:
            raise Gone("the device is closed")
        options = _native.ClientOptions(
            socket_path=text_of("socket_path", os.fspath(socket_path)),
            client_name=text_of("name", name),
            default_deadline_us=number("default_timeout_s in microseconds",
                                       microseconds(default_timeout_s)),
            reconnect_backoff_ms_max=1000,
            pending_requests_max=number("pending_requests_max", pending_requests_max),
            send_buffer_bytes_max=8 << 20, reply_spin_us=number("reply_spin_us", reply_spin_us),
            pinned_bytes_max=(1 << 64) - 1 if pinned_bytes_max is None
            else number("pinned_bytes_max", pinned_bytes_max, 64),
            device=None if device is None else _native_of(device))
        why = ctypes.create_string_buffer(1024)
        handle = ctypes.c_void_p()
        self._handle = None
        status = lib.terrace_client_create(ctypes.byref(options), ctypes.byref(handle), why,
                                           len(why))
        if status:
            raise from_status(status, f"a client of {socket_path}", why.value.decode(),
                              is_of_connecting=status == _IO)
        # What copies blocks that lie in the memory of a device; "host": any thread reads them.
        self.device_backend = "host" if device is None else device.backend
        self._socket_path = str(socket_path)
        self.default_timeout_s = default_timeout_s
        self.pending_requests_max = pending_requests_max
        self._told = ""  # the last_error of the last exception
        self._pid = os.getpid()  # a forked child is told each time that it is one
        self.answers = Answers()  # of terrace.aio and of requests that are looked at later
        self._handle = _Handle(handle.value)
        # Not when the interpreter ends: daemon threads may be in a call, which goes on without it.
        weakref.finalize(self._handle, lib.terrace_client_destroy, handle.value).atexit = False

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything pending, once calls of other threads have returned. Leases that are still
        held stay readable until released."""
        self._handle = None

    @property
    def handle(self) -> _Handle:
        """The native client; Gone once closed."""
        handle = self._handle
        if handle is None:
            raise Gone("the client is closed")
        return handle

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return bool(lib.terrace_client_is_connected(self.handle))

    @property
    def boot_id(self) -> int:
        """0 while not connected; another value means another daemon."""
        return lib.terrace_client_boot_id(self.handle)

    @property
    def is_bypassed(self) -> bool:
        """Whether an operator has the domain bypassed (`terrace drain --bypass`): lookups are
        misses, nothing is stored, and no call waits or reaches the daemon."""
        return bool(lib.terrace_client_is_bypassed(self.handle, None))

    @property
    def bypassed_count(self) -> int:
        """Requests that were answered so, since the client began."""
        count = ctypes.c_uint64()
        lib.terrace_client_is_bypassed(self.handle, ctypes.byref(count))
        return count.value

    @property
    def is_reader(self) -> bool:
        """Whether this process may not store, its user being none of the domain's writer_uids:
        what would store, erase or pin is ReadOnly, and everything else works. As the last
        connection had it; False before the first."""
        return bool(lib.terrace_client_is_reader(self.handle))

    @property
    def last_error(self) -> str:
        """The last sentence for a person."""
        text = ctypes.create_string_buffer(2048)
        lib.terrace_client_last_error(self.handle, text, len(text))
        return text.value.decode(errors="replace")

    def error(self, status: int, doing: str, *, for_writers: bool = False,
              usual: str = "") -> TerraceError:
        """What a status other than ok stands for, of a call that sets a sentence unless its answer
        is an everyday one. That may leave last_error as an earlier call made it: with one a
        sentence is told only if no exception has told it before. usual: of a call that then sets
        none, what is told in its place. for_writers: readers may not do it."""
        try:
            sentence, is_reader = self.last_error, self.is_reader
        except Gone:  # closed meanwhile
            return from_status(status, doing)
        is_stale = usual or sentence == self._told
        if is_everyday(status) and is_stale and os.getpid() == self._pid:
            sentence = usual or self._usual(status)
        else:
            self._told = sentence
        return from_status(status, doing, sentence, is_read_only=for_writers and is_reader)

    def _usual(self, status: int) -> str:
        """What an everyday answer means, as far as it can be told."""
        if status == _GONE and not self.is_connected:
            return f"not connected to {self._socket_path}; it is tried again"
        return {_BUSY: NO_ANSWER,
                _GONE: "the connection or the lease has ended"}.get(status, "")

    def check(self, status: int, doing: str, *, for_writers: bool = False,
              usual: str = "") -> None:
        """Raises what a status other than ok stands for."""
        if status:
            raise self.error(status, doing, for_writers=for_writers, usual=usual)

    def wait_connected(self, timeout_s: float = 10.0) -> None:
        """Busy at the deadline, with what is tried; Unreachable, Refused or Incompatible where
        trying again alone does not help. All are Unavailable, and it is tried again all the
        same."""
        status = lib.terrace_client_wait_connected(self.handle, microseconds(timeout_s))
        if status:
            self._told = self.last_error
            raise self._unconnected(status, "connecting", self._told)

    def _unconnected(self, status: int, doing: str, sentence: str) -> TerraceError:
        """Of a status that says why there is no connection."""
        return from_status(status, doing, sentence + denied.remedy_of(self._socket_path),
                           is_of_connecting=True)

    def _keeps_unconnected(self, status: int) -> bool:
        """Whether the status is what keeps this client from having a connection."""
        return (not self.is_connected
                and status == lib.terrace_client_wait_connected(self.handle, 1))

    def open(self, spec: SpaceGroup, self_mask: int = 1,
             timeout_s: Optional[float] = None) -> Group:
        """Declares a SpaceGroup. self_mask: bit m for every member m of this process."""
        if not isinstance(spec, SpaceGroup):
            raise wrong_type("spec", spec, 'a SpaceGroup, such as SpaceGroup("my-model", [space])')
        native, _keep = spec._native()  # pylint: disable=protected-access
        group = ctypes.c_uint32()
        why = ctypes.create_string_buffer(2048)
        status = lib.terrace_open(self.handle, ctypes.byref(native),
                                  number("self_mask", self_mask, 64),
                                  microseconds(timeout_s), ctypes.byref(group), why, len(why))
        if status:
            self._told = self.last_error
            doing, sentence = f"opening group {spec.name!r}", why.value.decode(errors="replace")
            if self._keeps_unconnected(status):
                raise self._unconnected(status, doing, sentence)
            raise from_status(status, doing, sentence or self._usual(status))
        return Group(self, spec, group.value)

    def pin_arena(self, device: Any) -> None:
        """From here on the memory of this client's leases is registered with a terrace.Device, in
        the background; a PagedCache made on it afterwards copies straight from and to what is
        registered. Exists: the client has a device already, or the device a client."""
        why = ctypes.create_string_buffer(1024)
        status = lib.terrace_client_pin_arena(self.handle, _native_of(device), why, len(why))
        if status:
            raise from_status(status, "pinning the arena", why.value.decode(errors="replace"))

    @contextlib.contextmanager
    def pinning_paused(self, timeout_s: float = 1.0) -> Iterator[None]:
        """Nothing is registered, nor taken out, meanwhile: for as long as an engine captures a
        graph. Busy if a segment is still being registered at the deadline."""
        handle = self.handle
        status = lib.terrace_client_pause_pinning(handle, microseconds(timeout_s))
        try:
            self.check(status, "pausing what is pinned")
            yield
        finally:
            lib.terrace_client_resume_pinning(handle)

    def stats(self, timeout_s: Optional[float] = None) -> Dict[str, Any]:
        """The daemon's figures; docs/OPERATIONS.md names the fields."""
        room = 1 << 16
        while True:
            text, needed = ctypes.create_string_buffer(room), ctypes.c_size_t()
            status = lib.terrace_stats(self.handle, microseconds(timeout_s), text, room,
                                       ctypes.byref(needed))
            if needed.value <= room or status == 0:
                self.check(status, "stats")
                return json.loads(text.value)
            room = 2 * needed.value
