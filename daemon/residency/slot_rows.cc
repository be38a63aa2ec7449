#include "daemon/residency/slot_rows.h"

#include <algorithm>

#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {

SlotIdentity SlotRows::Describe(BlockId id) const {
  const Block& b = d_.block(id);
  const RadixIndex::Node& node = d_.index.node(id);
  SlotIdentity identity{.key = node.key,
                        .commit_id = b.commit_id,
                        .group_tag = d_.group_of(b).id().low,
                        .event_hash = b.event_hash,
                        .position = node.position,
                        .writer_uid = b.writer_uid,
                        .recompute_ns_per_token = b.recompute_ns_per_token,
                        .priority = b.priority};
  if (node.parent != kBlockNone) identity.parent = d_.index.node(node.parent).key;
  if (b.is_pinned) identity.flags |= kSlotPinned;
  if (b.is_no_store) identity.flags |= kSlotNoStore;
  if (b.expires_us != kNever) {
    const uint64_t now_us = d_.NowUs();
    const uint64_t left_us = b.expires_us > now_us ? b.expires_us - now_us : 0;
    // Never 0, which says: no expiry.
    identity.expires_at_s =
        std::max<uint64_t>(1, d_.seams.clock.UnixSeconds() + left_us / kUsPerSecond);
  }
  return identity;
}

void SlotRows::Update(BlockId id) {
  const Block& b = d_.block(id);
  if (b.dram.row == kRowNone) return;
  SlotIdentity identity = Describe(id);
  for (const SlotRef& ref : d_.slots_of(b)) {
    if (!ref.address.has_bytes()) continue;
    identity.member = d_.slots.row(ref).block.member;
    // Most hints change nothing.
    if (identity != d_.slots.row(ref).block) d_.slots.Amend(ref, identity);
  }
}

void SlotRows::SetStates(BlockId id, SlotState state, uint64_t holder) {
  const Block& b = d_.block(id);
  if (b.dram.row == kRowNone) return;
  for (const SlotRef& ref : d_.slots_of(b)) {
    if (!ref.address.has_bytes()) continue;
    SlotRow& row = d_.slots.row(ref);
    row.state = state;
    row.holder = holder;
  }
}

void SlotRows::SetDigests(BlockId id) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.has_roots, "a digest is of all roots");
  if (b.dram.row == kRowNone) return;
  const std::span<const SlotRef> refs = d_.slots_of(b);
  const std::span<const Checksum> roots = d_.roots_of(b);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!refs[i].address.has_bytes()) continue;
    const std::span<const Checksum> own = roots.subspan(locals[i].first_root, locals[i].part_count);
    d_.slots.row(refs[i]).checksum = FoldRoots(own, b.commit_id);
  }
}

}  // namespace terrace
