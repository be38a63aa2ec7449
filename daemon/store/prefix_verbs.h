// PrefixVerbs: how far a prefix is there, and holding on to it: Match, Acquire, Prefetch.
//
// THREADING: the store thread. LIMITS: a step is about kBlocksPerTurnMax blocks at most.
#pragma once

#include <cstdint>

#include "daemon/block/keys_query.h"
#include "daemon/store/verb_results.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

// How many keys may be compared with runs in one turn.
inline constexpr uint32_t kReadyKeysPerTurnMax = 8 * protocol::kBlocksPerTurnMax;

class PrefixVerbs {
 public:
  explicit PrefixVerbs(StoreRooms& store) : store_(store) {}

  Status Match(const KeysQuery& query, PrefixMatch* result);
  void FinishMatch(const KeysQuery& query, PrefixMatch* result);  // applies min_tokens
  // Before an Acquire or Prefetch of the same keys: asks the shared tier for those that are not
  // here. kOk: go on. kBusy: OnSeekDone follows, then go on. All Seeks of a request together take
  // no longer than SharedUse::seek_us; *end_us is 0 at the first and the same object at the others.
  Status Seek(const KeysQuery& query, uint64_t* end_us);
  Status Acquire(const KeysQuery& query, AcquireResult* result);
  // The short way, before the first Acquire of a request that wants no slots (member_mask 0, no
  // flags): what of its first keys is ready in DRAM is held run by run, walk.walked_count blocks,
  // and Acquire goes on behind them. REQUIRES: keys.size() ≤ kReadyKeysPerTurnMax.
  Status AcquireReady(const KeysQuery& query, AcquireResult* result);
  // Applies min_tokens, sends the lease off, or releases it when nothing matched. Completions of
  // the request come from later calls only, never before the reply.
  void FinishAcquire(const KeysQuery& query, AcquireResult* result);
  Status Prefetch(const KeysQuery& query, PrefixMatch* result);
  void FinishPrefetch(const KeysQuery& query, PrefixMatch* result);

 private:
  StoreRooms& store_;
};

}  // namespace terrace
