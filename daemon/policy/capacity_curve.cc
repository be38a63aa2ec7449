#include "daemon/policy/capacity_curve.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

CapacityCurve::CapacityCurve(uint64_t span_bytes, uint64_t seed)
    : span_bytes_(span_bytes),
      seed_(seed),
      entries_(kStamps),
      sums_(kStamps + 1),
      slots_(kSlots, kNone) {
  TERRACE_CHECK(span_bytes > 0, "a tier of no bytes has no curve");
}

// Keys are digests, but clients choose them: nobody shall choose who is sampled.
uint64_t CapacityCurve::HashOf(const BlockKey& key) const {
  uint64_t x = (key.low ^ seed_) * 0x9E3779B97F4A7C15u ^ key.high;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}

uint32_t CapacityCurve::SlotOf(uint64_t hash) const {
  auto slot = static_cast<uint32_t>(hash % kSlots);
  while (slots_[slot] != kNone && entries_[slots_[slot]].hash != hash) slot = (slot + 1) % kSlots;
  return slot;
}

void CapacityCurve::AddBytes(uint32_t stamp, uint64_t byte_count) {
  for (uint32_t i = stamp + 1; i <= kStamps; i += i & (~i + 1)) sums_[i] += byte_count;
}

uint64_t CapacityCurve::BytesUpTo(uint32_t stamp) const {
  uint64_t sum = 0;
  for (uint32_t i = stamp + 1; i > 0; i -= i & (~i + 1)) sum += sums_[i];
  return sum;
}

void CapacityCurve::Add(uint32_t stamp, const Entry& entry) {
  entries_[stamp] = entry;
  slots_[SlotOf(entry.hash)] = stamp;
  AddBytes(stamp, entry.byte_count);
  total_bytes_ += entry.byte_count;
  ++count_;
}

void CapacityCurve::Remove(uint32_t stamp) {
  TERRACE_CHECK(count_ > 0 && total_bytes_ >= entries_[stamp].byte_count,
                "the sum is that of the samples");
  AddBytes(stamp, ~entries_[stamp].byte_count + 1);
  total_bytes_ -= entries_[stamp].byte_count;
  --count_;
  // Close the gap in the run of slots, so that no search ends at it.
  const uint32_t gap = SlotOf(entries_[stamp].hash);
  slots_[gap] = kNone;
  entries_[stamp] = {};
  for (uint32_t slot = (gap + 1) % kSlots; slots_[slot] != kNone; slot = (slot + 1) % kSlots) {
    const uint32_t moved = slots_[slot];
    slots_[slot] = kNone;
    slots_[SlotOf(entries_[moved].hash)] = moved;
  }
}

uint64_t CapacityCurve::DistanceOf(const BlockKey& key) const {
  const uint32_t stamp = slots_[SlotOf(HashOf(key))];
  if (stamp == kNone) return kFar;
  // Half of itself: its neighbours among all blocks are on either side of it.
  const uint64_t own_bytes = entries_[stamp].byte_count;
  const uint64_t bytes = (total_bytes_ - BytesUpTo(stamp)) * weight_ + own_bytes * weight_ / 2;
  return bytes >= span_bytes_ ? kFar : bytes;
}

void CapacityCurve::Use(const BlockKey& key, uint64_t byte_count) {
  if (next_stamp_ == kStamps) Renumber();
  TERRACE_CHECK(next_stamp_ < kStamps, "stamps begin anew before they run out");
  const Entry entry{.hash = HashOf(key), .byte_count = std::max<uint64_t>(byte_count, 1)};
  const uint32_t slot = SlotOf(entry.hash);
  const uint32_t before = slots_[slot];
  if (before == kNone) {
    Add(next_stamp_++, entry);
  } else {  // its slot stays
    const uint64_t bytes_before = entries_[before].byte_count;
    AddBytes(before, ~bytes_before + 1);
    entries_[before] = {};
    slots_[slot] = next_stamp_;
    entries_[next_stamp_] = entry;
    AddBytes(next_stamp_++, entry.byte_count);
    total_bytes_ += entry.byte_count - bytes_before;
  }
  while (count_ > 1 && total_bytes_ * weight_ > span_bytes_) {
    while (entries_[oldest_].byte_count == 0) ++oldest_;
    TERRACE_CHECK(oldest_ + 1 < next_stamp_, "of two the older goes: the newest was just used");
    Remove(oldest_);
  }
  if (count_ < kSamplesMax) return;
  weight_ *= 2;
  Renumber();
}

// The same order from stamp 0 on, without those that are not sampled any more.
void CapacityCurve::Renumber() {
  std::fill(slots_.begin(), slots_.end(), kNone);
  std::fill(sums_.begin(), sums_.end(), 0);
  total_bytes_ = 0;
  count_ = 0;
  uint32_t stamp = 0;
  for (uint32_t old = oldest_; old < next_stamp_; ++old) {
    const Entry entry = entries_[old];
    entries_[old] = {};
    if (entry.byte_count == 0 || (entry.hash >> 32) % weight_ != 0) continue;
    entries_[stamp] = entry;
    slots_[SlotOf(entry.hash)] = stamp;
    sums_[stamp + 1] += entry.byte_count;
    total_bytes_ += entry.byte_count;
    ++count_;
    ++stamp;
  }
  for (uint32_t i = 1; i <= kStamps; ++i) {
    const uint32_t above = i + (i & (~i + 1));
    if (above <= kStamps) sums_[above] += sums_[i];
  }
  next_stamp_ = stamp;
  oldest_ = 0;
}

}  // namespace terrace
