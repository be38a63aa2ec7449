// EvictionPolicy: which of a tier's blocks goes first. The caller decides what may go (a
// *candidate* is held by nobody and has no child resident in the tier); the policy only ranks
// candidates, from what it is told. It names blocks by id and holds nothing else of theirs, so the
// same code runs in the daemon and in offline replay.
//
// Order of calls for one id: OnInsert, then any of OnTouch, OnCandidate, OnHeld, then OnErase.
//
// THREADING: one thread. Time comes with the events; policies read no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/index/block_id.h"
#include "terrace/block_key.h"
#include "terrace/protocol.h"

namespace terrace {

// A block's worth, as far as known.
struct BlockTraits {
  BlockKey key;
  uint64_t byte_count = 0;
  uint32_t position = 0;  // in blocks from the root of its chain
  uint32_t block_tokens = 0;
  uint32_t recompute_ns_per_token = 0;
  uint8_t priority = protocol::kPriorityDefault;  // lower ones go before higher ones, always
  BlockId parent = kBlockNone;                    // kBlockNone: a root, or not told
};

// How a run of blocks was used.
struct TouchContext {
  uint64_t now_us = 0;
  uint64_t session_hash = 0;
  protocol::EndReason end_reason = protocol::EndReason::kUnknown;
  // A long run is told in parts: the last block of the part before, and whether there may be more.
  BlockId behind = kBlockNone;
  bool goes_on = false;
};

// Behind missed keys: how many more, and the last of those.
struct MissedRest {
  uint32_t count = 0;
  BlockKey last;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A copy became resident.
  virtual void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) = 0;
  // Blocks of a request come now, if there is room: `keys`, each behind the one before it, the
  // first with these traits, and more_count behind them. Those that come are inserted in this
  // order.
  virtual void OnComing(std::span<const BlockKey> /*keys*/, const BlockTraits& /*first*/,
                        uint32_t /*more_count*/, uint64_t /*now_us*/) {}
  // Whether newcomers may rank below all that is there. If so, PassesBy is worth a question.
  virtual bool MayPassBy() const { return false; }
  // Whether the next of what comes would be the victim: nothing need go for it.
  virtual bool PassesBy() const { return false; }
  // A lookup has asked for these in vain, behind what it found; head first. If its engine stores
  // them, the first of them is the first that comes.
  virtual void OnMissed(std::span<const BlockKey>, const MissedRest&) {}
  // A prefix, or a part of one, was used; head first. All ids are resident.
  virtual void OnTouch(std::span<const BlockId> run, const TouchContext& context) = 0;
  // An engine expects that the blocks are asked for at that time. All ids are resident.
  virtual void OnExpected(std::span<const BlockId>, uint64_t /*at_us*/, uint64_t /*now_us*/) {}
  // The copy is gone.
  virtual void OnErase(BlockId id) = 0;

  virtual void OnCandidate(BlockId id) = 0;
  // No candidate any more: held, or a child moved in. Also before the OnErase of a candidate.
  virtual void OnHeld(BlockId id) = 0;

  // The candidate that should go first; kBlockNone if there is none. Stays a candidate.
  virtual BlockId Victim() const = 0;
  // Erases the blocks at the end of `run` that Victim() would name one after the other, each when
  // the one behind it has gone. How many: at least one; what the last of them hangs on is a
  // candidate then, if it is in `run`. REQUIRES: a run ends with Victim(); each block hangs on the
  // one before and nothing else keeps it.
  virtual uint32_t EraseVictims(BlockRange run) {
    const BlockId end = run.first + run.block_count;
    BlockId id = end;
    do {
      OnHeld(--id);
      OnErase(id);
      if (id == run.first) break;
      OnCandidate(id - 1);
    } while (Victim() == id - 1);
    return end - id;
  }
  // While the tier still grows, what leaves had better be what was used longest ago: whatever came
  // just now will have room in a moment.
  enum class Room : uint8_t { kAllThere, kGrows };
  virtual void OnRoom(Room) {}
  // What was learned of the traffic, for a successor to start from; empty: nothing. Small.
  virtual std::vector<std::byte> Learned() const { return {}; }
  // What a predecessor said then. False: it is of another make, and ignored.
  virtual bool StartFrom(std::span<const std::byte> /*learned*/) { return false; }
  // Another priority, by an operator or a later hint.
  virtual void SetPriority(BlockId id, uint8_t priority) = 0;
};

}  // namespace terrace
