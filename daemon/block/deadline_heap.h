// DeadlineHeap: what is to happen when. One heap for all deadlines of the store; entries can be
// taken back by their handle. Equal deadlines come in the order they were added, so replays agree.
//
// THREADING: one thread. LIMITS: one entry a session, pending request, expiring block, named pin
// and shared copy, all bounded.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/block/block.h"

namespace terrace {

enum class DeadlineKind : uint8_t {
  kSessionSilent,
  kPending,
  kBlockExpiry,
  kPopulateRetry,
  kDrain,
  kTick,
  kSeek,
  kRoom,
  kNamedPin,
  kSharedCopy,
};

struct Deadline {
  uint64_t due_us = 0;
  DeadlineKind kind = DeadlineKind::kSessionSilent;
  uint32_t domain_index = 0;
  uint32_t id = 0;  // what it is about; its owner takes the entry back when that is gone
};

class DeadlineHeap {
 public:
  // A handle for Remove.
  uint32_t Add(const Deadline& deadline);
  void Remove(uint32_t handle);
  // Takes the first deadline due at `now_us`. False if there is none.
  bool PopDue(uint64_t now_us, Deadline* deadline);
  // kNever when empty.
  uint64_t next_us() const { return heap_.empty() ? kNever : heap_[0].deadline.due_us; }
  uint32_t count() const { return static_cast<uint32_t>(heap_.size()); }

 private:
  struct Entry {
    Deadline deadline;
    uint64_t order = 0;
    uint32_t handle = 0;
  };
  static bool IsBefore(const Entry& a, const Entry& b);
  void Place(uint32_t place, const Entry& entry);
  void Settle(uint32_t place, const Entry& entry);

  std::vector<Entry> heap_;
  std::vector<uint32_t> places_;  // by handle
  std::vector<uint32_t> free_handles_;
  uint64_t added_count_ = 0;
};

}  // namespace terrace
