// HazardSamples: uses of blocks, each watched until the next one, whether or not the block stays;
// and the HazardModel that learns from them how soon each kind comes back.
//
// A block is known by its fingerprint, and only its last use waits: one that is added, or that ends
// the wait, takes its place.
//
// THREADING: one thread. LIMITS: kCountMax uses of about 100 bytes; the oldest is forgotten first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/policy/eviction/hazard_model.h"
#include "daemon/policy/eviction/salted_hash.h"

namespace terrace {

class HazardSamples {
 public:
  static constexpr uint32_t kCountMax = 16384;

  struct Sample {
    uint64_t time_us = 0;
    uint64_t waited_us = 0;  // until its next use; 0: it still waits
    uint32_t fingerprint = 0;
    uint32_t turn = 0;
    ReuseTraits traits;         // when it was used
    uint8_t fork = 0;           // since then, ...
    uint64_t fork_idle_us = 0;  // ... when it had waited for so long
    bool is_tip = false;
  };

  // REQUIRES: capacity_blocks > 0.
  explicit HazardSamples(uint32_t capacity_blocks);

  const HazardModel& model() const { return model_; }
  bool StartFrom(std::span<const std::byte> learned) { return model_.StartFrom(learned); }

  // Watches a use that waits.
  void Add(const Sample& sample, uint64_t now_us);
  bool IsWaitedFor(uint32_t fingerprint) const { return Find(fingerprint) != kNone; }
  // What was known of the last use, if it was watched and waited for this one. Good until Add.
  const Sample* EndWait(uint32_t fingerprint, uint64_t now_us);
  // Another request left its path behind the use at that time, or before.
  struct Fork {
    uint32_t fingerprint = 0;
    uint64_t time_us = 0;
    uint8_t fork = 0;
  };
  void OnFork(const Fork& fork, uint64_t now_us);
  // A pass over all of them, a few at a time, then the model moves.
  void LearnSome(uint64_t now_us);

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  uint32_t ChainOf(uint32_t fingerprint) const { return chain_hash_.PlaceOf(fingerprint); }
  // The place of the block's use that waits; kNone: there is none.
  uint32_t Find(uint32_t fingerprint) const;
  // Of one that waits: it does no longer.
  void Unlink(uint32_t place);

  const uint32_t count_max_;
  HazardModel model_;
  std::vector<Sample> samples_;  // a ring
  std::vector<uint32_t> next_;   // of each place, in the chain of those that wait
  std::vector<uint32_t> heads_;  // of chains, by fingerprint: most are empty
  const SaltedHash chain_hash_;
  uint64_t added_count_ = 0;
  uint32_t next_observed_ = 0;
};

}  // namespace terrace
