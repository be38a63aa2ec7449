"""Pages: where the bytes of an engine's KV blocks lie, found from shape and strides alone.

A tensor holds one layer's blocks. Whatever the order of its dimensions, a block's bytes are runs of
contiguous memory, the same for every block and a stride apart: one run where the block dimension is
outermost, two where K and V are planes of their own.
"""
import ctypes
import itertools
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy

from .buffers import Addresses
from .errors import Invalid, Unsupported, number

PARTS_MAX = 128


class Run(NamedTuple):
    """byte_count bytes of block b at address + b * stride."""
    address: int
    stride: int
    byte_count: int


def runs_of_tensor(tensor: Any, block_count: int) -> List[Run]:
    """The runs of one layer. The block dimension is the first one whose size is block_count, or a
    multiple of it where an engine's kernels use smaller blocks."""
    item = tensor.element_size()
    shape, strides = list(tensor.shape), [s * item for s in tensor.stride()]
    where = next((i for i, n in enumerate(shape) if n >= block_count and n % block_count == 0),
                 None)
    if where is None:
        raise Invalid(f"no dimension of {tuple(shape)} holds {block_count} blocks")
    ratio = shape[where] // block_count
    block_stride = strides[where] * ratio
    inner = [(n, s) for i, (n, s) in enumerate(zip(shape, strides)) if i != where and n > 1]
    if ratio > 1:
        inner.append((ratio, strides[where]))
    inner.sort(key=lambda dimension: dimension[1])
    byte_count = item
    while inner and inner[0][1] == byte_count:
        byte_count *= inner.pop(0)[0]
    if byte_count > block_stride:
        raise Invalid(f"blocks of {tuple(shape)} with strides {tuple(strides)} overlap")
    inner.reverse()  # the outermost first, as a reader would count them
    offsets = [sum(index * stride for index, (_, stride) in zip(indexes, inner))
               for indexes in itertools.product(*(range(n) for n, _ in inner))]
    return [Run(tensor.data_ptr() + offset, block_stride, byte_count) for offset in offsets]


class Pages:
    """The blocks of all layers: the parts they are stored in, and their addresses."""

    def __init__(self, tensors: Dict[str, Any], layer_names: Sequence[str], block_count: int):
        self.block_count = block_count
        self._tensors = [tensors[name] for name in layer_names]  # stay while they are copied
        self.runs: List[Run] = []
        seen = set()
        for name in layer_names:
            tensor = tensors[name]
            if tensor.data_ptr() in seen:  # layers that share their memory
                continue
            seen.add(tensor.data_ptr())
            self.runs += runs_of_tensor(tensor, block_count)
        if len(self.runs) > PARTS_MAX:
            raise Invalid(f"a block of {len(layer_names)} layers lies in {len(self.runs)} pieces, "
                          f"the limit is {PARTS_MAX}: use a layout with the block outermost")
        self._addresses = numpy.array([run.address for run in self.runs], numpy.uint64)
        self._strides = numpy.array([run.stride for run in self.runs], numpy.uint64)

    def check_uniform(self) -> None:
        """Unsupported unless all runs are alike, as copies by a device take them."""
        for run in self.runs:
            if run[1:] != self.runs[0][1:]:
                raise Unsupported(f"runs differ: {run.byte_count} bytes every {run.stride} beside "
                                  f"{self.runs[0].byte_count} every {self.runs[0].stride}: a "
                                  "device copies layers of one shape")

    @property
    def part_bytes(self) -> Tuple[int, ...]:
        """One part a run."""
        return tuple(run.byte_count for run in self.runs)

    def addresses(self, block_ids: Sequence[int]) -> Addresses:
        """Of every part of these blocks."""
        ids = numpy.array([number("block", block) for block in block_ids], numpy.uint64)
        if len(ids) and int(ids.max()) >= self.block_count:
            raise Invalid(f"block {int(ids.max())} of {self.block_count}")
        return Addresses(numpy.ascontiguousarray(
            self._addresses[None, :] + ids[:, None] * self._strides[None, :]).reshape(-1))

    def read(self, block_id: int) -> bytes:
        """A block's bytes, part behind part."""
        return b"".join(ctypes.string_at(run.address + block_id * run.stride, run.byte_count)
                        for run in self.runs)
