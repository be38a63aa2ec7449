// HazardRequests: what is known of the requests that blocks were last used by, under numbers that
// are given again when no block was. More may come of some: of the open one, which is served now,
// and of those that are paused while others are served, since engines store a step at a time, and
// several of them in turns.
//
// THREADING: one thread.
// LIMITS: 48 bytes a live request, kPausedMax paused ones.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/index/block_id.h"
#include "daemon/index/chunked_array.h"
#include "daemon/policy/eviction/hazard_model.h"
#include "terrace/block_key.h"

namespace terrace {

struct HazardRequest {
  uint64_t time_us = 0;
  uint64_t expected_us = 0;  // until when an engine's word holds that it comes back
  BlockId tip = kBlockNone;
  BlockId end = kBlockNone;  // of what is left of its path, the deepest
  uint32_t block_count = 0;  // blocks it was the last to use
  uint32_t fresh_count = 0;
  uint32_t depth = 0;
  uint32_t turn = 0;
  uint32_t tip_fingerprint = 0;  // when it is watched
  uint8_t gap = 0;
  uint8_t reason = 0;
  uint8_t fork = 0;          // where a later request left its path
  bool is_open : 1 = false;  // more of it may come
  bool is_ended : 1 = false;
  bool is_return : 1 = false;  // its chain was here before, and had left
};
static_assert(sizeof(HazardRequest) == 48);

class HazardRequests {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr uint32_t kPausedMax = 64;

  // One of which more may come.
  struct Ongoing {
    uint32_t request = kNone;
    uint32_t told_count = 0;  // newcomers told of by their keys; of a paused one all have arrived
    uint32_t arrived_count = 0;
    uint32_t more_count = 0;           // behind those
    uint32_t tip = 0;                  // the last of all, by its fingerprint
    uint32_t any = 0;                  // one of them at random that has not come yet; 0: none
    BlockId watched_hit = kBlockNone;  // of its hits, one at random
    BlockId watched_new = kBlockNone;  // of what it missed, if that came
    uint8_t priority = 0;

    bool are_left() const { return arrived_count < told_count; }
    uint32_t left_count() const { return told_count - arrived_count + more_count; }
  };

  HazardRequests() { paused_.reserve(kPausedMax + 1); }

  HazardRequest& operator[](uint32_t request) { return requests_[request]; }
  const HazardRequest& operator[](uint32_t request) const { return requests_[request]; }
  void Prefetch(uint32_t request) const { requests_.Prefetch(request); }
  // Of the late ones that ended, how many for which reason.
  std::span<const float> reason_shares() const { return reason_shares_; }

  bool has_open() const { return open_.request != kNone; }
  Ongoing& open() { return open_; }  // of which nothing is known: there is none
  const Ongoing& open() const { return open_; }
  // A new one is the open one. REQUIRES: there is none.
  void Begin(uint64_t now_us);
  // What comes to the open one now, in this order.
  void Tell(std::span<const BlockKey> keys);
  bool IsNext(const BlockKey& key) const {
    return open_.are_left() && keys_[open_.arrived_count] == key;
  }

  // The open one is none any more: who asks ends or pauses it. REQUIRES: has_open().
  Ongoing Close();
  bool MayGoOn(const Ongoing& closed) const;
  // The one paused first, if there are too many: who asks ends it.
  std::optional<Ongoing> Pause(Ongoing closed);
  // Paused no more: who asks ends it, or goes on with it.
  std::optional<Ongoing> TakePaused(uint32_t request);
  // It is the open one again. REQUIRES: there is none.
  void GoOn(const Ongoing& paused) { open_ = paused; }
  // Nothing more of it comes.
  void End(uint32_t request);

  // A block was last used by `from`, and now by `to`; either may be kNone.
  void MoveBlock(uint32_t from, uint32_t to);

 private:
  ChunkedArray<HazardRequest> requests_;
  uint32_t count_ = 0;
  std::vector<uint32_t> free_;
  Ongoing open_;
  std::vector<BlockKey> keys_;   // that the open one was told of
  std::vector<Ongoing> paused_;  // the one paused last is last
  std::array<float, ReuseTraits::kReasons> reason_shares_ = {1};
};

}  // namespace terrace
