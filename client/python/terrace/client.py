"""Client, Group and leases: the blocking face. asyncio has its own: terrace.aio.

Times are seconds; a call without `timeout_s` takes the client's default. Everyday answers are
exceptions of the class Unavailable, after which a program goes on without the cache.
"""
import contextlib
import ctypes
import json
import threading
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _native, buffers
from .calls import (END_REASONS, BlockInfo, Evicted, Hints, Keys, Match, ReservedKey, Token,
                    microseconds, request_of)
from .errors import Gone, Invalid, TerraceError, Unsupported, from_status, number, numbers
from .space import SpaceGroup

lib = _native.lib

KEYS_FLAT, ACQUIRE_FOLLOW, EVICT_DRY_RUN, EVICT_SUBTREE, PIN_CLEAR = 1, 2, 8, 16, 32
ACQUIRE_BY_PARTS, ACQUIRE_DEVICE = 64, 128
TIERS = ("hbm", "dram", "nvme", "redis")


def _with_parent(request: Any, parent: Optional[_native.Id]) -> Any:
    """Of keys that are not a prompt's first."""
    if parent is not None:
        request.parent = parent
    return request


class _Handle(ctypes.c_void_p):
    """A native client. Destroyed with its last reference: a call on its way holds one, too."""


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
        if device is not None and device.native.value is None:
            raise Gone("the device is closed")
        options = _native.ClientOptions(
            socket_path=str(socket_path).encode(), client_name=name.encode(),
            default_deadline_us=microseconds(default_timeout_s), reconnect_backoff_ms_max=1000,
            pending_requests_max=number("pending_requests_max", pending_requests_max),
            send_buffer_bytes_max=8 << 20, reply_spin_us=number("reply_spin_us", reply_spin_us),
            pinned_bytes_max=(1 << 64) - 1 if pinned_bytes_max is None
            else number("pinned_bytes_max", pinned_bytes_max, 64),
            device=None if device is None else device.native)
        why = ctypes.create_string_buffer(1024)
        handle = ctypes.c_void_p()
        self._handle = None
        status = lib.terrace_client_create(ctypes.byref(options), ctypes.byref(handle), why,
                                           len(why))
        if status:
            raise from_status(status, f"a client of {socket_path}", why.value.decode())
        # What copies blocks that lie in the memory of a device; "host": any thread reads them.
        self.device_backend = "host" if device is None else device.backend
        self._handle = _Handle(handle.value)
        weakref.finalize(self._handle, lib.terrace_client_destroy, handle.value)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_):
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
        return bool(lib.terrace_client_is_connected(self.handle))

    @property
    def boot_id(self) -> int:
        """0 while not connected; another value means another daemon."""
        return lib.terrace_client_boot_id(self.handle)

    @property
    def last_error(self) -> str:
        """The last sentence for a person."""
        text = ctypes.create_string_buffer(2048)
        lib.terrace_client_last_error(self.handle, text, len(text))
        return text.value.decode(errors="replace")

    def check(self, status: int, doing: str) -> None:
        """Raises what a status other than ok stands for."""
        if status:
            try:
                sentence = self.last_error
            except Gone:  # closed meanwhile
                sentence = ""
            raise from_status(status, doing, sentence)

    def wait_connected(self, timeout_s: float = 10.0) -> None:
        """Busy at the deadline; Invalid, Unsupported or IoError when it was refused."""
        self.check(lib.terrace_client_wait_connected(self.handle, microseconds(timeout_s)),
                   "connecting")

    def open(self, spec: SpaceGroup, self_mask: int = 1,
             timeout_s: Optional[float] = None) -> "Group":
        """Declares a SpaceGroup. self_mask: bit m for every member m of this process."""
        native, _keep = spec._native()  # pylint: disable=protected-access
        group = ctypes.c_uint32()
        why = ctypes.create_string_buffer(2048)
        status = lib.terrace_open(self.handle, ctypes.byref(native),
                                  number("self_mask", self_mask, 64),
                                  microseconds(timeout_s), ctypes.byref(group), why, len(why))
        if status:
            raise from_status(status, f"opening group {spec.name!r}",
                              why.value.decode(errors="replace"))
        return Group(self, spec, group.value)

    def pin_arena(self, device: Any) -> None:
        """From here on the memory of this client's leases is registered with a terrace.Device, in
        the background; a PagedCache made on it afterwards copies straight from and to what is
        registered. Exists: the client has a device already, or the device a client."""
        why = ctypes.create_string_buffer(1024)
        status = lib.terrace_client_pin_arena(self.handle, device.native, why, len(why))
        if status:
            raise from_status(status, "pinning the arena", why.value.decode(errors="replace"))

    @contextlib.contextmanager
    def pinning_paused(self, timeout_s: float = 1.0):
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


def _tokens_of(tokens: Any) -> "ctypes.Array":
    """As u32; Invalid if a token is not one."""
    if isinstance(tokens, memoryview) or hasattr(tokens, "__array_interface__"):
        view = memoryview(tokens)
        if view.format == "I" and view.c_contiguous and view.ndim == 1:
            return (ctypes.c_uint32 * len(view)).from_buffer_copy(view)
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    if len(tokens) > 0 and not (min(tokens) >= 0 and max(tokens) < 1 << 32):
        raise Invalid(f"token {min(tokens) if min(tokens) < 0 else max(tokens)}: tokens go from 0 "
                      "to 2^32 - 1")
    return (ctypes.c_uint32 * len(tokens))(*tokens)


def _id_of(token: Token) -> _native.Id:
    return _native.Id(number("token.low", token.low, 64), number("token.high", token.high, 64))


class Group:
    """An opened SpaceGroup: keys, and the verbs on them."""

    def __init__(self, client: Client, spec: SpaceGroup, index: int):
        self.client = client
        self.spec = spec
        self.index = index
        self.block_tokens = spec.members[0].block_tokens

    def hash(self, tokens: Sequence[int], parent: Optional[_native.Id] = None) -> Keys:
        """One key per full block of `tokens` (ints below 2^32, or a buffer of them), which follow
        the block `parent`."""
        native = _tokens_of(tokens)
        count = len(native)
        keys = (_native.Id * (count // self.block_tokens))()
        found = ctypes.c_size_t()
        self.client.check(
            lib.terrace_hash_tokens(self.client.handle, self.index,
                                    None if parent is None else ctypes.byref(parent), native,
                                    count, keys, len(keys), ctypes.byref(found)), "hashing tokens")
        return Keys(keys)

    def keys_of_digests(self, digests: Sequence[bytes]) -> Keys:
        """Keys of an engine's own digests, 16 to 32 bytes each, all of one length."""
        lengths = set(map(len, digests))
        if len(lengths) > 1:
            raise Invalid(f"digests of {sorted(lengths)} bytes: they must all have one length")
        keys = (_native.Id * len(digests))()
        if digests:
            self.client.check(
                lib.terrace_hash_digests(self.client.handle, self.index, b"".join(digests),
                                         lengths.pop(), len(digests), keys), "hashing digests")
        return Keys(keys)

    def _keys(self, keys: Keys):
        return self.client.handle, self.index, keys.native, len(keys)

    def match(self, keys: Keys, timeout_s: Optional[float] = None,
              hints: Optional[Hints] = None, *, parent: Optional[_native.Id] = None,
              first_position: int = 0, flags: int = 0) -> Match:
        """How far the prefix is there; pins nothing."""
        request = _with_parent(request_of(timeout_s, hints, first_position=first_position,
                                          flags=flags), parent)
        found = _native.MatchResult()
        self.client.check(lib.terrace_match(*self._keys(keys), request, found), "match")
        return Match(found.block_count, found.token_count, bool(found.is_bound))

    def prefetch(self, keys: Keys, timeout_s: Optional[float] = None,
                 hints: Optional[Hints] = None, *,
                 load_timeout_s: Optional[float] = None) -> int:
        """Brings the prefix to DRAM without pinning it; blocks on their way or there. They may come
        until load_timeout_s (None: 10 s), the answer is due after timeout_s."""
        request = request_of(timeout_s, hints, load_deadline_us=microseconds(load_timeout_s))
        found = ctypes.c_uint32()
        self.client.check(lib.terrace_prefetch(*self._keys(keys), request, found), "prefetch")
        return found.value

    def acquire(self, keys: Keys, timeout_s: Optional[float] = None,
                hints: Optional[Hints] = None, *, parent: Optional[_native.Id] = None,
                first_position: int = 0, member_mask: int = 0, flags: int = 0,
                load_timeout_s: Optional[float] = None) -> "ReadLease":
        """Pins the prefix that is there; of 0 blocks, a miss. Blocks below DRAM may still be
        coming, until load_timeout_s (None: 10 s): ReadLease.wait_ready."""
        request = _with_parent(
            request_of(timeout_s, hints, member_mask=member_mask, flags=flags,
                       first_position=first_position,
                       load_deadline_us=microseconds(load_timeout_s)), parent)
        lease = ReadLease(self)
        self.client.check(lib.terrace_acquire(*self._keys(keys), request, lease.native), "acquire")
        return lease

    def join_read(self, token: Token, member_mask: int = 0, *, flags: int = 0) -> "ReadLease":
        """Takes part in another process's lease. flags: ACQUIRE_BY_PARTS and ACQUIRE_DEVICE,
        whatever it was acquired with."""
        lease = ReadLease(self)
        self.client.check(
            lib.terrace_join_read_flagged(
                self.client.handle, self.index, _id_of(token),
                number("member_mask", member_mask, 64), number("flags", flags), lease.native),
            "joining a read lease")
        return lease

    def reserve(self, keys: Keys, timeout_s: Optional[float] = None,
                hints: Optional[Hints] = None, *, parent: Optional[_native.Id] = None,
                first_position: int = 0, member_mask: int = 0, flags: int = 0,
                event_hashes: Optional[Sequence[int]] = None) -> "WriteLease":
        """The right to write those blocks that nobody has or writes."""
        request = _with_parent(request_of(timeout_s, hints, member_mask=member_mask, flags=flags,
                                          first_position=first_position), parent)
        if event_hashes is not None:
            if len(event_hashes) != len(keys):
                raise Invalid(f"{len(event_hashes)} event hashes for {len(keys)} keys")
            request.event_hashes = numbers("an event hash", event_hashes)
        lease = WriteLease(self)
        self.client.check(lib.terrace_reserve(*self._keys(keys), request, lease.native), "reserve")
        return lease

    def join_write(self, token: Token, member_mask: int = 0) -> "WriteLease":
        """Lets a rank write and commit its own members."""
        lease = WriteLease(self)
        self.client.check(
            lib.terrace_join_write(self.client.handle, self.index,
                                   _id_of(token), number("member_mask", member_mask, 64),
                                   lease.native),
            "joining a write lease")
        return lease

    def touch(self, keys: Keys, timeout_s: Optional[float] = None,
              hints: Optional[Hints] = None) -> None:
        """Makes the blocks recent, and says of them what hints say."""
        self.client.check(lib.terrace_touch(*self._keys(keys), request_of(timeout_s, hints)),
                          "touch")

    def query(self, keys: Keys, timeout_s: Optional[float] = None) -> List[BlockInfo]:
        """One answer a key."""
        found = (_native.QueriedBlock * len(keys))()
        self.client.check(lib.terrace_query(*self._keys(keys), request_of(timeout_s), found),
                          "query")
        return [BlockInfo(("absent", "reserved", "sealed")[block.state],
                          tuple(t for i, t in enumerate(TIERS) if block.tier_mask >> i & 1),
                          block.priority, bool(block.flags & 1), bool(block.flags & 2),
                          block.lease_count, block.commit_id) for block in found]

    def wait_persisted(self, keys: Keys, timeout_s: Optional[float] = None) -> None:
        """Returns once a crash cannot lose them. Busy at the deadline."""
        self.client.check(lib.terrace_wait_persisted(*self._keys(keys), request_of(timeout_s)),
                          "waiting until it is persisted")

    def evict(self, keys: Keys, *, with_descendants: bool = False, dry_run: bool = False,
              timeout_s: Optional[float] = None) -> Evicted:
        """Drops the blocks from every tier, so that no crash brings them back."""
        found = _native.EvictResult()
        request = request_of(timeout_s, flags=(EVICT_SUBTREE if with_descendants else 0)
                             | (EVICT_DRY_RUN if dry_run else 0))
        self.client.check(lib.terrace_evict(*self._keys(keys), request, found), "evict")
        return Evicted(found.block_count, found.byte_count, found.skipped_count)

    def pin(self, keys: Keys, *, is_pinned: bool = True, ttl_s: int = 0,
            timeout_s: Optional[float] = None) -> int:
        """Keeps the blocks until they are unpinned or, after ttl_s, forgotten (0: never). How many
        there were."""
        request = request_of(timeout_s, Hints(ttl_s=ttl_s), flags=0 if is_pinned else PIN_CLEAR)
        found = ctypes.c_uint32()
        self.client.check(lib.terrace_pin(*self._keys(keys), request, found), "pin")
        return found.value

    def reset(self) -> None:
        """Forgets the whole group, for everybody on this host, and what any host has stored of it
        in the shared tier. Where weights change see docs/PROTOCOL.md, Epochs."""
        self.client.check(lib.terrace_reset(self.client.handle, self.index), "reset")


class _Lease:
    """What both kinds share: a native lease that ends once, after its last exported slot."""

    _native_type: Any = None

    def __init__(self, group: Group):
        self.group = group
        self.native = self._native_type()
        self._lock = threading.RLock()  # the collector may end a view while this thread has it
        self._exports = 0
        self._is_ended = False

    @classmethod
    def of(cls, group: Group, native: Any) -> Any:
        """Takes over a native lease, from a completion."""
        lease = cls(group)
        ctypes.memmove(ctypes.byref(lease.native), ctypes.byref(native), ctypes.sizeof(native))
        return lease

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()

    def __del__(self):
        if getattr(self, "native", None) is not None:
            self._end()

    def _finish(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        with self._lock:
            is_last = not self._is_ended and self._exports == 0
            self._is_ended = True
        if is_last:
            self._finish()

    def _unexport(self) -> None:
        with self._lock:
            self._exports -= 1
            is_last = self._is_ended and self._exports == 0
        if is_last:
            self._finish()

    def _export(self, address: Optional[int], byte_count: int) -> Optional[memoryview]:
        """A view that keeps the lease from ending for as long as it lives."""
        if not address:
            return None
        with self._lock:
            if self._is_ended:
                raise Gone("the lease has been released")
            self._exports += 1
        slot = _slot_type(byte_count).from_address(address)
        slot.lease = self  # keeps it alive
        weakref.finalize(slot, self._unexport).atexit = False
        return memoryview(slot).cast("B")

    def _member(self, member: int):
        if not 0 <= member < len(self.group.spec.members):
            raise Invalid(f"member {member} of a group of {len(self.group.spec.members)}")
        return self.group.spec.members[member]


_slot_types: Dict[int, type] = {}


def _slot_type(byte_count: int) -> type:
    """A ctypes array that can be referred to weakly."""
    found = _slot_types.get(byte_count)
    if found is None:
        found = type("Slot", (ctypes.c_ubyte * byte_count,), {})
        _slot_types[byte_count] = found
    return found


class ReadLease(_Lease):
    """The right to read blocks. A context manager; views of slots keep it until they are gone."""

    _native_type = _native.ReadLease

    @property
    def block_count(self) -> int:
        """Blocks of the prefix this lease covers; 0 is a miss."""
        return lib.terrace_read_lease_block_count(self.native)

    @property
    def token_count(self) -> int:
        return lib.terrace_read_lease_token_count(self.native)

    @property
    def ready_count(self) -> int:
        """Blocks [0, ready_count) may be read now."""
        return lib.terrace_read_lease_ready_count(self.native)

    @property
    def is_valid(self) -> bool:
        """Bytes read while this was true are right."""
        return bool(lib.terrace_read_lease_is_valid(self.native))

    @property
    def token(self) -> Token:
        """For another process's Group.join_read."""
        native = lib.terrace_read_lease_token(self.native)
        return Token(native.high, native.low)

    def wait_ready(self, block_count: Optional[int] = None,
                   timeout_s: Optional[float] = None) -> None:
        """Returns once so many blocks (None: all) may be read; NotFound if they will not come."""
        count = self.block_count if block_count is None else block_count
        timeout_s = 1.0 if timeout_s is None else timeout_s
        client = self.group.client
        client.check(lib.terrace_wait_ready(client.handle, self.native,
                                            number("block_count", count), microseconds(timeout_s)),
                     f"waiting for {count} blocks")

    def is_in_device(self, block: int) -> bool:
        """Whether it was answered in the memory of the client's device (ACQUIRE_DEVICE)."""
        return bool(lib.terrace_read_lease_is_in_device(self.native, number("block", block)))

    def slot(self, block: int, member: int = 0) -> Optional[memoryview]:
        """A member's slot in shared memory, read-only; None if it is not ready or has none.
        Unsupported where it lies in the memory of a GPU: PagedCache.load reads it there."""
        slot_bytes = ctypes.c_uint64()
        self._member(member)
        if self.group.client.device_backend != "host" and self.is_in_device(block):
            raise Unsupported(f"block {block} lies in the memory of a GPU, which this process's "
                              "threads do not reach: PagedCache.load copies it into pages")
        address = lib.terrace_read_lease_slot(self.native, number("block", block),
                                              number("member", member), ctypes.byref(slot_bytes))
        view = self._export(address, slot_bytes.value)
        return None if view is None else view.toreadonly()

    def part(self, block: int, part: int, member: int = 0) -> Optional[memoryview]:
        """One part of a slot, read-only."""
        space = self._member(member)
        view = self.slot(block, member)
        first = space.part_offset(part)
        return None if view is None else view[first:first + space.part_bytes[part]]

    def is_part_ready(self, block: int, part: int, member: int = 0) -> bool:
        return bool(lib.terrace_read_lease_is_part_ready(
            self.native, number("block", block), number("member", member), number("part", part)))

    def copy_part(self, block: int, part: int, into: Any, member: int = 0) -> None:
        """Copies one part into a buffer of its size. Busy if it is not ready yet; Gone, and the
        bytes are not to be used, if the lease was not valid throughout."""
        self._member(member)
        address, byte_count = buffers.address_of(into, True)
        self.group.client.check(
            lib.terrace_read_lease_copy_part(self.native, number("block", block),
                                             number("member", member), number("part", part),
                                             address, byte_count),
            f"copying part {part} of block {block}")

    def chunk_position(self, block: int, member: int = 0) -> int:
        """Of a block of chunks: where its first token stood when it was computed."""
        self._member(member)
        found = ctypes.c_uint32()
        self.group.client.check(
            lib.terrace_read_lease_chunk_position(self.native, number("block", block),
                                                  number("member", member), ctypes.byref(found)),
            f"reading the header of block {block}")
        return found.value

    def copy_into(self, into: Any, *, first_block: int = 0, block_count: Optional[int] = None,
                  member: int = 0) -> None:
        """Copies blocks into `into`: one buffer a part or one a block in a list, or one buffer for
        all. Gone, and the bytes are not to be used, if the lease was not valid throughout."""
        first_block = number("first_block", first_block)
        count = number("block_count",
                       self.block_count - first_block if block_count is None else block_count)
        pointers = buffers.pointers_to_parts(into, self._member(member).engine_part_bytes, count,
                                             True)
        self.group.client.check(
            lib.terrace_read_lease_copy_blocks(self.native, number("member", member), first_block,
                                               count, pointers),
            f"copying {count} blocks")

    def release(self, end_reason: str = "unknown") -> None:
        """Ends the lease, once the last view of it is gone."""
        if end_reason not in END_REASONS:
            raise Invalid(f"end_reason is {end_reason!r}: use one of {END_REASONS}")
        self._end_reason = END_REASONS.index(end_reason)
        self._end()

    _end_reason = 0

    def _finish(self) -> None:
        lib.terrace_read_lease_release(self.native, self._end_reason)


class WriteLease(_Lease):
    """The right to write reserved blocks. A context manager that aborts what was not committed."""

    _native_type = _native.WriteLease

    def __len__(self) -> int:
        return lib.terrace_write_lease_key_count(self.native)

    def __iter__(self) -> Iterator[ReservedKey]:
        return (self.key(i) for i in range(len(self)))

    def key(self, index: int) -> ReservedKey:
        """What became of one key of the reserve."""
        found = _native.ReservedKey()
        status = lib.terrace_write_lease_key(self.native, number("index", index),
                                             ctypes.byref(found))
        if status:
            raise from_status(status, f"key {index} of {len(self)}")
        return ReservedKey(lib.terrace_status_name(found.status).decode(), found.writer_age_ms,
                           found.commit_id)

    @property
    def reserved(self) -> List[int]:
        """Indexes of the keys that are ours to write."""
        return [i for i, key in enumerate(self) if key.status == "ok"]

    @property
    def is_valid(self) -> bool:
        return bool(lib.terrace_write_lease_is_valid(self.native))

    @property
    def token(self) -> Token:
        """For another process's Group.join_write."""
        native = lib.terrace_write_lease_token(self.native)
        return Token(native.high, native.low)

    def write(self, data: Any, *, first_key: int = 0, key_count: Optional[int] = None,
              member: int = 0) -> None:
        """Writes blocks: one buffer a part or one a block in a list, or one buffer for all. Keys
        that are not ours are passed over."""
        first_key = number("first_key", first_key)
        count = number("key_count", len(self) - first_key if key_count is None else key_count)
        pointers = buffers.pointers_to_parts(data, self._member(member).engine_part_bytes, count,
                                             False)
        self.group.client.check(
            lib.terrace_write_lease_write_blocks(self.native, number("member", member), first_key,
                                                 count, pointers),
            f"writing {count} blocks")

    def write_part(self, key: int, part: int, data: Any, member: int = 0) -> None:
        """Writes one part; whoever follows the block may read it after the next commit."""
        self._member(member)
        address, byte_count = buffers.address_of(data, False)
        self.group.client.check(
            lib.terrace_write_lease_write_part(self.native, number("key", key),
                                               number("member", member), number("part", part),
                                               address, byte_count),
            f"writing part {part} of key {key}")

    def slot(self, key: int, member: int = 0) -> Optional[memoryview]:
        """Where to write a block in place; then checksum(). None unless it is ours."""
        slot_bytes = ctypes.c_uint64()
        self._member(member)
        address = lib.terrace_write_lease_slot(self.native, number("key", key),
                                               number("member", member), ctypes.byref(slot_bytes))
        return self._export(address, slot_bytes.value)

    def checksum(self, key: int, part: int, member: int = 0) -> None:
        """Of a part that was written in place."""
        self.group.client.check(
            lib.terrace_write_lease_checksum_part(self.native, number("key", key),
                                                  number("member", member), number("part", part)),
            "checksum")

    def mark_absent(self, key: int, member: int) -> None:
        """This windowed member has no bytes for this block."""
        self.group.client.check(
            lib.terrace_write_lease_mark_absent(self.native, number("key", key),
                                                number("member", member)),
            "marking a member absent")

    def commit(self, timeout_s: Optional[float] = None, hints: Optional[Hints] = None) -> int:
        """Commits what was written; how many blocks became visible."""
        sealed = ctypes.c_uint32()
        client = self.group.client
        client.check(lib.terrace_commit(client.handle, self.native, request_of(timeout_s, hints),
                                        ctypes.byref(sealed)), "commit")
        return sealed.value

    def abort(self) -> None:
        """Gives up what was not committed, once the last view of it is gone."""
        self._end()

    def _finish(self) -> None:
        lib.terrace_write_lease_abort(self.native)


Lease = Union[ReadLease, WriteLease]
__all__ = ["ACQUIRE_BY_PARTS", "ACQUIRE_DEVICE", "ACQUIRE_FOLLOW", "BlockInfo", "Client",
           "Evicted", "Group", "Hints", "KEYS_FLAT", "Keys", "Lease", "Match", "ReadLease",
           "ReservedKey", "TerraceError", "Token", "WriteLease"]
