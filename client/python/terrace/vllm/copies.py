"""How a vLLM worker's copies are made, by where its KV cache lies.

In host memory the thread that asks makes them at once. On a GPU, and on threads of their own where
these are asked for, they are queued: a store runs beside the steps that follow it, ordered behind
the kernels that wrote its blocks; only a step that is about to write to blocks that are still being
copied (a fence) lets the engine's stream wait for them. docs/DEVICE.md has the edges.
"""
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..client import Client
from ..errors import Exists, TerraceError
from ..leases import ReadLease, WriteLease
from ..paged import HOST, PAGES_PER_CALL_MAX, Copy, Device, Edge, PagedCache
from ..pages import Pages
from .messages import NO_BLOCK


class HostEngine:
    """An engine whose steps are over when its hooks are called."""

    def edge(self) -> Edge:
        return HOST

    def mark(self) -> Callable[[], None]:
        return lambda: None


class CudaEngine:
    """An engine that queues its kernels on PyTorch's current stream of one GPU."""

    def __init__(self, device: Any):
        self._device = device

    def _stream(self) -> Any:
        import torch  # pylint: disable=import-outside-toplevel

        return torch.cuda.current_stream(self._device)

    def edge(self) -> Edge:
        """Its kernels up to now, or from now on."""
        return self._stream()

    def mark(self) -> Callable[[], None]:
        """A function that waits for the kernels that are queued by now."""
        import torch  # pylint: disable=import-outside-toplevel

        event = torch.cuda.Event(blocking=True)
        event.record(self._stream())
        return event.synchronize


class InStep:
    """Copies by the thread that asks. pages: by the member of the SpaceGroup that they are."""

    def __init__(self, pages: Dict[int, Pages]):
        self.pages = pages

    def store(self, lease: WriteLease, member: int, block_ids: Sequence[int],
              reserved: Sequence[int]) -> List[Copy]:
        """Block i is the lease's key i; `reserved` are those that are ours to write."""
        for first, count in _ranges([i for i in reserved if block_ids[i] != NO_BLOCK]):
            lease.write(self.pages[member].addresses(block_ids[first:first + count]),
                        first_key=first, key_count=count, member=member)
        return []

    def load(self, lease: ReadLease, member: int, block_ids: Sequence[int], _timeout_s: float
             ) -> None:
        """The lease's first blocks, which are ready."""
        for first, count in _ranges([i for i, b in enumerate(block_ids) if b != NO_BLOCK]):
            lease.copy_into(self.pages[member].addresses(block_ids[first:first + count]),
                            first_block=first, block_count=count, member=member)

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def fence(self, copy: Copy) -> None:
        raise AssertionError(f"{copy} is none of ours")

    def close(self) -> None:
        return


class Queued:
    """Copies by a device. Made at the first of them, when the engine has captured its graphs: what
    is made here would be in a capture's way. caches: what makes them, by the member of the
    SpaceGroup that they are."""

    def __init__(self, client: Client, device: Device, engine: Any,
                 caches: Dict[int, Callable[[], PagedCache]]):
        self.engine = engine
        if device.backend != "host":
            try:
                client.pin_arena(device)
            except Exists:
                pass  # by a first attempt, which had no room for what follows
        self._caches = {member: make() for member, make in caches.items()}

    def store(self, lease: WriteLease, member: int, block_ids: Sequence[int],
              _reserved: Sequence[int]) -> List[Copy]:
        """Copies that are under way: somebody has to poll them to their end."""
        copies: List[Copy] = []
        try:
            for first in range(0, len(block_ids), PAGES_PER_CALL_MAX):
                copies.append(self._caches[member].store(
                    lease, _pages(block_ids[first:first + PAGES_PER_CALL_MAX]), first_key=first,
                    member=member, kv_written=self.engine.edge()))
        except TerraceError:
            for copy in copies:
                copy.close()
            raise
        return copies

    def load(self, lease: ReadLease, member: int, block_ids: Sequence[int], timeout_s: float
             ) -> None:
        """After a mark has been waited for. Comes back, or raises, when nothing is under way."""
        for first in range(0, len(block_ids), PAGES_PER_CALL_MAX):
            with self._caches[member].load(
                    lease, _pages(block_ids[first:first + PAGES_PER_CALL_MAX]), first_block=first,
                    member=member, destination_free=HOST) as copy:
                copy.wait(timeout_s)

    def mark(self) -> Callable[[], None]:
        return self.engine.mark()

    def fence(self, copy: Copy) -> None:
        """The engine's next kernels wait for this store."""
        copy.page_reuse(self.engine.edge())

    def close(self) -> None:
        for cache in self._caches.values():
            cache.close()


def _pages(block_ids: Sequence[int]) -> List[Optional[int]]:
    return [None if block_id == NO_BLOCK else block_id for block_id in block_ids]


def _ranges(indexes: Sequence[int]) -> List[List[int]]:
    """[first, count] of every run of successive indexes."""
    found: List[List[int]] = []
    for index in indexes:
        if found and sum(found[-1]) == index:
            found[-1][1] += 1
        else:
            found.append([index, 1])
    return found
