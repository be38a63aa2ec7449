"""What the vLLM tier asks of the daemon: runs of chunks, one verb at a time."""
import dataclasses
import hashlib
import json
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional

from ..buffers import Addresses
from ..calls import Hints, Keys
from ..client import Client
from ..epochs import masked
from ..errors import Unavailable
from ..group import KEYS_FLAT, Group
from ..leases import ReadLease
from ..requests import STORE_TIMEOUT_S
from ..shelf import Shelf
from ..space import Space
from ..threads import LentMemory
from ..waiting import left_s

GROUP_BYTES = 4  # of a key: the number of its KV cache group, behind the block's hash


class Run(NamedTuple):
    """Successive chunks of one KV cache group. indexes: of the keys they were asked as. mask: of
    the epoch it was asked in, whatever it is when the daemon is."""
    group_index: int
    indexes: List[int]
    hashes: List[bytes]
    parent: Optional[bytes]  # hash of the chunk before, if that is known
    position: int  # of the first chunk in its prompt; -1: unknown, and the keys are no chain
    mask: bytes = b""
    hints: Optional[Hints] = None  # of what is stored

    def keys(self, group: Group) -> Keys:
        """Of its chunks."""
        return group.keys_of_digests(masked(self.hashes, self.mask))


def runs_of(keys: Collection[bytes], end_of: Callable[[bytes], Optional[int]],
            chunk_tokens: Dict[int, int]) -> List[Run]:
    """What may be asked together. end_of: the tokens up to a key's end."""
    placed = []
    for index, key in enumerate(keys):
        group = int.from_bytes(key[-GROUP_BYTES:], "big")
        end = end_of(key)
        size = chunk_tokens.get(group, 0)
        position = end // size - 1 if end is not None and size > 0 and end % size == 0 else -1
        placed.append((group, position, index, key[:-GROUP_BYTES]))
    runs: List[Run] = []
    for group, position, index, block_hash in sorted(placed, key=lambda p: p[:3]):
        last = runs[-1] if runs else None
        if last is not None and last.group_index == group and (
                position == last.position + len(last.indexes) if last.position >= 0
                else position < 0):
            last.indexes.append(index)
            last.hashes.append(block_hash)
            continue
        runs.append(Run(group, [index], [block_hash], None, position))
    return runs


class Chunks:
    """The daemon's side: groups, and verbs on runs. Threads of the tier's own call it. rows: the
    memory that chunks are copied to and from."""

    def __init__(self, client: Client, spaces: Dict[int, Space], rows: LentMemory, *,
                 timeout_s: float):
        self._shelf = Shelf(client, "vllm-tier", timeout_s)
        self._guarded = self._shelf.guarded
        self._spaces = spaces
        self._rows = rows
        self._timeout_s = timeout_s
        self._store_timeout_s = max(timeout_s, STORE_TIMEOUT_S)

    @property
    def is_there(self) -> bool:
        """Worth a question."""
        return self._shelf.is_there

    def _group(self, index: int, timeout_s: Optional[float] = None) -> Group:
        return self._shelf.group(self._spaces[index], timeout_s)

    @staticmethod
    def _place(group: Group, run: Run) -> Dict[str, Any]:
        if run.position < 0:
            return {"flags": KEYS_FLAT}
        parent = (None if run.parent is None
                  else group.keys_of_digests(masked([run.parent], run.mask))[0])
        return {"parent": parent, "first_position": run.position}

    def present(self, run: Run) -> List[bool]:
        """Which chunks are there: a leading run, and of the rest what is on this host."""

        def ask() -> List[bool]:
            group = self._group(run.group_index)
            keys = run.keys(group)
            count = group.match(keys, self._timeout_s, **self._place(group, run)).block_count
            rest = keys[count:]
            found = group.query(rest, self._timeout_s) if len(rest) > 1 else []
            return ([True] * count + [block.state == "sealed" for block in found]
                    + [False] * (len(rest) - len(found)))

        return self._guarded(ask, [False] * len(run.hashes))

    def acquire(self, run: Run, deadline: float) -> Optional[ReadLease]:
        """Pins leading chunks, which may come until the deadline from where they are. None: none.
        """

        def ask() -> Optional[ReadLease]:
            if left_s(deadline) == 0:
                return None
            group = self._group(run.group_index, min(self._timeout_s, left_s(deadline)))
            return group.acquire(run.keys(group), min(self._timeout_s, left_s(deadline)),
                                 load_timeout_s=left_s(deadline), **self._place(group, run))

        return self._guarded(ask, None)

    def copy(self, lease: ReadLease, addresses: Any) -> int:
        """Copies leading chunks that have come to these addresses; how many. The daemon is not
        asked."""
        count = lease.ready_count
        if count == 0:
            return 0
        try:
            with self._rows.used():
                lease.copy_into(Addresses(addresses[:count]), block_count=count)
        except Unavailable:
            return 0
        return count

    def store(self, run: Run, addresses: Any) -> bool:
        """Copies the chunks that nobody has; False if the daemon could not be told."""

        def copy() -> bool:
            if self._shelf.is_reader:
                return True
            group = self._group(run.group_index)
            keys = run.keys(group)
            with group.reserve(keys, self._store_timeout_s, run.hints, **self._place(group, run),
                               event_hashes=[int.from_bytes(h[-8:], "big") for h in run.hashes]
                               ) as lease:
                if lease.reserved:
                    with self._rows.used():
                        lease.write(Addresses(addresses))
                    lease.commit(self._store_timeout_s)
            return True

        return self._guarded(copy, False)

    def touch(self, run: Run) -> None:
        """Makes them recent."""

        def tell() -> None:
            group = self._group(run.group_index)
            group.touch(run.keys(group), self._timeout_s)

        self._guarded(tell, None)


def spaces_of(config: Any, revision: str, row_bytes: int) -> Dict[int, Space]:
    """A Space a KV cache group, by its number: everything that decides what a row's bytes are."""
    import vllm  # pylint: disable=import-outside-toplevel

    parallel: Any = config.parallel
    said = dataclasses.asdict(parallel) if hasattr(parallel, "__dataclass_fields__") else {}
    for name in list(said):  # replicas may share; so may other ranks where the bytes are the same
        if name == "rank" or name.startswith("data_parallel") or (
                said.get("is_parallelism_agnostic") and name.endswith("size")):
            del said[name]
    said.update(
        vllm=getattr(vllm, "__version__", "?"), tokens_per_hash=config.cache.tokens_per_hash,
        kv_cache_layout=str(getattr(config, "kv_cache_layout", None)),
        replicated_layout=getattr(config, "replicated_layout", False),
        canonical_layout=getattr(config, "canonical_layout", False),
        groups=[[g.tokens_per_block, list(g.layer_names)] for g in config.groups])
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]
    spaces = {}
    for index, group in enumerate(config.groups):
        number = getattr(group, "group_id", index)
        spaces[number] = Space(
            model=str(config.model.name), revision=revision, dtype=str(config.model.dtype),
            layout=f"vllm-tier-{digest}", layers=len(group.layer_names), kv_heads=1,
            head_size=1, block_tokens=group.tokens_per_block * config.cache.blocks_per_chunk,
            part_bytes=(row_bytes,), attention_group=number)
    return spaces
