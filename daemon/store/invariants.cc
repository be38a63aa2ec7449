#include "daemon/store/invariants.h"

#include <vector>

#include "daemon/store/store_rooms.h"
#include "terrace/check.h"

namespace terrace {

namespace {

class InvariantCheck {
 public:
  explicit InvariantCheck(const DomainRooms& rooms) : rooms_(rooms), d_(rooms.domain) {}

  // What can be said of single blocks, for those that changed.
  void RunIncremental() {
    for (const BlockId id : d_.changes.Take()) {
      const Block& b = d_.block(id);
      const bool is_live = b.phase == BlockPhase::kReserved || b.phase == BlockPhase::kSealed;
      if (b.phase == BlockPhase::kUnused) continue;
      CheckCopies(id);
      CheckSlots(id);
      if (is_live) CheckChildren(id);
    }
  }

  void RunFull() {
    CountLeases();
    for (BlockId id = 0; id < d_.index.id_count(); ++id) CheckBlock(id);
    TERRACE_CHECK(reserved_count_ == d_.reserved_count, "Reserved blocks are counted");
    TERRACE_CHECK(leased_count_ == d_.index.runs().pinned_count(), "leased blocks are counted");
    TERRACE_CHECK(fenced_bytes_ == d_.fenced_bytes, "fenced bytes are counted");
    TERRACE_CHECK(pinned_bytes_ == d_.pinned_bytes, "pinned bytes are counted");
    slots_used_ +=
        static_cast<uint32_t>(d_.inherited.count()) + rooms_.adoption.parked_slot_count();
    TERRACE_CHECK(slots_used_ == d_.slots.usage().slots_used,
                  "I6: every used slot is a block's, a lease's or a predecessor's");
    for (uint32_t t = 0; t < d_.lower.size(); ++t) {
      TERRACE_CHECK(ready_below_[t] == d_.lower[t].block_count &&
                        persisted_below_[t] == d_.lower[t].persisted_block_count,
                    "copies below are counted");
    }
    d_.index.CheckInvariants();
    d_.slots.CheckInvariants();
  }

 private:
  struct Holds {
    uint32_t leases = 0;
    uint32_t fences = 0;
    uint32_t writers = 0;
  };

  void Count(const LeaseEntry& entry, bool is_write) {
    if (entry.block == kBlockNone) return;
    Holds& holds = holds_[entry.block];
    ++holds.leases;
    if (entry.flags & kEntryFenced) ++holds.fences;
    if (is_write) ++holds.writers;
  }

  void CountLeases() {
    holds_.resize(d_.index.id_count());
    for (LeaseId id = 0; id < d_.leases.id_count(); ++id) {
      const Lease& lease = d_.leases.at(id);
      if (lease.phase == LeasePhase::kUnused) continue;
      for (const LeaseEntry& entry : lease.entries) Count(entry, lease.kind == LeaseKind::kWrite);
      for (const LeaseEntry& entry : lease.left_behind) Count(entry, false);
      slots_used_ += static_cast<uint32_t>(lease.slots_kept.size());
    }
    for (const LeaseEntry& entry : d_.lease_backlog.entries()) Count(entry, false);
    for (const CutTail& tail : d_.lease_backlog.tails()) {
      for (const LeaseEntry& entry : tail.entries) Count(entry, false);
    }
  }

  void CheckBlock(BlockId id) {
    const Block& b = d_.block(id);
    const RadixIndex::Node& node = d_.index.node(id);
    const bool is_live = b.phase == BlockPhase::kReserved || b.phase == BlockPhase::kSealed;
    TERRACE_CHECK(node.is_live == is_live, "Reserved and Sealed blocks are found, others are not");
    if (b.phase == BlockPhase::kUnused) {
      TERRACE_CHECK(holds_[id].leases == 0, "I2: a held block is not reclaimed");
      return;
    }
    TERRACE_CHECK(d_.index.pin_count(id) == holds_[id].leases && b.fence_count == holds_[id].fences,
                  "I2: a block knows how many leases hold it");
    if (d_.index.pin_count(id) > 0) ++leased_count_;
    if (b.is_pinned) pinned_bytes_ += d_.groups[b.group_index]->block_bytes();
    if (b.fence_count > 0) fenced_bytes_ += d_.groups[b.group_index]->block_bytes();
    for (uint32_t t = 0; t < d_.lower.size(); ++t) {
      if (b.lower[t].state != CopyState::kReady) continue;
      ++ready_below_[t];
      if (b.lower[t].unpersisted_count == 0) ++persisted_below_[t];
    }
    if (b.phase == BlockPhase::kReserved) {
      ++reserved_count_;
      TERRACE_CHECK(holds_[id].writers == 1, "I4: a Reserved block has exactly one WriteLease");
      TERRACE_CHECK(b.dram.state == CopyState::kFilling, "I4: it is not Ready before it is Sealed");
    }
    CheckCopies(id);
    CheckSlots(id);
    if (is_live) CheckChildren(id);
  }

  void CheckCopies(BlockId id) const {
    const Block& b = d_.block(id);
    TERRACE_CHECK(rooms_.kv_events.IsTold(id), "routers were told where the block is");
    TERRACE_CHECK(d_.readiness[id] == kReadyForNone ||
                      d_.readiness[id] == rooms_.residency.candidates.ReadinessOf(id),
                  "what is called ready for somebody is");
    bool has_ready = b.dram.is_readable() || b.is_adopted() || b.is_arriving();
    uint32_t transfer_count = 0;
    for (uint32_t t = 0; t < d_.lower.size(); ++t) {
      has_ready |= b.lower[t].is_readable();
      if (b.lower[t].state == CopyState::kFilling) ++transfer_count;
    }
    if (b.dram.state == CopyState::kFilling && b.phase == BlockPhase::kSealed) ++transfer_count;
    TERRACE_CHECK(b.phase != BlockPhase::kSealed || has_ready,
                  "I1: a Sealed block has a Ready placement");
    TERRACE_CHECK(b.job_count >= transfer_count, "I3: what is Filling has a transfer");
    TERRACE_CHECK(b.dram.state != CopyState::kDraining || b.job_count > 0,
                  "I3: what is Draining has a transfer");
    if (b.phase == BlockPhase::kErased) {
      TERRACE_CHECK(d_.IsHeld(id), "an Erased block stays for its holders only");
    }
    TERRACE_CHECK(b.is_dram_candidate() == (b.dram.state == CopyState::kReady &&
                                            rooms_.residency.candidates.MayDropDram(id)),
                  "I5: candidates are what may be dropped");
    for (uint32_t t = 0; t < d_.lower.size(); ++t) {
      TERRACE_CHECK(b.is_lower_candidate(t) == rooms_.residency.candidates.MayDropLower(id, t),
                    "I5: candidates are what may be dropped");
    }
  }

  void CheckSlots(BlockId id) {
    const Block& b = d_.block(id);
    if (b.dram.row == kRowNone) return;
    const Group& group = *d_.groups[b.group_index];
    const std::span<const SlotRef> refs = group.slots().at(b.dram.row);
    for (size_t i = 0; i < refs.size(); ++i) {
      const bool has_bytes = (b.dram.member_mask >> group.locals()[i].member) & 1;
      TERRACE_CHECK(refs[i].address.has_bytes() == has_bytes,
                    "all local members have a slot, or none of the others");
      if (!has_bytes) continue;
      ++slots_used_;
      TERRACE_CHECK(d_.slots.IsCurrent(refs[i]), "I2: a block's slots are in use, by it");
      const SlotRow& row = d_.slots.row(refs[i]);
      TERRACE_CHECK(row.block.commit_id == b.commit_id, "I2: a block's slots are in use, by it");
      const SlotState expected = b.phase == BlockPhase::kReserved         ? SlotState::kReserved
                                 : b.phase == BlockPhase::kErased         ? SlotState::kFenced
                                 : b.dram.is_readable() || b.is_adopted() ? SlotState::kSealed
                                                                          : SlotState::kFilling;
      TERRACE_CHECK(row.state == expected, "the slot table says what the block is");
    }
  }

  void CheckChildren(BlockId id) const {
    const Block& b = d_.block(id);
    uint32_t dram_children = 0;
    uint32_t lower_children[kLowerTiersMax] = {};
    for (BlockId child = d_.index.node(id).first_child; child != kBlockNone;
         child = d_.index.node(child).next_sibling) {
      if (d_.block(child).dram.row != kRowNone) ++dram_children;
      for (uint32_t t = 0; t < d_.lower.size(); ++t) {
        if (d_.block(child).lower[t].row != kRowNone) ++lower_children[t];
      }
    }
    TERRACE_CHECK(dram_children == b.dram_children, "I5: children in DRAM are counted");
    for (uint32_t t = 0; t < d_.lower.size(); ++t) {
      TERRACE_CHECK(lower_children[t] == b.lower_children[t], "I5: children below are counted");
    }
  }

  const DomainRooms& rooms_;
  const CacheDomain& d_;
  std::vector<Holds> holds_;
  uint64_t reserved_count_ = 0;
  uint64_t leased_count_ = 0;
  uint64_t fenced_bytes_ = 0;
  uint64_t pinned_bytes_ = 0;
  uint32_t slots_used_ = 0;
  uint64_t ready_below_[kLowerTiersMax] = {};
  uint64_t persisted_below_[kLowerTiersMax] = {};
};

}  // namespace

void CheckInvariants(const DomainRooms& rooms, CheckScope scope) {
  InvariantCheck check(rooms);
  if (scope == CheckScope::kFull) {
    check.RunFull();
  } else {
    check.RunIncremental();
  }
}

}  // namespace terrace
