// CopyChecks: what an online check of the persistent tier asks of the store; the check itself is
// daemon/check/online_fsck.h.
//
// THREADING: the store thread. LIMITS: one check of a domain at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/transfer/copy_findings.h"
#include "terrace/status.h"
#include "tiers/tier.h"

namespace terrace {

struct StoreRooms;

class CopyChecks {
 public:
  explicit CopyChecks(StoreRooms& store) : store_(store) {}

  // What the entry of the copy in this place has to say; part_checksums are valid during the turn.
  // kNotFound: block `owner` has no copy there.
  Result<BlockRecord> DescribeCopy(uint32_t domain_index, uint32_t owner,
                                   const Extent& extent) const;
  // Groups that the domain knows.
  uint32_t group_count(uint32_t domain_index) const;
  // Reads copies and compares them, in the background, within this many bytes a second; `done` is
  // called in the middle of a turn. kBusy: another such check is under way. CancelCheck: `done` is
  // not called any more.
  Status CheckCopies(uint32_t domain_index, std::vector<CopyName> copies, uint64_t bytes_per_second,
                     std::function<void(CopyFindings)> done);
  void CancelCheck(uint32_t domain_index);
  // Gives a copy up, of all members; if DRAM has the block it is written anew. kNotFound: it has
  // left already. kBusy: something is reading or writing it.
  Status DropCopy(uint32_t domain_index, const CopyName& copy, CopyFault fault);

 private:
  StoreRooms& store_;
};

}  // namespace terrace
