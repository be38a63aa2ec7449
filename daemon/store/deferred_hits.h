// DeferredHits: what an Acquire means for figures and blocks, noted once the answer is out. Who
// only wants to hold a long run (Store::AcquireReady) is answered from its runs; uses, figures and
// checks, which are a block's each, follow in later turns.
//
// THREADING: store thread.
// LIMITS: kBlocksMax blocks of kHitsMax hits not noted yet; beyond, hits go the long way.
// kAskedKeysMax keys; beyond, they are counted at once.
// INVARIANT: a lease with Lease::is_unnoted is not closed, so its blocks are still there.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "daemon/block/keys_query.h"
#include "daemon/residency/residency.h"
#include "daemon/transfer/shared_writer.h"
#include "daemon/transfer/verifier.h"

namespace terrace {

class DeferredHits {
 public:
  static constexpr uint32_t kBlocksMax = 1 << 16;
  static constexpr uint32_t kHitsMax = 1024;
  static constexpr uint32_t kBlocksPerStep = 512;
  static constexpr uint32_t kAskedKeysMax = 4096;

  DeferredHits(CacheDomain& domain, Residency& residency, Verifier& verifier,
               SharedWriter& shared_writer)
      : d_(domain), residency_(residency), verifier_(verifier), shared_writer_(shared_writer) {}

  // Keys that an Acquire asks for: the HitMeter's.
  void OnAsked(uint32_t group_index, std::span<const BlockKey> keys);
  // Tells the HitMeter now.
  void CountAsked();

  bool has_room(uint32_t block_count) const {
    return block_count <= kBlocksMax - waiting_count_ && hits_.size() < kHitsMax;
  }
  // The first `block_count` blocks of the lease were hit. REQUIRES: has_room(), a new lease.
  void Add(LeaseId lease, const KeysQuery& query, uint32_t block_count);
  // Why its request ended, which is noted behind its use. REQUIRES: the lease is unnoted.
  void OnRequestEnd(LeaseId lease, const protocol::Hints& hints);

  // How many hits there have been, and of how many all is noted, in that order.
  uint64_t added_count() const { return noted_count_ + hits_.size(); }
  uint64_t noted_count() const { return noted_count_; }

  bool has_work() const { return !hits_.empty() || !asked_.empty(); }
  void Step();

 private:
  struct Hit {
    LeaseId lease = kLeaseNone;
    SessionId session = 0;
    uint32_t block_count = 0;
    uint32_t next = 0;
    BlockId last = kBlockNone;  // that was noted
    uint64_t asked_us = 0;
    protocol::Hints hints;
    protocol::Hints end_hints;
  };

  struct Asked {
    uint32_t group_index = 0;
    uint64_t asked_us = 0;
    std::vector<BlockKey> keys;
  };

  void CountFirstAsked();
  void NoteSome(Hit* hit, uint32_t end);
  void Finish(const Hit& hit);

  CacheDomain& d_;
  Residency& residency_;
  Verifier& verifier_;
  SharedWriter& shared_writer_;
  std::deque<Asked> asked_;
  uint32_t asked_count_ = 0;  // keys
  std::deque<Hit> hits_;
  uint32_t waiting_count_ = 0;  // blocks
  uint64_t noted_count_ = 0;
  std::vector<BlockId> run_;    // scratch
  std::vector<BlockKey> keys_;  // scratch
};

}  // namespace terrace
