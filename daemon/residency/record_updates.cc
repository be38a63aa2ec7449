#include "daemon/residency/record_updates.h"

#include "terrace/check.h"

namespace terrace {

void RecordUpdates::Note(BlockId id) {
  const Block& b = d_.block(id);
  if (d_.persistent_tier == kLowerTiersMax || b.is_update_due) return;
  const CopyState state = b.lower[d_.persistent_tier].state;
  if (state == CopyState::kNone) return;  // its record will say what holds then
  MarkOf(id).is_update_due = true;
  if (state == CopyState::kReady) queue_.push_back(id);
}

void RecordUpdates::OnCopyReady(BlockId id) {
  TERRACE_CHECK(d_.block(id).lower[d_.persistent_tier].state == CopyState::kReady,
                "a record is written again once it is there");
  if (d_.block(id).is_update_due) queue_.push_back(id);
}

void RecordUpdates::OnCopyGone(BlockId id) { MarkOf(id).is_update_due = false; }

bool RecordUpdates::has_work() const {
  return !queue_.empty() && !d_.lower[d_.persistent_tier].is_off;
}

void RecordUpdates::Step() {
  for (uint32_t i = 0; i < kPerStepMax && has_work(); ++i) {
    const BlockId id = queue_.front();
    queue_.pop_front();
    const Block& b = d_.block(id);
    const BlockCopy& copy = b.lower[d_.persistent_tier];
    // Dropped meanwhile, or written anew: then the end of that asks again.
    if (!b.is_update_due || copy.state != CopyState::kReady) continue;
    MarkOf(id).is_update_due = false;
    Group& group = d_.group_of(b);
    for (size_t local = 0; local < group.locals().size(); ++local) {
      if (!((copy.member_mask >> group.locals()[local].member) & 1)) continue;
      d_.lower[d_.persistent_tier].tier->Amend(group.extents().at(copy.row)[local],
                                               d_.RecordOf(id, group.locals()[local]));
    }
  }
}

}  // namespace terrace
