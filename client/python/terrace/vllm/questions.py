"""The keys of prompts, and what the daemon is asked about them."""
import dataclasses
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

from ..calls import Hints, Keys
from ..epochs import Weights, both, masked
from ..errors import Unavailable
from ..group import Group
from ..requests import Asker, Pending
from .adapters import Adapters
from .drafts import behind, is_told_apart, keyed

if TYPE_CHECKING:
    from .events import KvEvents


def event_hash(block_hash: bytes) -> int:
    """The number by which vLLM's KV events name a block: the low 64 bits of its hash."""
    return int.from_bytes(block_hash[-8:], "big")


@dataclasses.dataclass
class PromptKeys:
    """Keys of a prompt's first blocks, as far as they were needed. Kept: hashing a long prompt
    takes longer than the daemon's answer."""
    keys: Optional[Keys] = None
    made_of: Optional[Tuple[int, bytes, Sequence[bytes]]] = None  # daemon, mask, the last digest
    names: List[int] = dataclasses.field(default_factory=list)  # of KV events, of the same blocks
    told_count: int = 0  # of those whose facts KV events have


class Questions:
    """Of one scheduler. block_tokens: tokens of a block; hashes_per_block: vLLM's hashes of one,
    where they are finer; looks_ahead: a draft's: what is behind a block is part of its key.
    events: what routers are told, if they are."""

    def __init__(self, asker: Asker, adapters: Adapters, weights: Weights, *, block_tokens: int,
                 hashes_per_block: int, looks_ahead: bool = False,
                 events: Optional["KvEvents"] = None):
        self.asker = asker
        self.group: Group = asker.group
        self._adapters = adapters
        self._weights = weights
        self._block_tokens = block_tokens
        self._hashes_per_block = hashes_per_block
        self._looks_ahead = looks_ahead
        self._events = events

    def check_hashes(self, request: Any) -> None:
        """A hash of fewer tokens than a block has would be found by prompts that differ in it."""
        hash_tokens = self._block_tokens // self._hashes_per_block
        if len(request.block_hashes) * hash_tokens > request.num_tokens:
            raise ValueError(f"vLLM has {len(request.block_hashes)} block hashes of a prompt of "
                             f"{request.num_tokens} tokens, and one every {hash_tokens} were "
                             "expected")

    def block_count(self, request: Any, token_count: int) -> int:
        """Full blocks that can be shared: none while an adapter's weights are not known, and none
        of a session whose prompt grows: it puts other tokens where hashed ones were."""
        if getattr(request, "resumable", False):
            return 0
        if self._adapters.mask_of(request) is None:
            return 0
        if self._looks_ahead:
            token_count = min(token_count, request.num_tokens - 1)
            if not is_told_apart(request):
                return 0
        return min(token_count // self._block_tokens,
                   len(request.block_hashes) // self._hashes_per_block)

    def published_count(self, request: Any, block_count: int) -> int:
        """Fewer than there are while a draft model's own cache is behind."""
        published = getattr(request, "num_publishable_block_hashes", None)
        return (block_count if published is None
                else min(block_count, published // self._hashes_per_block))

    def _hashes(self, request: Any, first: int, last: int) -> List[bytes]:
        """One a block: the last of the finer hashes covers the whole prefix."""
        n = self._hashes_per_block
        hashes: List[bytes] = request.block_hashes[(first + 1) * n - 1:last * n:n]
        return hashes

    def _digests(self, request: Any, first: int, last: int) -> Sequence[bytes]:
        """What blocks are told apart by, whatever the weights."""
        hashes = self._hashes(request, first, last)
        if not self._looks_ahead:
            return hashes
        return keyed(hashes, [behind(request, (i + 1) * self._block_tokens)
                              for i in range(first, last)])

    def keys(self, request: Any, made: PromptKeys, first: int, last: int) -> Keys:
        """Of blocks [first, last) of a prompt, and kept in `made`. Gone without a daemon, whose
        secret they are of, and Unavailable where it is not certain what its adapter is."""
        boot_id = self.group.client.boot_id
        of_adapter = self._adapters.mask_of(request)
        if of_adapter is None:
            raise Unavailable("its adapter's weights are not known")
        mask = both(of_adapter, self._weights.mask)
        known = 0 if made.keys is None else len(made.keys)
        if known > 0 and made.made_of != (boot_id, mask, self._digests(request, known - 1, known)):
            made.keys, known = None, 0  # another daemon's secret, another prompt or epoch
            made.names, made.told_count = [], 0
        if known < last:
            digests = masked(self._digests(request, known, last), mask)
            more = self.group.keys_of_digests(digests)
            if self._events is not None:
                made.names += self._events.names(digests)
            made.keys = more if made.keys is None else made.keys + more
            made.made_of = (boot_id, mask, self._digests(request, last - 1, last))
        assert made.keys is not None
        return made.keys if (first, last) == (0, len(made.keys)) else made.keys[first:last]

    def ask(self, request: Any, made: PromptKeys, first: int, last: int, hints: Hints, *,
            is_store: bool) -> Pending:
        """Sends one question about blocks [first, last) of a prompt: what is there, or, for a
        store, which of them nobody has."""
        try:
            keys = self.keys(request, made, first, last)
            parent = self.keys(request, made, first - 1, first)[0] if first > 0 else None
        except Unavailable:
            return Pending(last - first, is_done=True)
        if not is_store:
            return self.asker.acquire(keys, hints, parent=parent, first_position=first)
        if self._events is None:
            names = [event_hash(h) for h in self._hashes(request, first, last)]
        else:
            names = made.names[first:last]
        return self.asker.reserve(keys, hints, parent=parent, first_position=first,
                                  event_hashes=names)

    def tell(self, request: Any, made: PromptKeys, last: int) -> None:
        """For routers: what the prompt's first `last` blocks are, which the daemon has, or will."""
        last = min(last, len(made.names))
        first = made.told_count
        if self._events is None or last <= first:
            return
        made.told_count = last
        before = max(0, first - 1)
        assert made.made_of is not None
        self._events.begin_epoch(self._weights.mask)
        self._events.learn(request, made.made_of[1], first, made.names[before:last],
                           self._hashes(request, before, last))
