#include "daemon/residency/block_holds.h"

#include <algorithm>
#include <cstring>

#include "daemon/residency/block_ranges.h"
#include "terrace/check.h"

namespace terrace {

void BlockHolds::Hold(BlockId id, HoldKind kind) {
  TERRACE_CHECK(d_.block(id).phase != BlockPhase::kUnused, "I2: what is held is a block");
  switch (kind) {
    case HoldKind::kLease:
      d_.index.Pin({id, 1});
      break;
    case HoldKind::kJob:
      ++CountsOf(id).job_count;
      break;
    case HoldKind::kFence:
      if (CountsOf(id).fence_count++ == 0) CountFenced(id, 1);
      break;
  }
  candidates_.Refresh(id);
}

void BlockHolds::LetGo(BlockId id, HoldKind kind) {
  HoldCounts& counts = CountsOf(id);
  switch (kind) {
    case HoldKind::kLease:
      d_.index.Unpin({id, 1});
      break;
    case HoldKind::kJob:
      TERRACE_CHECK(counts.job_count > 0, "I3: every job ends once");
      --counts.job_count;
      break;
    case HoldKind::kFence:
      TERRACE_CHECK(counts.fence_count > 0, "every fence falls once");
      if (--counts.fence_count == 0) CountFenced(id, -1);
      break;
  }
  lifecycle_.OnLetGo(id);
}

void BlockHolds::CountFenced(BlockId id, int32_t by) {
  const Group& group = d_.group_of(d_.block(id));
  d_.fenced_bytes.of_owner() += by * static_cast<int64_t>(group.block_bytes());
  d_.fenced_slot_count.of_owner() += by * static_cast<int32_t>(group.locals().size());
}

void BlockHolds::HoldPath(std::span<const BlockId> run) {
  ForEachRange(run, [this](BlockRange range) { d_.index.Pin(range); });
  for (const BlockId id : run) candidates_.Refresh(id);
}

void BlockHolds::LetGoPath(BlockRange range) {
  d_.index.Unpin(range);
  std::vector<BlockRange> pieces;
  ForEachPiece(range, [&pieces](BlockRange piece) { pieces.push_back(piece); });
  // The tail first, as paths go.
  for (size_t p = pieces.size(); p-- > 0;) {
    const bool is_ready = std::memchr(&d_.readiness[pieces[p].first], kReadyForNone,
                                      pieces[p].block_count) == nullptr;
    for (uint32_t i = pieces[p].block_count; i-- > 0;) {
      const BlockId id = pieces[p].first + i;
      const bool is_last = i + 1 == pieces[p].block_count;
      if (is_ready && !is_last && !d_.IsOnDevice(d_.block(id))) continue;
      lifecycle_.OnLetGo(id);
      if (is_ready && d_.device_tier == kLowerTiersMax) break;
    }
  }
}

void BlockHolds::HoldReady(BlockRange range) {
  d_.index.Pin(range);
  ForEachPiece(range, [this](BlockRange piece) {
    const BlockId last = piece.first + piece.block_count - 1;
    for (BlockId id = piece.first; d_.device_tier != kLowerTiersMax && id < last; ++id) {
      if (d_.IsOnDevice(d_.block(id))) candidates_.Refresh(id);
    }
    candidates_.Refresh(last);
  });
}

// The range, run by run. Of blocks that are ready (for whomever) in one run only the last one can
// be dropped, held or not: behind the others is one in DRAM, and their own copy there is readable.
// But on a device any of them can be dropped, unless it is held: somebody may read it there.
template <typename Visit>
void BlockHolds::ForEachPiece(BlockRange range, const Visit& visit) {
  const BlockId end = range.first + range.block_count;
  for (BlockId id = range.first; id < end;) {
    const BlockId last = std::min(d_.index.runs().RunAt(id).last(), end - 1);
    for (BlockId i = id; d_.changes.is_kept() && i <= last; ++i) d_.changes.Note(i);
    visit(BlockRange{id, last - id + 1});
    id = last + 1;
  }
}

}  // namespace terrace
