#include "sim/memory_tier.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace::sim {
namespace {

// Extents begin at pages; each occupies whole pages of the capacity.
constexpr uint64_t kPageBytes = 4096;

uint64_t OccupiedBytes(uint64_t length_bytes) {
  return (length_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

MemoryTier::MemoryTier(const Options& options) : options_(options), random_(options.seed) {
  TERRACE_CHECK(options.queue_max > 0 && options.bytes_per_us > 0, "zero never means unlimited");
  TERRACE_CHECK(options.latency_us_min <= options.latency_us_max, "a range of latencies");
  stats_.capacity_bytes = options.capacity_bytes;
}

Result<Extent> MemoryTier::Allocate(uint32_t /*domain_index*/, uint64_t length_bytes,
                                    uint32_t /*part_count*/) {
  if (length_bytes == 0) return Status(StatusCode::kInvalid, "an extent holds bytes");
  const uint64_t occupied_bytes = OccupiedBytes(length_bytes);
  uint64_t position = 0;  // first fit between the neighbours
  for (const auto& [other_position, other] : stored_) {
    if (other_position - position >= occupied_bytes) break;
    position = other_position + OccupiedBytes(other.extent.length_bytes);
  }
  if (position + occupied_bytes > options_.capacity_bytes) {
    return Status(StatusCode::kNoSpace, "capacity_bytes reached");
  }
  const Extent extent{position, length_bytes, 0, next_generation_++};
  stored_[position] = Stored{extent, std::vector<std::byte>(length_bytes), 0};
  stats_.used_bytes += occupied_bytes;
  return extent;
}

MemoryTier::Stored* MemoryTier::Find(const Extent& extent) {
  const auto found = stored_.find(extent.position);
  return found != stored_.end() && found->second.extent == extent ? &found->second : nullptr;
}

void MemoryTier::Free(const Extent& extent) {
  const Stored* stored = Find(extent);
  TERRACE_CHECK(stored != nullptr, "only the present use of an extent can be freed");
  TERRACE_CHECK(stored->transfer_count == 0, "no transfer on a freed extent is in flight");
  stored_.erase(extent.position);
  stats_.used_bytes -= OccupiedBytes(extent.length_bytes);
}

Status MemoryTier::Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) {
  TERRACE_CHECK(into.size() == extent.length_bytes, "the buffer is as long as the extent");
  return Begin(extent, {.id = transfer_id, .position = extent.position, .into = into});
}

Status MemoryTier::Write(TransferId transfer_id, const Extent& extent,
                         const BlockRecord& /*record*/, std::span<const std::byte> from) {
  TERRACE_CHECK(from.size() == extent.length_bytes, "the buffer is as long as the extent");
  return Begin(extent, {.id = transfer_id, .position = extent.position, .from = from});
}

Status MemoryTier::Begin(const Extent& extent, Transfer transfer) {
  TERRACE_CHECK(listener_ != nullptr, "a transfer has somebody to report to");
  if (in_flight_.size() >= options_.queue_max) {
    return Status(StatusCode::kBusy, "queue_max transfers are in flight");
  }
  Stored* stored = Find(extent);
  if (stored == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  TERRACE_CHECK(in_flight_.insert(transfer.id).second, "a transfer id is in use once");
  ++stored->transfer_count;
  link_free_at_us_ = std::max(link_free_at_us_, now_us_) + TransferUs(extent.length_bytes);
  const uint64_t latency_us =
      options_.latency_us_min + random_() % (options_.latency_us_max - options_.latency_us_min + 1);
  queue_.emplace(std::pair(link_free_at_us_ + latency_us, transfers_begun_++), transfer);
  return Status::Ok();
}

uint64_t MemoryTier::TransferUs(uint64_t length_bytes) const {
  return (length_bytes + options_.bytes_per_us - 1) / options_.bytes_per_us;
}

void MemoryTier::RunUntil(uint64_t now_us) {
  while (!queue_.empty() && queue_.begin()->first.first <= now_us) {
    const uint64_t due_us = queue_.begin()->first.first;
    const Transfer transfer = queue_.begin()->second;
    queue_.erase(queue_.begin());
    now_us_ = std::max(now_us_, due_us);
    Stored& stored = stored_.at(transfer.position);
    if (transfer.from.data() != nullptr) {
      std::copy(transfer.from.begin(), transfer.from.end(), stored.bytes.begin());
      stats_.written_bytes += transfer.from.size();
    } else {
      std::copy(stored.bytes.begin(), stored.bytes.end(), transfer.into.begin());
      stats_.read_bytes += transfer.into.size();
    }
    --stored.transfer_count;
    in_flight_.erase(transfer.id);
    listener_->OnTransferDone(transfer.id, Status::Ok());
  }
  now_us_ = std::max(now_us_, now_us);
}

uint64_t MemoryTier::NextCompletionUs() const {
  return queue_.empty() ? UINT64_MAX : queue_.begin()->first.first;
}

uint64_t MemoryTier::PredictReadUs(uint64_t length_bytes) const {
  const uint64_t queued_us = std::max(link_free_at_us_, now_us_) - now_us_;
  return queued_us + TransferUs(length_bytes) + options_.latency_us_max;
}

TierStats MemoryTier::stats() const {
  TierStats stats = stats_;
  stats.transfers_in_flight = in_flight_.size();
  return stats;
}

}  // namespace terrace::sim
