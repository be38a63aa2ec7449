"""Group: an opened SpaceGroup: the keys of its blocks, and the verbs on them.

Every verb answers by its deadline, timeout_s seconds from the call (None: the client's default),
and raises a class of Unavailable where it is refused for now.
"""
import ctypes
import reprlib
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

from . import _native
from .calls import (TIERS, BlockInfo, Evicted, Hints, Keys, Match, Token, microseconds,
                    native_of, request_of)
from .errors import Invalid, number, numbers, wrong_type
from .leases import ReadLease, WriteLease
from .space import SpaceGroup

if TYPE_CHECKING:
    from .client import Client

lib = _native.lib

# Flags of requests; docs/PROTOCOL.md says what they ask.
KEYS_FLAT, ACQUIRE_FOLLOW, EVICT_DRY_RUN, EVICT_SUBTREE, PIN_CLEAR = 1, 2, 8, 16, 32
ACQUIRE_BY_PARTS, ACQUIRE_DEVICE = 64, 128


def _key_of(name: str, value: Any) -> _native.Id:
    if not isinstance(value, _native.Id):
        raise wrong_type(name, value, "a key, such as one of Keys")
    return value


def _with_parent(request: Any, parent: Optional[_native.Id]) -> Any:
    """Of keys that are not a prompt's first."""
    if parent is not None:
        request.parent = _key_of("parent", parent)
    return request


def _tokens_of(tokens: Any) -> "ctypes.Array[Any]":
    """As u32; Invalid if a token is not one."""
    if isinstance(tokens, memoryview) or hasattr(tokens, "__array_interface__"):
        view = memoryview(tokens)
        if view.format == "I" and view.c_contiguous and view.ndim == 1:
            return (ctypes.c_uint32 * len(view)).from_buffer_copy(view)
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    try:
        if isinstance(tokens, (str, dict, set, frozenset)):
            raise TypeError("no list")
        if len(tokens) > 0 and not (min(tokens) >= 0 and max(tokens) < 1 << 32):
            raise Invalid(f"token {min(tokens) if min(tokens) < 0 else max(tokens)}: tokens go "
                          "from 0 to 2^32 - 1")
        return (ctypes.c_uint32 * len(tokens))(*tokens)
    except TypeError as error:
        raise Invalid(f"tokens are {type(tokens).__name__} {reprlib.repr(tokens)}: they must be a "
                      "list of whole numbers, as a tokenizer makes of a text") from error


def _id_of(token: Token) -> _native.Id:
    if not isinstance(token, Token):
        raise wrong_type("token", token, "a Token, as a lease's `token` is one")
    return _native.Id(number("token.low", token.low, 64), number("token.high", token.high, 64))


class Group:
    """An opened SpaceGroup: keys, and the verbs on them."""

    def __init__(self, client: "Client", spec: SpaceGroup, index: int):
        self.client = client
        self.spec = spec
        self.index = index
        self.block_tokens = spec.members[0].block_tokens

    def hash(self, tokens: Sequence[int], parent: Optional[_native.Id] = None) -> Keys:
        """One key per full block of `tokens` (ints below 2^32, or a buffer of them), which follow
        the block `parent`. Gone while there is no connection: keys need the domain's secret."""
        native = _tokens_of(tokens)
        count = len(native)
        keys = (_native.Id * (count // self.block_tokens))()
        found = ctypes.c_size_t()
        self.client.check(
            lib.terrace_hash_tokens(self.client.handle, self.index,
                                    None if parent is None
                                    else ctypes.byref(_key_of("parent", parent)), native,
                                    count, keys, len(keys), ctypes.byref(found)), "hashing tokens")
        return Keys(keys)

    def keys_of_digests(self, digests: Sequence[bytes]) -> Keys:
        """Keys of an engine's own digests, 16 to 32 bytes each, all of one length. Gone as of
        `hash`."""
        for digest in digests:
            if not isinstance(digest, (bytes, bytearray)):
                raise wrong_type("a digest", digest, "16 to 32 bytes")
        lengths = set(map(len, digests))
        if len(lengths) > 1:
            raise Invalid(f"digests of {sorted(lengths)} bytes: they must all have one length")
        if lengths and not 16 <= min(lengths) <= 32:
            raise Invalid(f"digests of {min(lengths)} bytes: they have 16 to 32")
        keys = (_native.Id * len(digests))()
        if digests:
            self.client.check(
                lib.terrace_hash_digests(self.client.handle, self.index, b"".join(digests),
                                         lengths.pop(), len(digests), keys), "hashing digests")
        return Keys(keys)

    def _keys(self, keys: Keys) -> Tuple[Any, ...]:
        return (self.client.handle, self.index, *native_of(keys))

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
                load_timeout_s: Optional[float] = None) -> ReadLease:
        """Pins the prefix that is there; of 0 blocks, a miss. Blocks below DRAM may still be
        coming, until load_timeout_s (None: 10 s): ReadLease.wait_ready."""
        request = _with_parent(
            request_of(timeout_s, hints, member_mask=member_mask, flags=flags,
                       first_position=first_position,
                       load_deadline_us=microseconds(load_timeout_s)), parent)
        lease = ReadLease(self)
        self.client.check(lib.terrace_acquire(*self._keys(keys), request, lease.native), "acquire")
        return lease

    def join_read(self, token: Token, member_mask: int = 0, *, flags: int = 0) -> ReadLease:
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
                event_hashes: Optional[Sequence[int]] = None) -> WriteLease:
        """The right to write those blocks that nobody has or writes. ReadOnly for a reader."""
        request = _with_parent(request_of(timeout_s, hints, member_mask=member_mask, flags=flags,
                                          first_position=first_position), parent)
        if event_hashes is not None:
            if len(event_hashes) != len(keys):
                raise Invalid(f"{len(event_hashes)} event hashes for {len(keys)} keys")
            request.event_hashes = numbers("an event hash", event_hashes)
        lease = WriteLease(self)
        self.client.check(lib.terrace_reserve(*self._keys(keys), request, lease.native), "reserve",
                          for_writers=True)
        return lease

    def join_write(self, token: Token, member_mask: int = 0) -> WriteLease:
        """Lets a rank write and commit its own members."""
        lease = WriteLease(self)
        self.client.check(
            lib.terrace_join_write(self.client.handle, self.index,
                                   _id_of(token), number("member_mask", member_mask, 64),
                                   lease.native),
            "joining a write lease", for_writers=True)
        return lease

    def touch(self, keys: Keys, timeout_s: Optional[float] = None,
              hints: Optional[Hints] = None) -> None:
        """Makes the blocks recent, and says of them what hints say."""
        self.client.check(lib.terrace_touch(*self._keys(keys), request_of(timeout_s, hints)),
                          "touch")

    def query(self, keys: Keys, timeout_s: Optional[float] = None) -> List[BlockInfo]:
        """One answer a key."""
        found = (_native.QueriedBlock * native_of(keys)[1])()
        self.client.check(lib.terrace_query(*self._keys(keys), request_of(timeout_s), found),
                          "query")
        return [BlockInfo(("absent", "reserved", "sealed")[block.state],
                          tuple(t for i, t in enumerate(TIERS) if block.tier_mask >> i & 1),
                          block.priority, bool(block.flags & 1), bool(block.flags & 2),
                          block.lease_count, block.commit_id, bool(block.flags & 4))
                for block in found]

    def wait_persisted(self, keys: Keys, timeout_s: Optional[float] = None) -> None:
        """Returns once a crash cannot lose them. Busy at the deadline."""
        self.client.check(lib.terrace_wait_persisted(*self._keys(keys), request_of(timeout_s)),
                          "waiting until it is persisted")

    def evict(self, keys: Keys, *, with_descendants: bool = False, dry_run: bool = False,
              timeout_s: Optional[float] = None) -> Evicted:
        """Drops the blocks from every tier, so that no crash brings them back. No keys are no
        blocks, as of a prompt shorter than one: reset() forgets the group. with_descendants: and
        what continues them; of a key that is not here, whatever of the group has lost its parent
        and may continue it."""
        if native_of(keys)[1] == 0:
            return Evicted(0, 0, 0)
        found = _native.EvictResult()
        request = request_of(timeout_s, flags=(EVICT_SUBTREE if with_descendants else 0)
                             | (EVICT_DRY_RUN if dry_run else 0))
        self.client.check(lib.terrace_evict(*self._keys(keys), request, found), "evict",
                          for_writers=True)
        return Evicted(found.block_count, found.byte_count, found.skipped_count)

    def pin(self, keys: Keys, *, is_pinned: bool = True, ttl_s: int = 0,
            timeout_s: Optional[float] = None) -> int:
        """Keeps the blocks until they are unpinned or, after ttl_s, forgotten (0: never). How many
        there were."""
        request = request_of(timeout_s, Hints(ttl_s=ttl_s), flags=0 if is_pinned else PIN_CLEAR)
        found = ctypes.c_uint32()
        self.client.check(lib.terrace_pin(*self._keys(keys), request, found), "pin",
                          for_writers=True)
        return found.value

    def reset(self) -> None:
        """Forgets the whole group, for everybody on this host, and what any host has stored of it
        in the shared tier. Where weights change see docs/PROTOCOL.md, Epochs."""
        self.client.check(lib.terrace_reset(self.client.handle, self.index), "reset",
                          for_writers=True)
