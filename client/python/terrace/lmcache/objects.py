"""What LMCache's keys and memory objects are to the daemon: digests, and layouts of Spaces."""
import hashlib
import threading
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..buffers import address_of
from ..calls import Hints, Keys
from ..epochs import masked
from ..errors import Invalid, Unsupported
from ..group import Group

_PLACES_MAX = 1 << 18


class Kind(NamedTuple):
    """What has one layout, as far as keys tell."""
    model: str
    object_group: int


class Layout(NamedTuple):
    """Of a memory object. text: its tensors, one behind the other."""
    dtypes: str
    text: str
    byte_count: int


def layout_of(shapes: Iterable[Any], dtypes: Iterable[Any]) -> Optional[Layout]:
    """None: LMCache says nothing of it."""
    names, tensors, byte_count = [], [], 0
    for shape, dtype in zip(shapes, dtypes):
        count = 1
        for size in shape:
            count *= int(size)
        names.append(str(dtype).replace("torch.", ""))
        tensors.append(f"{names[-1]}[{','.join(str(int(size)) for size in shape)}]")
        byte_count += count * dtype.itemsize
    if not tensors:
        return None
    return Layout("+".join(dict.fromkeys(names)), "+".join(tensors), byte_count)


def layout_of_object(memory: Any) -> Layout:
    """Invalid if it holds other than what its shape says: a serde that compresses leaves less."""
    about = memory.metadata
    shapes = about.shapes if about.shapes is not None else [about.shape]
    dtypes = about.dtypes if about.dtypes is not None else [about.dtype]
    layout = layout_of(shapes, dtypes)
    if layout is None or layout.byte_count != memory.get_size() or layout.byte_count == 0:
        raise Invalid(f"a memory object of {memory.get_size()} bytes and shape "
                      f"{None if layout is None else layout.text}: objects of varying size, as a "
                      "serde leaves that compresses, are not stored")
    return layout


def address_of_object(memory: Any, layout: Layout, is_written: bool) -> int:
    """Where its bytes are; Unsupported of device memory."""
    raw = memory.raw_data
    if raw is None:
        raise Unsupported("a memory object without memory of this process")
    address, byte_count = address_of(raw, is_written)
    if byte_count < layout.byte_count:
        raise Invalid(f"a memory object of {byte_count} bytes for {layout.byte_count}")
    return address


def digest_of(key: Any) -> bytes:
    """All that LMCache's key says."""
    said = f"{key.model_name}\0{key.object_group_id}\0{key.kv_rank}\0{key.cache_salt}\0"
    return hashlib.sha256(b"terrace lmcache v1\0" + said.encode(errors="surrogatepass")
                          + key.chunk_hash).digest()


class Row(NamedTuple):
    """Successive keys of one prompt, rank and object group. indexes: of the keys as they were
    asked. position: of the first chunk in its prompt; -1: unknown, and the keys are no chain.
    mask: of the epoch it was asked in."""
    kind: Kind
    indexes: List[int]
    digests: List[bytes]
    parent: Optional[bytes]
    position: int
    mask: bytes = b""
    hints: Optional[Hints] = None

    def keys(self, group: Group) -> Keys:
        """As the daemon knows them."""
        return group.keys_of_digests(masked(self.digests, self.mask))

    def parent_in(self, group: Group) -> Any:
        """The key before the first one."""
        return (None if self.parent is None
                else group.keys_of_digests(masked([self.parent], self.mask))[0])

    def part(self, first: int, last: int) -> "Row":
        """Keys [first, last) of it."""
        return self._replace(
            indexes=self.indexes[first:last], digests=self.digests[first:last],
            parent=self.digests[first - 1] if first > 0 and self.position >= 0 else self.parent,
            position=self.position + first if self.position >= 0 else -1)


class Places:
    """Where in their prompts objects are, learned from lookups: LMCache asks for a whole prompt,
    and stores what was missing without a word of what stands before it."""

    def __init__(self) -> None:
        self._known: Dict[bytes, Tuple[Optional[bytes], int]] = {}
        self._learning = threading.Lock()

    def rows_of_prompts(self, keys: List[Any]) -> List[Row]:
        """Of a lookup: rows from their prompt's start on, one a rank and object group."""
        rows: List[Row] = []
        last: Any = None
        for index, key in enumerate(keys):
            digest = digest_of(key)
            said = (key.model_name, key.object_group_id, key.kv_rank, key.cache_salt)
            if said != last or digest in rows[-1].digests[-1:]:
                rows.append(Row(Kind(key.model_name, key.object_group_id), [], [], None, 0))
                last = said
            rows[-1].indexes.append(index)
            rows[-1].digests.append(digest)
        for row in rows:
            self._learn(row)
        return _together(rows)

    def _learn(self, row: Row) -> None:
        parent: Optional[bytes] = None
        with self._learning:
            for position, digest in enumerate(row.digests):
                self._known[digest] = (parent, position)
                parent = digest
            while len(self._known) > _PLACES_MAX:
                del self._known[next(iter(self._known))]

    def rows(self, keys: List[Any]) -> List[Row]:
        """Of what is stored or loaded, in any order: each as long as one chunk follows another."""
        placed = []
        for index, key in enumerate(keys):
            digest = digest_of(key)
            parent, position = self._known.get(digest, (None, -1))
            placed.append((position, index, Kind(key.model_name, key.object_group_id), digest,
                           parent))
        rows: List[Row] = []
        ends: Dict[Any, Row] = {}  # by what the next chunk's parent is; by kind of those unknown
        for position, index, kind, digest, parent in sorted(placed, key=lambda each: each[:2]):
            row = ends.pop(kind if position < 0 else parent, None)
            if row is None or row.kind != kind:
                row = Row(kind, [], [], parent, position)
                rows.append(row)
            row.indexes.append(index)
            row.digests.append(digest)
            ends[kind if position < 0 else digest] = row
        return rows


def _together(rows: List[Row]) -> List[Row]:
    """Rows of one chunk, such as a short prompt's of many ranks, are asked for at once."""
    kept: List[Row] = []
    flat: Dict[Kind, Row] = {}
    for row in rows:
        if len(row.digests) > 1:
            kept.append(row)
            continue
        if row.kind not in flat:
            flat[row.kind] = row._replace(position=-1)
            kept.append(flat[row.kind])
        elif row.digests[0] not in flat[row.kind].digests:  # few, or a benchmark
            flat[row.kind].indexes.extend(row.indexes)
            flat[row.kind].digests.extend(row.digests)
        else:
            kept.append(row)
    return kept
