// SlotRows: what the slot table says of the blocks in DRAM, for a successor that adopts them: a row
// for each member's slot.
//
// THREADING: store thread. OWNERSHIP: writes the rows of slots that a block has; which slots those
// are is DramCopies' to say.
#pragma once

#include <cstdint>

#include "daemon/block/cache_domain.h"

namespace terrace {

class SlotRows {
 public:
  explicit SlotRows(CacheDomain& domain) : d_(domain) {}

  // What the rows say of the block itself, but for the member.
  SlotIdentity Describe(BlockId id) const;
  // What is said of the block has changed: key chain, hints, pin. Without slots: nothing to do.
  void Update(BlockId id) {
    if (d_.block(id).dram.row != kRowNone) Rewrite(id);
  }
  void SetStates(BlockId id, SlotState state, uint64_t holder);
  // The digest of each member's roots. REQUIRES: all of them are known.
  void SetDigests(BlockId id);

 private:
  void Rewrite(BlockId id);

  CacheDomain& d_;
};

}  // namespace terrace
