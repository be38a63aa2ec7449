// KvEventStreams: the topic of each group's events. Groups of one topic and block size share a
// stream; it goes with the last of them, once whatever was queued before that is sent. A stream's
// name is never that of one before it in the same place, so late events of one that has gone are
// told from those of its successor.
//
// THREADING: Open and End are the store thread's, the rest the publisher's. LIMITS: kStreamsMax.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace terrace {

class KvEventStreams {
 public:
  static constexpr uint32_t kStreamsMax = 1 << 15;

  struct Stream {
    std::string topic;
    uint32_t block_tokens = 0;
  };
  struct Change {
    uint32_t stream = 0;
    bool begins = false;  // or ends
    std::string topic;
  };

  // KvEventSink::kStreamNone: there are kStreamsMax.
  uint32_t Open(const std::string& topic, uint32_t block_tokens);
  // A group of its goes. Events before `place` in the queue may be of it.
  void End(uint32_t stream, uint64_t place);

  // Null: it has ended, and TakeChanges has said so. Stays as it is until then.
  const Stream* Find(uint32_t stream) const;
  // In order, once each. Those that end do once events before `taken` are sent.
  std::vector<Change> TakeChanges(uint64_t taken);
  bool has_changes(uint64_t taken) const;

 private:
  static constexpr uint32_t kPlaceBits = 15;
  static_assert(kStreamsMax == 1u << kPlaceBits);
  static constexpr uint32_t kGenerationMask = (1u << 16) - 1;  // so none is kStreamNone

  struct Slot {
    Stream stream;
    uint32_t generation = 0;
    uint32_t group_count = 0;
    bool is_taken = false;
    uint64_t end_place = 0;  // of group_count 0
  };

  uint32_t NameOf(uint32_t slot) const { return slots_[slot].generation << kPlaceBits | slot; }
  bool IsEnding(uint32_t slot, uint64_t taken) const {
    return slots_[slot].group_count == 0 && slots_[slot].end_place <= taken;
  }

  mutable std::mutex mutex_;
  std::deque<Slot> slots_;  // nothing in it moves
  std::map<std::pair<std::string, uint32_t>, uint32_t> by_topic_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> opened_;  // not said to have begun
  std::vector<uint32_t> ending_;  // of no group, or again of one
};

}  // namespace terrace
