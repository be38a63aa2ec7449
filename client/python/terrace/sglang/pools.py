"""SGLang's host pools: where pages lie, how they are cut up, and what their Spaces are."""
import dataclasses
import hashlib
from typing import Any, List, Optional, Sequence, Tuple

import numpy

from ..buffers import Addresses
from ..group import Group
from ..pages import PARTS_MAX
from ..space import Space

KV = "kv"  # SGLang's name of the attention's own pool


@dataclasses.dataclass
class Pool:
    """A host pool, and the pieces a share of a page lies in. A page has shard_count shares: more
    than one if instances of more ranks hold its heads apart."""
    name: str
    host: Any
    part_bytes: Tuple[int, ...] = ()  # of a share, in the order in which its pieces lie
    shard_count: int = 1
    groups: Sequence[Group] = ()  # one a share

    def pieces(self, host_indices: Any) -> Tuple[List[int], List[int]]:
        """Pointers and sizes: page by page, share by share."""
        if self.shard_count == 1:
            return self.host.get_page_buffer_meta(host_indices)
        return self.host.get_split_heads_page_buffer_meta(host_indices, self.shard_count)

    def measure(self) -> Optional[str]:
        """Asks the host pool how a page is cut up. Why it cannot be served; None if it can."""
        try:
            import torch  # pylint: disable=import-outside-toplevel

            _, sizes = self.pieces(torch.arange(page_size_of(self.host)))
        except Exception as error:  # pylint: disable=broad-except
            return f"the host pool says nothing of its pages: {type(error).__name__}: {error}"
        self.part_bytes = tuple(int(n) for n in sizes[:len(sizes) // self.shard_count])
        if len(self.part_bytes) > PARTS_MAX:
            return (f"a page lies in {len(sizes)} pieces, the limit is {PARTS_MAX}: use "
                    "--hicache-mem-layout page_first")
        return None

    def space(self, config: Any, revision: str, shard: int) -> Space:
        """Of one share. config: SGLang's HiCacheStorageConfig."""
        host = self.host
        # All ranks have the same bytes; of the other pools each has its own share.
        is_latent = bool(config.is_mla_model) and self.name == KV
        layout = (f"sglang-{getattr(host, 'layout', '?')}-{type(host).__name__}-"
                  f"{getattr(host, 'storage_format_tag', None) or 'plain'}-"
                  f"cp{config.attn_cp_rank}of{config.attn_cp_size}-"
                  f"dcp{getattr(config, 'dcp_rank', 0)}of{getattr(config, 'dcp_size', 1)}"
                  + ("" if self.name == KV else f"-{self.name}"))
        return Space(
            model=str(config.model_name), revision=revision, layout=layout,
            dtype=str(getattr(host, "dtype", "bytes")).replace("torch.", ""),
            layers=int(getattr(host, "layer_num", 1) or 1),
            kv_heads=int(getattr(host, "head_num", 1) or 1) // self.shard_count,
            head_size=int(getattr(host, "head_dim", 0) or self.part_bytes[0]),
            block_tokens=int(page_size_of(host)), part_bytes=self.part_bytes,
            attention="mla" if is_latent else "gqa",
            tp_rank=0 if is_latent else config.tp_rank * self.shard_count + shard,
            tp_size=1 if is_latent else config.tp_size * self.shard_count,
            pp_rank=config.pp_rank, pp_size=config.pp_size)

    def addresses(self, shard: int, host_indices: Any, page_count: int) -> Addresses:
        """Of every piece of one share of these pages, page by page."""
        pointers, sizes = self.pieces(host_indices)
        if tuple(sizes) != self.part_bytes * (page_count * self.shard_count):
            raise ValueError(f"{page_count} pages in {len(sizes)} pieces of {set(sizes)} bytes, "
                             f"expected {self.part_bytes} each")
        by_share = numpy.array(pointers, numpy.uint64).reshape(page_count, self.shard_count, -1)
        return Addresses(numpy.ascontiguousarray(by_share[:, shard]).reshape(-1))


def name_of(value: Any) -> str:
    """Of a pool or a policy: an enum in SGLang."""
    return str(getattr(value, "value", value))


def page_size_of(host: Any) -> int:
    """Tokens that a key stands for. With decode context parallel the pool's own are one shard's."""
    return int(getattr(host, "logical_page_size", 0) or getattr(host, "page_size", 1) or 1)


def event_hash(key: str) -> int:
    """The number by which SGLang's KV events name a page: the high 64 bits of its hash."""
    return int.from_bytes(digest_of(key)[:8], "big")


def digest_of(key: str) -> bytes:
    """32 bytes: SGLang's page hashes are sha256 in hex; whatever else comes is hashed."""
    try:
        digest = bytes.fromhex(key)
        if len(digest) == 32:
            return digest
    except ValueError:
        pass
    return hashlib.sha256(key.encode()).digest()
