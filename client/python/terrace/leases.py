"""ReadLease and WriteLease: the right to read, or to write, blocks in shared memory.

A block of one member is the bytes that its tokens have in that member's layers, in parts, as the
member's Space says (Space.part_bytes; engine_part_bytes where they are encoded). Blocks and keys
are counted from the lease's first, members from the SpaceGroup's, parts from the first layer's.
Gone once the daemon has revoked the lease, or went away.

THREADING: one lease is one thread's at a time, but that several may wait for blocks of a ReadLease,
and copy them, while nobody ends it; views may be dropped by any.
"""
import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple, TypeVar, Union

from . import _native, buffers
from .calls import (END_REASONS, SPAN_STATES, TIERS, Hints, ReservedKey, Span, Token,
                    microseconds, request_of)
from .errors import Gone, Invalid, TerraceError, Unsupported, from_status, number
from .space import Space

if TYPE_CHECKING:
    from .group import Group

lib = _native.lib
_OK, _NO_SPACE = 0, 3
_EXISTS, _BUSY, _INVALID, _GONE, _UNSUPPORTED = 2, 4, 5, 8, 9  # statuses
_ON_DEVICE = ("it lies in the memory of a GPU, which this process's threads do not reach: "
              "PagedCache.load copies it into pages")
_NOT_ENCODED = ("a part has a NaN, an infinity or a value above the largest bf16, which the codec "
                "of its Space does not encode: its block is not written")
_Kind = TypeVar("_Kind", bound="_Lease")


class _Lease:
    """What both kinds share: a native lease that ends once, after its last exported slot."""

    _native_type: Any = None

    def __init__(self, group: "Group"):
        self.group = group
        self.native = self._native_type()
        self._lock = threading.RLock()  # the collector may end a view while this thread has it
        self._exports = 0
        self._is_ended = False

    @classmethod
    def of(cls, group: "Group", native: Any) -> Any:
        """Takes a native lease out of an Answer."""
        lease = cls(group)
        ctypes.memmove(ctypes.byref(lease.native), ctypes.byref(native), ctypes.sizeof(native))
        ctypes.memset(ctypes.byref(native), 0, ctypes.sizeof(native))
        return lease

    def __enter__(self: _Kind) -> _Kind:
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def __del__(self) -> None:
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
            self._must_be_held()
            self._exports += 1
        slot = _slot_type(byte_count).from_address(address)
        slot.lease = self  # keeps it alive
        weakref.finalize(slot, self._unexport).atexit = False
        return memoryview(slot).cast("B")

    # libterrace sets no sentence, and Client.last_error is another call's, where a lease has ended,
    # where it has no such blocks, and where a call that asks no daemon answers other than "invalid"
    # or "gone". These say it themselves.

    def _must_live(self, doing: str) -> None:
        if self._is_ended and self._exports == 0:
            raise from_status(_INVALID, doing, "the lease has ended")

    def _must_be_held(self) -> None:
        if self._is_ended:
            raise Gone("the lease has been released")

    def _must_have(self, doing: str, what: str, first: int, count: int, lease_count: int) -> None:
        self._must_live(doing)
        if first + count > lease_count:
            raise from_status(_INVALID, doing, f"{what} {first} to {first + count - 1} of a lease "
                              f"of {lease_count}, which counts from 0")

    def _check(self, status: int, doing: str, unsupported: str = "") -> None:
        """Raises what a call that asks no daemon answered other than ok."""
        if status in (_INVALID, _GONE):
            self.group.client.check(status, doing)
        elif status:
            raise from_status(status, doing, unsupported if status == _UNSUPPORTED else "")

    def _member(self, member: int) -> Space:
        member = number("member", member)
        if member >= len(self.group.spec.members):
            raise Invalid(f"member {member} of a group of {len(self.group.spec.members)}")
        return self.group.spec.members[member]


def _place_of(buffer: Any, is_written: bool, doing: str) -> Tuple[int, int]:
    """(address, bytes) of a buffer for one part."""
    address, byte_count = buffers.address_of(buffer, is_written)
    if not address:
        raise from_status(_INVALID, doing, "the buffer is empty")
    return address, byte_count


_slot_types: Dict[int, Any] = {}


def _slot_type(byte_count: int) -> Any:
    """A ctypes array that can be referred to weakly."""
    found = _slot_types.get(byte_count)
    if found is None:
        found = type("Slot", (ctypes.c_ubyte * byte_count,), {})
        _slot_types[byte_count] = found
    return found


class ReadLease(_Lease):
    """The right to read blocks. A context manager; views of slots keep it until they are gone."""

    _native_type = _native.ReadLease

    def __init__(self, group: "Group"):
        super().__init__(group)
        self._end_reason = 0

    @property
    def block_count(self) -> int:
        """Blocks of the prefix this lease covers; 0 is a miss."""
        return lib.terrace_read_lease_block_count(self.native)

    @property
    def token_count(self) -> int:
        """Tokens of those blocks."""
        return lib.terrace_read_lease_token_count(self.native)

    @property
    def ready_count(self) -> int:
        """Blocks [0, ready_count) may be read now."""
        return lib.terrace_read_lease_ready_count(self.native)

    @property
    def spans(self) -> List[Span]:
        """Where the blocks were found when they were acquired, and when those were expected that
        were not ready: it stays as it was answered. ready_count says what has come since."""
        count = lib.terrace_read_lease_spans(self.native, None, 0)
        native = (_native.Span * count)()
        lib.terrace_read_lease_spans(self.native, native, count)
        return [Span(each.first_block, each.block_count, SPAN_STATES[each.state], TIERS[each.tier],
                     each.eta_us / 1e6) for each in native]

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
        """Returns once so many blocks (None: all) may be read; NotFound if they will not come, Gone
        if the lease is not valid any more, Busy if they have not come yet. What is read by a view
        was right if `is_valid` still holds afterwards; copy_into and copy_part see to that."""
        count = self.block_count if block_count is None else block_count
        client = self.group.client
        timeout_s = client.default_timeout_s if timeout_s is None else timeout_s
        doing = f"waiting for {count} blocks"
        self._must_live(doing)
        status = lib.terrace_wait_ready(client.handle, self.native, number("block_count", count),
                                        microseconds(timeout_s))
        if status == _BUSY:
            raise self.late(count, timeout_s)
        self._check(status, doing)

    def late(self, block_count: Optional[int], timeout_s: float) -> TerraceError:
        """What wait_ready raises at its deadline."""
        count = self.block_count if block_count is None else block_count
        return from_status(_BUSY, f"waiting for {count} blocks",
                           f"{self.ready_count} have come within {timeout_s} s; the others may "
                           "still come")

    def is_in_device(self, block: int) -> bool:
        """Whether it was answered in the memory of the client's device (ACQUIRE_DEVICE)."""
        return bool(lib.terrace_read_lease_is_in_device(self.native, number("block", block)))

    def slot(self, block: int, member: int = 0) -> Optional[memoryview]:
        """A member's slot in shared memory, read-only; None if it is not ready or has none. In a
        forked child that memory is not there: to touch a view of its parent's ends it. Gone once
        the lease is released, Invalid for a block that it has not, Unsupported where it lies
        in the memory of a GPU: PagedCache.load reads it there."""
        slot_bytes = ctypes.c_uint64()
        self._member(member)
        self._must_be_held()
        self._must_have("a slot", "blocks", number("block", block), 1, self.block_count)
        if self.group.client.device_backend != "host" and self.is_in_device(block):
            raise Unsupported(f"block {block} lies in the memory of a GPU, which this process's "
                              "threads do not reach: PagedCache.load copies it into pages")
        address = lib.terrace_read_lease_slot(self.native, number("block", block),
                                              number("member", member), ctypes.byref(slot_bytes))
        view = self._export(address, slot_bytes.value)
        return None if view is None else view.toreadonly()

    def part(self, block: int, part: int, member: int = 0) -> Optional[memoryview]:
        """One part of a slot, read-only; None where slot() is, and refused where that is."""
        space = self._member(member)
        view = self.slot(block, member)
        first = space.part_offset(part)
        return None if view is None else view[first:first + space.part_bytes[part]]

    def is_part_ready(self, block: int, part: int, member: int = 0) -> bool:
        """Whether one part may be read already: of a ready block each; of one that is coming what
        has come, if it was asked for with ACQUIRE_FOLLOW or ACQUIRE_BY_PARTS."""
        return bool(lib.terrace_read_lease_is_part_ready(
            self.native, number("block", block), number("member", member), number("part", part)))

    def copy_part(self, block: int, part: int, into: Any, member: int = 0) -> None:
        """Copies one part into a buffer of its size. Busy if it is not ready yet; Gone, and the
        bytes are not to be used, if the lease was not valid throughout."""
        self._member(member)
        doing = f"copying part {part} of block {block}"
        address, byte_count = _place_of(into, True, doing)
        self._must_have(doing, "blocks", number("block", block), 1, self.block_count)
        self._check(
            lib.terrace_read_lease_copy_part(self.native, number("block", block),
                                             number("member", member), number("part", part),
                                             address, byte_count), doing, _ON_DEVICE)

    def chunk_position(self, block: int, member: int = 0) -> int:
        """Of a block of chunks: where its first token stood when it was computed."""
        self._member(member)
        found = ctypes.c_uint32()
        doing = f"reading the header of block {block}"
        self._must_have(doing, "blocks", number("block", block), 1, self.block_count)
        self._check(
            lib.terrace_read_lease_chunk_position(self.native, number("block", block),
                                                  number("member", member), ctypes.byref(found)),
            doing, _ON_DEVICE)
        return found.value

    def copy_into(self, into: Any, *, first_block: int = 0, block_count: Optional[int] = None,
                  member: int = 0) -> None:
        """Copies blocks into `into`: one buffer a part or one a block in a list, or one buffer for
        all. Gone, and the bytes are not to be used, if the lease was not valid throughout."""
        self._must_live("copying blocks")
        first_block = number("first_block", first_block)
        count = number("block_count",
                       self.block_count - first_block if block_count is None else block_count)
        pointers = buffers.pointers_to_parts(into, self._member(member).engine_part_bytes, count,
                                             True)
        doing = f"copying {count} blocks"
        self._must_have(doing, "blocks", first_block, count, self.block_count)
        self._check(
            lib.terrace_read_lease_copy_blocks(self.native, number("member", member), first_block,
                                               count, pointers), doing, _ON_DEVICE)

    def release(self, end_reason: str = "unknown") -> None:
        """Ends the lease, once the last view of it is gone."""
        if end_reason not in END_REASONS:
            raise Invalid(f"end_reason is {end_reason!r}: use one of {END_REASONS}")
        self._end_reason = END_REASONS.index(end_reason)
        self._end()

    def _finish(self) -> None:
        lib.terrace_read_lease_release(self.native, self._end_reason)


class _StatusNames(Dict[int, str]):
    """By code, as far as they were asked for."""

    def __missing__(self, code: int) -> str:
        name = self[code] = lib.terrace_status_name(code).decode()
        return name


_status_names = _StatusNames()


def _reserved_key(native: Any) -> ReservedKey:
    status = _status_names[native.status]
    return ReservedKey(status, native.writer_age_ms if status == "busy" else 0, native.commit_id,
                       status == "no space" and native.writer_age_ms != 0)


class WriteLease(_Lease):
    """The right to write reserved blocks. A context manager that aborts what was not committed."""

    _native_type = _native.WriteLease

    def __len__(self) -> int:
        return lib.terrace_write_lease_key_count(self.native)

    def __iter__(self) -> Iterator[ReservedKey]:
        return map(_reserved_key, self._keys())

    def _keys(self) -> Any:
        count = len(self)
        keys = (_native.ReservedKey * count)()
        lib.terrace_write_lease_keys(self.native, keys, count)
        return keys

    def key(self, index: int) -> ReservedKey:
        """What became of one key of the reserve."""
        self._must_live("looking at a key")
        found = _native.ReservedKey()
        status = lib.terrace_write_lease_key(self.native, number("index", index),
                                             ctypes.byref(found))
        if status:
            raise from_status(status, f"key {index} of {len(self)}")
        return _reserved_key(found)

    @property
    def statuses(self) -> List[str]:
        """What became of each key, as ReservedKey.status: of thousands, much sooner than one after
        another. In a lease that was joined all keys but the reserved ones are "exists"; of one that
        has ended there are none."""
        return [_status_names[code] for code in self._words(0)]

    @property
    def is_passed_by(self) -> bool:
        """Some key is, as ReservedKey.is_passed_by."""
        return any(age and code == _NO_SPACE
                   for code, age in zip(self._words(0), self._words(1)))

    def _words(self, field: int) -> List[int]:
        """One 32-bit field of the native ReservedKeys."""
        words = ctypes.sizeof(_native.ReservedKey) // 4
        found: List[int] = memoryview(bytes(self._keys())).cast("i")[field::words].tolist()
        return found

    @property
    def reserved(self) -> List[int]:
        """Indexes of the keys that are ours to write."""
        return [i for i, code in enumerate(self._words(0)) if code == _OK]

    @property
    def is_valid(self) -> bool:
        """False once the daemon revoked it or went away: what is written from then on is lost."""
        return bool(lib.terrace_write_lease_is_valid(self.native))

    @property
    def token(self) -> Token:
        """For another process's Group.join_write."""
        native = lib.terrace_write_lease_token(self.native)
        return Token(native.high, native.low)

    def _must_take_bytes(self, doing: str, member: int) -> Space:
        """The member's Space. Invalid for chunks: they would have no header."""
        space = self._member(member)
        if space.is_of_chunks:
            raise Invalid(
                f"{doing}: member {member} has layout {space.layout!r}, whose blocks begin with a "
                "header of where they stood, and only copies of pages write it: use "
                "PagedCache.store(lease, pages, kv_written=..., positions=...)")
        return space

    def write(self, data: Any, *, first_key: int = 0, key_count: Optional[int] = None,
              member: int = 0) -> None:
        """Writes blocks: one buffer a part or one a block in a list, or one buffer for all. Keys
        that are not ours are passed over. Exists as write_part's. Unsupported if the Space's codec
        refused a part (a NaN): its block is not written, the others are. Invalid, as write_part and
        slot, for a Space of chunks: PagedCache.store writes their headers."""
        self._must_live("writing blocks")
        space = self._must_take_bytes("writing blocks", member)
        first_key = number("first_key", first_key)
        count = number("key_count", len(self) - first_key if key_count is None else key_count)
        pointers = buffers.pointers_to_parts(data, space.engine_part_bytes, count, False)
        doing = f"writing {count} blocks"
        self._must_have(doing, "keys", first_key, count, len(self))
        self._check(
            lib.terrace_write_lease_write_blocks(self.native, number("member", member), first_key,
                                                 count, pointers), doing,
            _NOT_ENCODED + ", the others are")

    def write_part(self, key: int, part: int, data: Any, member: int = 0) -> None:
        """Writes one part; whoever follows the block may read it after the next commit. Exists: a
        commit was given it, also one that ended with Busy, and its bytes stay."""
        doing = f"writing part {part} of key {key}"
        self._must_take_bytes(doing, member)
        address, byte_count = _place_of(data, False, doing)
        self._must_live(doing)
        self._check(
            lib.terrace_write_lease_write_part(self.native, number("key", key),
                                               number("member", member), number("part", part),
                                               address, byte_count), doing, _NOT_ENCODED)

    def slot(self, key: int, member: int = 0) -> Optional[memoryview]:
        """Where to write a block in place; then checksum(). None unless it is ours, Gone once the
        lease has ended, Invalid for a key that it has not. A part that a commit was given is not to
        be written any more: readers have these bytes."""
        slot_bytes = ctypes.c_uint64()
        self._must_take_bytes("a slot", member)
        self._must_be_held()
        self._must_have("a slot", "keys", number("key", key), 1, len(self))
        address = lib.terrace_write_lease_slot(self.native, number("key", key),
                                               number("member", member), ctypes.byref(slot_bytes))
        return self._export(address, slot_bytes.value)

    def checksum(self, key: int, part: int, member: int = 0) -> None:
        """Of a part that was written in place. Exists as write_part's."""
        self._must_live("checksum")
        self._check(
            lib.terrace_write_lease_checksum_part(self.native, number("key", key),
                                                  number("member", member), number("part", part)),
            "checksum")

    def mark_absent(self, key: int, member: int) -> None:
        """This windowed member has no bytes for this block."""
        self._must_live("marking a member absent")
        self._check(
            lib.terrace_write_lease_mark_absent(self.native, number("key", key),
                                                number("member", member)),
            "marking a member absent")

    def commit(self, timeout_s: Optional[float] = None, hints: Optional[Hints] = None) -> int:
        """Commits what was written; how many blocks became visible. After Busy it may still happen:
        a second commit then answers 0, and Group.match says what is there."""
        sealed = ctypes.c_uint32()
        client = self.group.client
        self._must_live("commit")
        status = lib.terrace_commit(client.handle, self.native, request_of(timeout_s, hints),
                                    ctypes.byref(sealed))
        if status == _EXISTS:  # of an entry, which has no sentence
            raise from_status(status, "commit")
        client.check(status, "commit")
        return sealed.value

    def abort(self) -> None:
        """Gives up what was not committed, once the last view of it is gone."""
        self._end()

    def _finish(self) -> None:
        lib.terrace_write_lease_abort(self.native)


Lease = Union[ReadLease, WriteLease]
