// What one process asked of the daemon and was answered, call by call, in a file that outlives it:
// a call is written down before it is made, its answer after it. history_check.h judges the files
// of all processes together.
//
// THREADING: one thread a History.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chaos/pattern.h"
#include "terrace/status.h"

namespace terrace::chaos {

enum class EventKind : uint8_t {
  kNone = 0,  // the end of a history
  kRead,      // Acquire and the bytes it gave: ids are the commits read; more were asked for
  kReserve,   // ids are what it granted, 0 for a block that was not
  kCommit,    // of these ids
  kErase,     // Evict of blocks [first, asked); nothing was skipped if it was answered "ok"
  kHeld,      // the same lease read again: since the kRead at `earlier` it was held
};

// One call. Times are CLOCK_MONOTONIC, which all processes of a host share.
struct Event {
  EventKind kind = EventKind::kNone;
  StatusCode status = StatusCode::kOk;
  uint16_t first = 0;     // index of the first block in its prompt
  uint16_t id_count = 0;  // commits behind it
  uint16_t asked = 0;     // kRead, kErase: one past the last block; kCommit: how many were accepted
  uint32_t prompt = 0;
  uint32_t earlier = 0;  // kHeld: word offset of its kRead
  uint64_t began_ns = 0;
  uint64_t ended_ns = 0;  // 0: the process ended in the call
};
static_assert(sizeof(Event) == 32, "events are written as they lie in memory");

uint64_t MonotonicNs();

// The writer. Without a path it takes everything and keeps nothing.
class History {
 public:
  static constexpr size_t kWordsMax = size_t{1} << 26;  // of a sparse file

  explicit History(const std::string& path);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  bool is_full() const { return words_ != nullptr && at_ + kReserveWords > kWordsMax; }
  // Begins a call now. Returns where it stands, for End.
  size_t Begin(const Event& event, std::span<const CommitId> ids = {});
  // The call that began last has this answer.
  struct Answer {
    StatusCode status = StatusCode::kOk;
    std::span<const CommitId> ids = {};  // none: those of Begin
    uint64_t ended_ns = 0;               // 0: now
    size_t asked = 0;                    // 0: that of Begin
  };
  void End(size_t at, const Answer& answer);

 private:
  static constexpr size_t kEventWords = sizeof(Event) / sizeof(uint64_t);
  static constexpr size_t kReserveWords = 4096;

  uint64_t* words_ = nullptr;
  size_t at_ = 0;
};

// One event with its ids, as the reader sees it.
struct EventView {
  Event event;
  size_t at = 0;
  std::span<const CommitId> ids;
};

// The events of a history, in order. `Next` is false at its end.
class HistoryReader {
 public:
  explicit HistoryReader(std::span<const uint64_t> words) : words_(words) {}
  bool Next(EventView* view);

 private:
  std::span<const uint64_t> words_;
  size_t at_ = 0;
};

}  // namespace terrace::chaos
