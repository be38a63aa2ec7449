// NamedPins: blocks that an operator keeps under a name, up to a cap of bytes and for some time.
// What a pin keeps is not evicted from the tiers it lies in, whoever made it has gone or not; when
// the pin ends its blocks are as any others. A block may be kept under several names. It leaves
// all of them when nobody can find it any more (reset, expired, corrupt). Pins live in the daemon's
// memory alone: its successor knows none.
//
// THREADING: store thread. OWNERSHIP: by way of BlockHolds, Block's NameMark.
// LIMITS: kNamedPinsMax names and kNamedPinBlocksMax blocks under them; what ends is unpinned some
// blocks a turn.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/residency/residency.h"
#include "terrace/protocol_operator.h"
#include "terrace/status.h"

namespace terrace {

using PinPlace = uint32_t;  // < kNamedPinsMax

struct PinTerms {
  std::string_view name;
  uint64_t cap_bytes = 0;
  uint32_t ttl_s = 0;  // 0: until it is cleared
  uint32_t uid = 0;
};

class NamedPins final : public PinObserver {
 public:
  NamedPins(CacheDomain& domain, BlockHolds& holds) : d_(domain), holds_(holds) {}

  // A new pin, or the one of that name with other terms. kNoSpace: kNamedPinsMax names are in use.
  Status Open(const PinTerms& terms, PinPlace* place);
  // kNoSpace: beyond the cap, or kNamedPinBlocksMax. kExists: the name keeps it already.
  // REQUIRES: the place was opened and has not ended since (IsOpen); the block is Sealed.
  Status Add(PinPlace place, BlockId id);
  bool IsOpen(PinPlace place, std::string_view name) const;
  // kNotFound: there is none.
  Status End(std::string_view name, protocol::NamedPinEntry* was);
  protocol::NamedPinEntry Describe(PinPlace place) const;
  // Over all names.
  void Sum(uint64_t* block_count, uint64_t* byte_count) const;
  // All of them, or with `ids` those that keep one of the blocks, by name.
  std::vector<protocol::NamedPinEntry> List(std::span<const BlockId> ids, bool is_about_ids) const;

  void OnDeadline(PinPlace place);
  void OnLeave(BlockId id) override;
  // Unpins some of what has ended.
  void Step();
  bool has_work() const { return ending_mask_ != 0; }

 private:
  struct Pin {
    std::string name;  // empty: the place is free, or what it kept is being unpinned
    uint64_t cap_bytes = 0;
    uint64_t byte_count = 0;
    uint64_t changed_us = 0;
    uint64_t expires_us = kNever;
    uint32_t expiry = kHandleNone;
    uint32_t block_count = 0;
    uint32_t uid = 0;
    // All that it ever kept; names_ says what it still does.
    std::deque<BlockId> blocks;
  };
  static uint64_t BitOf(PinPlace place) { return uint64_t{1} << place; }
  PinPlace Find(std::string_view name) const;  // kNamedPinsMax: none
  void EndAt(PinPlace place);
  uint64_t BytesOf(BlockId id) const { return d_.group_of(d_.block(id)).block_bytes(); }

  CacheDomain& d_;
  BlockHolds& holds_;
  std::array<Pin, protocol::kNamedPinsMax> pins_;
  uint64_t ending_mask_ = 0;
  // Bit p: the pin at place p keeps it. Never grows beyond what is reserved at the first pin, so
  // that no turn rehashes it.
  std::unordered_map<BlockId, uint64_t> names_;
};
static_assert(protocol::kNamedPinsMax == 64, "names are bits of a word");

}  // namespace terrace
