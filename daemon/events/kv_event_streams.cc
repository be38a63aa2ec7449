#include "daemon/events/kv_event_streams.h"

#include <algorithm>

#include "daemon/block/kv_event_sink.h"
#include "terrace/check.h"

namespace terrace {

uint32_t KvEventStreams::Open(const std::string& topic, uint32_t block_tokens) {
  const std::lock_guard guard(mutex_);
  const auto known = by_topic_.find({topic, block_tokens});
  if (known != by_topic_.end()) {
    ++slots_[known->second].group_count;
    return NameOf(known->second);
  }
  uint32_t slot = static_cast<uint32_t>(slots_.size());
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (slot < kStreamsMax) {
    slots_.emplace_back();
  } else {
    return KvEventSink::kStreamNone;
  }
  slots_[slot] = {.stream = {.topic = topic, .block_tokens = block_tokens},
                  .generation = slots_[slot].generation,
                  .group_count = 1,
                  .is_taken = true};
  by_topic_[{topic, block_tokens}] = slot;
  opened_.push_back(slot);
  return NameOf(slot);
}

void KvEventStreams::End(uint32_t stream, uint64_t place) {
  const std::lock_guard guard(mutex_);
  const uint32_t slot = stream % kStreamsMax;
  TERRACE_CHECK(slot < slots_.size() && NameOf(slot) == stream && slots_[slot].group_count > 0,
                "each group of a stream goes once");
  if (--slots_[slot].group_count > 0) return;
  slots_[slot].end_place = place;
  if (!std::ranges::count(ending_, slot)) ending_.push_back(slot);
}

const KvEventStreams::Stream* KvEventStreams::Find(uint32_t stream) const {
  const std::lock_guard guard(mutex_);
  const uint32_t slot = stream % kStreamsMax;
  TERRACE_CHECK(slot < slots_.size(), "events are of a stream that Open gave");
  const bool is_it = slots_[slot].is_taken && NameOf(slot) == stream;
  return is_it ? &slots_[slot].stream : nullptr;
}

bool KvEventStreams::has_changes(uint64_t taken) const {
  const std::lock_guard guard(mutex_);
  return !opened_.empty() ||
         std::ranges::any_of(ending_, [&](uint32_t slot) { return IsEnding(slot, taken); });
}

std::vector<KvEventStreams::Change> KvEventStreams::TakeChanges(uint64_t taken) {
  const std::lock_guard guard(mutex_);
  std::vector<Change> changes;
  for (const uint32_t slot : opened_) {
    changes.push_back({NameOf(slot), true, slots_[slot].stream.topic});
  }
  opened_.clear();
  std::erase_if(ending_, [&](uint32_t slot) {
    Slot& ending = slots_[slot];
    if (ending.group_count > 0) return true;
    if (!IsEnding(slot, taken)) return false;
    changes.push_back({NameOf(slot), false, ending.stream.topic});
    by_topic_.erase({ending.stream.topic, ending.stream.block_tokens});
    ending.generation = (ending.generation + 1) & kGenerationMask;
    ending.is_taken = false;
    ending.stream = {};
    free_.push_back(slot);
    return true;
  });
  return changes;
}

}  // namespace terrace
