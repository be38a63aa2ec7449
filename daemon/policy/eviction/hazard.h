// Evicts the block of which fewest hits are expected per second of keeping it: a HazardModel
// learns from the uses it sees how soon each kind of block comes back, blocks already evicted
// included, and the lowest of a sample of candidates goes. The low ones that stay are compared with
// the next sample, so that few need be looked at for each that goes. A newcomer that ranks below
// them all is the first to go, so it passes by.
//
// What a block is like is what its last *request* was like (turn of its chain, gap since the turn
// before, how much was new, why it ended, whether a later one left its path), so a block stores
// only which request that was. A request is a touch of what hit and then insertions under its tip;
// a touch that tells why it ended ends it. Of one whose newcomers are told of before they come all
// are known when the first of them is compared with what would go for it.
//
// LIMITS: 16 bytes a block; those of HazardRequests and HazardSamples; MissedLookups, of at most
// 6 KiB each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/index/chunked_array.h"
#include "daemon/policy/eviction/hazard_model.h"
#include "daemon/policy/eviction/hazard_requests.h"
#include "daemon/policy/eviction/hazard_samples.h"
#include "daemon/policy/eviction/lru_guard.h"
#include "daemon/policy/eviction/missed_lookups.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace {

struct HazardOptions {
  uint32_t capacity_blocks = 0;  // > 0; observations outlive their blocks
  uint64_t seed = 1;
};

class HazardPolicy final : public EvictionPolicy {
 public:
  explicit HazardPolicy(const HazardOptions& options);

  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnComing(std::span<const BlockKey> keys, const BlockTraits& first, uint32_t more_count,
                uint64_t now_us) override;
  bool MayPassBy() const override { return !IsByAge(); }
  bool PassesBy() const override;
  void OnMissed(std::span<const BlockKey> keys, const MissedRest& rest) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnExpected(std::span<const BlockId> run, uint64_t at_us, uint64_t now_us) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override;
  void OnHeld(BlockId id) override;
  BlockId Victim() const override;
  uint32_t EraseVictims(BlockRange run) override;
  void OnRoom(Room room) override { is_growing_ = room == Room::kGrows; }
  void SetPriority(BlockId id, uint8_t priority) override;
  std::vector<std::byte> Learned() const override { return samples_.model().Learned(); }
  bool StartFrom(std::span<const std::byte> learned) override {
    return samples_.StartFrom(learned);
  }

  // ---- what is known of blocks, for those who evict nothing by it ----
  struct LastRequest {
    uint32_t index = 0;  // handed out again when no block was last used by it
    uint64_t time_us = 0;
  };
  // That used the block, told by OnInsert, and was not erased.
  LastRequest last_request(BlockId id) const;
  ReuseTraits TraitsOf(BlockId id) const;
  bool WasUsed(BlockId id) const { return states_[id].was_used; }
  // Came again after it had left.
  bool HasReturned(BlockId id) const { return requests_[states_[id].request].is_return; }

 private:
  using Request = HazardRequest;
  using Ongoing = HazardRequests::Ongoing;
  using Sample = HazardSamples::Sample;
  static constexpr uint32_t kNone = HazardRequests::kNone;

  struct BlockState {
    uint32_t request = kNone;
    uint32_t fingerprint = 0;  // of the key
    uint32_t place = kNone;    // among the candidates of its priority
    uint8_t gap = 0;           // between its last two uses
    uint8_t child_mark = 0;    // of the child that came last
    uint8_t priority = 0;
    uint8_t branches : 2 = 0;  // children ever seen, up to 3
    bool was_used : 1 = false;
    bool is_sampled : 1 = false;
  };
  static_assert(sizeof(BlockState) == 16);

  struct Candidates {  // in no order
    ChunkedArray<BlockId> ids;
    uint32_t count = 0;
  };
  // A candidate that ranked low when it was looked at.
  struct Ranked {
    BlockId id = kBlockNone;
    uint64_t time_us = 0;  // of its last request
    float index = 0;
  };

  // A run of the open request that is told in parts.
  struct Run {
    BlockId last = kBlockNone;  // kBlockNone: it is over
    uint32_t before = kNone;    // the request that had used its last block
  };

  static uint8_t GapOf(uint64_t from_us, uint64_t to_us);
  static uint32_t FingerprintOf(const BlockKey& key);
  static ReuseTraits TraitsOf(const BlockState& state, const Request& request);
  float IndexOf(BlockId id) const { return IndexOf(states_[id], requests_[states_[id].request]); }
  float IndexOf(const BlockState& state, const Request& request) const;
  float IndexOfNewcomer() const;
  uint64_t Random() const;
  // As LRU does.
  bool IsByAge() const { return is_growing_ || guard_.is_overdrawn(); }
  bool IsShortlisted(BlockId id) const;
  // As the choice that just left, which hung on it.
  bool GoesWithChoice(const BlockState& state) const;
  // Does `left` go before `right`?
  bool GoesBefore(const Ranked& left, const Ranked& right) const {
    if (!is_shortlist_by_age_ && left.index != right.index) return left.index < right.index;
    return left.time_us < right.time_us;
  }
  void LookAt(BlockId id) const;
  void FindHighest() const;
  void LookAtSome(const Candidates& candidates, uint32_t count) const;
  void Shortlist(const Candidates& candidates) const;
  // Without those that are no candidates any more; ranked anew from time to time, or if used.
  void RefreshShortlist() const;

  void Advance(uint64_t now_us);
  void OpenRequest(uint64_t now_us);
  // It is over, or paused: engines store a step at a time, and several of them in turns.
  void CloseRequest();
  void EndRequest(const Ongoing& ended);
  // Whether more of the open one is to come, behind `parent`.
  bool IsBehindOpen(BlockId parent) const;
  // Whether the one that is to go on under `parent` was paused; it is the open one again.
  bool GoOnUnder(BlockId parent);
  // The one that goes on under the block's parent, or another.
  void EnterRequest(const BlockTraits& traits, uint64_t now_us);
  void JoinRequest(BlockId parent, const BlockTraits& traits, uint64_t now_us);
  // What was known of a block that comes.
  Sample TakeGhost(uint32_t fingerprint);
  // The open request's, if the chain ended at that block; so many are known to come behind it.
  void TakeTurn(const Sample& ghost, uint64_t now_us, uint32_t behind_count);
  void Assign(BlockId id, uint32_t request);
  // The blocks of a run that is used by the open request.
  void Use(std::span<const BlockId> run, uint64_t now_us);
  // All of the run that was used last has been told.
  void EndRun();
  // Another request used the first blocks of its path, and no more.
  void LeavePath(uint32_t request, uint32_t used_count);
  void AddSample(BlockId id);
  // Of one that passed by, or that is resident.
  void AddSample(const BlockState& state, bool is_tip);

  HazardSamples samples_;
  LruGuard guard_;
  uint32_t resident_count_ = 0;
  ChunkedArray<BlockState> states_;  // by id
  HazardRequests requests_;
  MissedLookups missed_;         // that nothing was stored of yet
  BlockId newest_ = kBlockNone;  // tip of the open request
  Run run_;

  std::array<Candidates, 256> candidates_;  // by priority
  uint32_t lowest_priority_ = 255;          // none below has candidates

  uint64_t now_us_ = 0;
  bool is_growing_ = false;
  bool is_choice_gone_ = false;  // the victim just left: its parent is worth a look

  // What Victim remembers between two questions: the lowest of those looked at, in no order.
  mutable std::vector<Ranked> shortlist_;  // at most kShortlistMax
  mutable size_t highest_ = 0;             // of a full shortlist, the last to go: its place
  mutable BlockId choice_ = kBlockNone;
  mutable BlockState chosen_;            // as the choice was when it was chosen
  mutable uint32_t followed_count_ = 0;  // blocks that were chosen as what a choice hung on
  mutable uint64_t ranked_us_ = 0;
  mutable bool is_shortlist_by_age_ = false;
  mutable uint64_t random_;
};

}  // namespace terrace
