// LruGuard: would LRU have hit more? It runs LRU beside a policy, over the keys of a sample of the
// blocks and no bytes, and keeps an account: a hit of the policy alone is earned, a hit of LRU
// alone is owed, and every use brings a small allowance. Overdrawn, the policy should do as LRU
// does until the allowance has paid. So what a bad guess costs is bounded, whatever the traffic.
//
// Sampling single blocks is sound for LRU: tail first, a block's hit hangs on nothing but how many
// others were used since its last use.
//
// LIMITS: some 40 bytes for each of at most kSampledMax blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "daemon/policy/eviction/salted_hash.h"
#include "src/slot_pool.h"

namespace terrace {

class LruGuard {
 public:
  static constexpr uint32_t kSampledMax = 8192;

  // REQUIRES: capacity_blocks > 0.
  explicit LruGuard(uint32_t capacity_blocks);  // or more: how many fit shows by OnFull

  bool IsSampled(uint32_t fingerprint) const { return (fingerprint & mask_) == 0; }
  // What the policy made of a use of a sampled block. Uses are told head first. kStored: it comes
  // in; that was a miss, too, unless the lookup before it has told of that.
  enum class Outcome : uint8_t { kMiss, kHit, kStored };
  void OnUse(uint32_t fingerprint, Outcome outcome);
  // The request whose uses were told since the last one is done; it had this many blocks.
  void OnRequest(uint32_t block_count);
  // Uses of another are told now: more of that one comes later.
  void OnPause();
  // The tier is full with this many blocks: so LRU would have been.
  void OnFull(uint32_t resident_count);

  // The policy should do as LRU does.
  bool is_overdrawn() const { return is_overdrawn_; }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr size_t kNoneTold = SIZE_MAX;

  struct Entry {
    uint32_t fingerprint = 0;
    uint32_t newer = kNone;
    uint32_t older = kNone;
    bool is_awaited = false;  // its last use was a miss, and nobody has stored it since
  };

  struct Use {
    uint32_t fingerprint = 0;
    Outcome outcome = Outcome::kMiss;
  };

  // Its lookup, in this very request, has told of the miss. Stored blocks come in that order.
  bool IsToldOf(uint32_t fingerprint);
  void Settle(const Use& use);
  void MakeNewest(const Use& use);
  uint32_t SlotOf(uint32_t fingerprint) const;  // where it is, or belongs
  void Unlink(uint32_t entry);
  void LinkNewest(uint32_t entry);
  void Evict(uint32_t entry);
  void HalveSample();
  double CreditMax() const;
  uint32_t count_max() const { return std::max(capacity_blocks_ / (mask_ + 1), 1u); }

  SlotPool<Entry> entries_;       // 2 × kSampledMax at most
  std::vector<Use> uses_;         // of the request that is being told
  size_t next_told_ = kNoneTold;  // of the misses among them the first that was not stored yet
  std::vector<uint32_t> slots_;   // open addressing: entries by fingerprint
  const SaltedHash hash_;         // to where a search begins
  uint32_t capacity_blocks_;      // what LRU would hold
  uint32_t newest_ = kNone;
  uint32_t oldest_ = kNone;
  double request_blocks_ = 0;  // of late, on average
  double account_ = 0;         // hits
  bool is_overdrawn_ = false;
  uint32_t mask_ = 0;  // of the fingerprint bits that a sampled block has at zero; grows
};

}  // namespace terrace
