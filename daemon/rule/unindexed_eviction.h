// UnindexedEviction: what an erasure covers and no index names, since its group is not there: slots
// that are parked in kept memory. Whoever opens the group would find them, so an erasure takes them
// along before it is answered, and before it looks at the index: nothing is adopted behind it then.
//
// Of what continues a key nobody knows more here than how deep it lies: all that lies deeper in the
// key's group goes with it.
//
// THREADING: store thread. LIMITS: a call drops kBlocksPerTurnMax slots at most.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/block/cache_domain.h"
#include "daemon/restore/adoption.h"
#include "terrace/protocol.h"

namespace terrace {

class UnindexedEviction {
 public:
  // With the store, before anything is parked.
  UnindexedEviction(CacheDomain& domain, Adoption& adoption)
      : d_(domain), adoption_(adoption), since_us_(domain.NowUs()) {}

  bool is_empty() const { return adoption_.parked_slot_count() == 0; }
  // All of a group, or of any (kAllGroups). Counts in `reply` add up. True: it has gone; false:
  // call it again.
  bool EvictAll(uint32_t group_index, protocol::EvictReply* reply);
  // What has these keys and, with kEvictSubtree, what continues them, or one of `found`, which the
  // index names. The same answer.
  bool EvictKeys(const KeysQuery& query, std::span<const BlockId> found,
                 protocol::EvictReply* reply);
  // Nobody has used it for as long as the process runs.
  uint64_t idle_us() const { return d_.NowUs() - since_us_; }

 private:
  std::optional<uint64_t> TagOf(uint32_t group_index) const;
  bool Drop(Adoption::Taken* taken, protocol::EvictReply* reply);

  CacheDomain& d_;
  Adoption& adoption_;
  const uint64_t since_us_;
};

}  // namespace terrace
