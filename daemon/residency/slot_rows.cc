#include "daemon/residency/slot_rows.h"

#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {

SlotIdentity SlotRows::Describe(BlockId id) const {
  return IdentityOf(d_.Describe(id), d_.block(id).writer_uid);
}

void SlotRows::Rewrite(BlockId id) {
  const Block& b = d_.block(id);
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
