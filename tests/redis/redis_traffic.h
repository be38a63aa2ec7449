// RedisTraffic: many stores and fetches at a time through a tier, of few names, so that they meet;
// counts what they come to, and every byte is compared.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "redis/redis_rig.h"

namespace terrace::testing {

class RedisTraffic {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t chains = 1;
    uint32_t positions = 40;
    uint32_t erased_of_stores = 4;  // one of so many, so that there is room for others' commits
  };
  RedisTraffic(RedisRig* rig, const Options& options)
      : rig_(*rig), options_(options), random_(options.seed), slots_(kDepth) {}

  // Until so many are done; those that a tier which does not work now refuses are counted, not
  // done.
  void Run(uint64_t operations) {
    uint64_t begun = 0;
    while (begun < operations || under_way_ > 0) {
      for (uint64_t i = 0; i < kDepth && begun < operations; ++i) {
        if (!slots_[i].is_busy && Begin(i)) ++begun;
      }
      // An answer, or a tier that works again; where nothing could begin, at least a moment.
      bool has_waited = under_way_ > 0;
      ASSERT_TRUE(rig_.RunTicking([&] {
        return !rig_.fetched.empty() || !rig_.stored.empty() ||
               (under_way_ == 0 && rig_.tier().stats().is_ready && std::exchange(has_waited, true));
      }));
      Take();
    }
  }

  // The same, but ends when the tier takes nothing more, too.
  void RunAtMost(uint64_t operations) {
    uint64_t begun = 0;
    bool is_taking = true;
    while ((is_taking && begun < operations) || under_way_ > 0) {
      is_taking = false;
      for (uint64_t i = 0; i < kDepth && begun < operations; ++i) {
        if (slots_[i].is_busy || !Begin(i)) continue;
        ++begun;
        is_taking = true;
      }
      if (under_way_ == 0) return;
      ASSERT_TRUE(rig_.RunUntil([&] { return !rig_.fetched.empty() || !rig_.stored.empty(); }));
      Take();
      is_taking = true;
    }
  }

  uint64_t hits = 0, wrong = 0, misses = 0, failures = 0, stored = 0, not_stored = 0;
  uint64_t existing = 0;  // of those not stored

 private:
  static constexpr uint64_t kDepth = 24;
  struct Slot {
    bool is_busy = false;
    RedisBlockName name;
    std::vector<std::byte> bytes;
  };

  bool Begin(uint64_t i) {
    constexpr size_t kLengths[] = {300, 20'000, 66'000, 200'000};
    const auto position = static_cast<uint32_t>(random_() % options_.positions);
    const RedisBlockName name = RedisTestName(7 + random_() % options_.chains, position);
    Slot& slot = slots_[i];
    slot.name = name;
    Status status;
    if (random_() % 3 == 0) {
      const CommitId commit = random_();
      slot.bytes = RedisTestBytes(name.key, commit, kLengths[position % 4]);
      status = rig_.tier().Store(i, name.run, RedisTestRecord(name, commit), slot.bytes);
      if (random_() % options_.erased_of_stores == 0) rig_.tier().Erase(name);
    } else {
      slot.bytes.assign(kLengths[position % 4], std::byte{0});
      status = rig_.tier().Fetch(i, name, slot.bytes);
    }
    slot.is_busy = status.ok();
    under_way_ += status.ok();
    return status.ok();
  }

  void Take() {
    for (const auto& [id, fetched] : rig_.fetched) {
      Slot& slot = slots_[id];
      if (fetched.status.ok()) {
        const bool is_right =
            slot.bytes == RedisTestBytes(slot.name.key, fetched.commit_id, slot.bytes.size());
        is_right ? ++hits : ++wrong;
      } else {
        const bool is_miss = fetched.status.code() == StatusCode::kNotFound ||
                             fetched.status.code() == StatusCode::kCorrupt;
        is_miss ? ++misses : ++failures;
      }
      slot.is_busy = false;
    }
    for (const auto& [id, status] : rig_.stored) {
      status.ok() ? ++stored : ++not_stored;
      existing += status.code() == StatusCode::kExists;
      slots_[id].is_busy = false;
    }
    under_way_ -= rig_.fetched.size() + rig_.stored.size();
    rig_.fetched.clear();
    rig_.stored.clear();
  }

  RedisRig& rig_;
  const Options options_;
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  uint64_t under_way_ = 0;
};

}  // namespace terrace::testing
