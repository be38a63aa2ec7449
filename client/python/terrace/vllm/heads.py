"""Blocks that instances of other numbers of tensor parallel ranks share: `head_units` of the extra
configuration, the number of units that a model's KV heads are cut into.

A member of the SpaceGroup is then a unit of heads, not a rank's share, so the group is one for all:
of 8 units a rank of 4 writes and reads two, a rank of 2 four. Where there are more ranks than KV
heads vLLM gives several in a row the same head: the first of them writes it, all of them read it.

Numbers of heads are known apart as a codec knows them (coded.py). vLLM's CPU kernels pack a head's
tokens as they please, but each head by itself: what they have packed is shared as it is, by
instances of one version and the same instructions.
"""
import hashlib
from typing import Any, List, NamedTuple, Optional

from . import drafts, kinds
from .coded import KERNELS, Asked, CodedPages, refusal_of_configuration
from .messages import GroupLayout

MEMBERS_MAX = 64
_PACKED = "CPU_ATTN"


def asked_by(unit_count: Any) -> Asked:
    return Asked("head_units", unit_count, (*KERNELS, _PACKED))


class Units(NamedTuple):
    """What a model's KV heads are cut into, and how many tensor parallel ranks have them."""
    unit_count: int
    kv_heads: int
    rank_count: int

    @property
    def head_count(self) -> int:
        """Of one unit."""
        return self.kv_heads // self.unit_count

    def cut(self, layout: GroupLayout, kernels: str, packing: str) -> None:
        """Makes of each rank's share these units. packing: what packed bytes depend on."""
        layout.fields.update(kv_heads=self.head_count, tp_size=self.unit_count)
        if kernels == _PACKED:
            said = f"{layout.fields['salt']}-{kernels}-{packing}"
            layout.fields["salt"] = hashlib.sha256(said.encode()).hexdigest()[:32]
        layout.rank_count, layout.unit_ranks = self.unit_count, self.rank_count

    def parts(self, layout: GroupLayout, pages: CodedPages, rank: int) -> List[CodedPages]:
        """Of a rank's pages its units."""
        return [pages.of_heads(i * self.head_count, self.head_count)
                for i in range(len(layout.shares_of(rank)))]


def units_of(unit_count: Any, config: Any) -> Optional[Units]:
    """REQUIRES: no refusal."""
    if unit_count is None:
        return None
    return Units(unit_count, config.model_config.get_total_num_kv_heads(),
                 config.parallel_config.tensor_parallel_size)


def refusal_of(unit_count: Any, config: Any, kv_cache_config: Any) -> Optional[str]:
    """Why blocks of such a model are not cut by heads."""
    if unit_count is None:
        return None
    if isinstance(unit_count, bool) or not isinstance(unit_count, int) or unit_count < 1:
        return (f"head_units is {unit_count!r}: it is a whole number that divides the model's KV "
                "heads, a multiple of every tensor_parallel_size that shall share")
    asked = asked_by(unit_count)
    why = refusal_of_configuration(asked, config, kv_cache_config)
    if why is not None:
        return why
    draft = drafts.method_of(config)
    if draft:
        return asked.leave_out(f"there is a draft ({draft}) with heads of its own: that is not "
                               "served yet")
    if not hasattr(config.model_config, "get_total_num_kv_heads"):
        return asked.leave_out("this vLLM does not say how many KV heads the model has")
    groups = kv_cache_config.kv_cache_groups
    return (_refusal_of_heads(asked, units_of(unit_count, config), groups)
            or _refusal_of_members(asked, config, groups))


def _refusal_of_heads(asked: Asked, units: Any, groups: Any) -> Optional[str]:
    heads, ranks = units.kv_heads, units.rank_count
    if heads % units.unit_count != 0:
        return asked.refusal(f"the model has {heads} KV heads, which it does not divide: use a "
                             "divisor that is a multiple of every tensor_parallel_size that shall "
                             "share")
    is_whole = units.unit_count % ranks == 0 or (units.unit_count == heads and ranks % heads == 0)
    if not is_whole:
        return asked.refusal(f"tensor_parallel_size is {ranks}: a rank would have a part of a "
                             f"unit; use {heads}, or another divisor of the model's {heads} KV "
                             f"heads that is a multiple of {ranks}")
    for group in groups:
        specs = kinds.specs_of(group)
        if len(specs) > 1:
            return asked.leave_out(f"a KV cache group has layers of {len(specs)} sizes: that is "
                                   "not served yet")
        found, expected = specs[0].num_kv_heads, max(1, heads // ranks)
        if found != expected:
            return asked.leave_out(
                f"a KV cache group has {found} heads a rank, where the model's {heads} KV heads "
                f"make {expected}: layers of other heads are not served yet")
    return None


def _refusal_of_members(asked: Asked, config: Any, groups: Any) -> Optional[str]:
    """Each group of each stage has its units, and models of windows alone a marker."""
    stages = getattr(config.parallel_config, "pipeline_parallel_size", 1)
    marker = int(all(map(kinds.has_window, groups)))
    count = asked.value * stages * len(groups) + marker
    if count <= MEMBERS_MAX:
        return None
    return asked.refusal(
        f"with {stages} pipeline stages and {len(groups)} KV cache groups it makes {count} members "
        f"of a block, the limit is {MEMBERS_MAX}: use at most "
        f"{(MEMBERS_MAX - marker) // (stages * len(groups))}")
