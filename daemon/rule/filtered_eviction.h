// FilteredEviction: blocks of some groups that were not used for so long leave, from every tier or
// from one of them. Children are looked at before their parents, so what stays keeps what its
// prefix needs.
//
// THREADING: store thread. LIMITS: a step looks at kBlocksPerTurnMax blocks at most.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/residency/residency.h"
#include "daemon/rule/block_marks.h"
#include "daemon/transfer/shared_writer.h"
#include "terrace/protocol_operator.h"
#include "terrace/status.h"

namespace terrace {

struct EvictionFilter {
  uint32_t group_first = 0;
  uint32_t group_end = 0;
  uint64_t idle_us_min = 0;
  std::optional<protocol::TierKind> tier;  // none: every tier of this host
  bool is_dry_run = false;
  // What the shared tier has of these blocks goes, too. With neither an age nor a tier it goes
  // whatever this says, and this has the groups' keys destroyed.
  bool is_shared = false;
  bool is_of_all_groups = false;
};

class FilteredEviction {
 public:
  FilteredEviction(CacheDomain& domain, Residency& residency, SharedWriter& shared,
                   const EvictionFilter& filter)
      : d_(domain), residency_(residency), shared_(shared), filter_(filter) {}

  // True: it is through. Counts in `reply` add up. kUnsupported: there is no such tier; kGone: more
  // walks were begun meanwhile than are kept.
  Result<bool> Step(protocol::EvictReply* reply);
  // Begun and not through: nobody will step it again.
  void Close();

 private:
  // What a dry run notes of a parent.
  enum class Stays : uint8_t {
    kNothing,    // no child stays that was looked at
    kElsewhere,  // one that has no copy in the tier
    kHere,       // one whose copy in the tier stays
  };
  Status Begin();
  bool has_tier() const { return filter_.tier.has_value(); }
  bool is_of_dram() const { return filter_.tier == protocol::TierKind::kDram; }
  bool is_of_shared() const { return filter_.tier == protocol::TierKind::kRedis; }
  void Visit(BlockId id, protocol::EvictReply* reply);
  void VisitShared(BlockId id, protocol::EvictReply* reply);
  bool IsIdle(BlockId id) const;
  bool HasCopy(const Block& block) const;
  bool IsLastCopy(const Block& block) const;
  bool MayGo(BlockId id) const;
  // The same while the children that went before it are still there.
  bool WouldGo(BlockId id) const;
  void Drop(BlockId id);
  uint64_t BytesOf(const Block& block) const;
  Stays NotedOf(BlockId id) const;
  void NoteStays(BlockId parent, Stays stays);

  CacheDomain& d_;
  Residency& residency_;
  SharedWriter& shared_;
  const EvictionFilter filter_;
  uint32_t lower_ = kLowerTiersMax;  // the tier's place below DRAM
  uint64_t walk_ = 0;
  BlockMarks stays_here_, stays_elsewhere_;
  BlockMarks skipped_;
  bool is_begun_ = false;
};

}  // namespace terrace
