#include "tiers/arena/dram_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "terrace/check.h"

namespace terrace {

DramTier::DramTier(Options options, TierListener& listener)
    : options_(std::move(options)), listener_(listener) {
  TERRACE_CHECK(options_.queue_max > 0 && options_.bytes_per_us > 0, "zero never means unlimited");
}

// position = row << 32 | page: both are needed to name the slot again.
Extent DramTier::ExtentOf(const SlotRef& slot, uint64_t length_bytes) {
  return {.position = uint64_t{slot.row} << 32 | slot.address.page,
          .length_bytes = length_bytes,
          .shard = slot.address.segment,
          .generation = slot.generation};
}

SlotRef DramTier::SlotOf(const Extent& extent) {
  SlotRef slot;
  slot.address = {extent.shard, static_cast<uint32_t>(extent.position)};
  slot.row = static_cast<uint32_t>(extent.position >> 32);
  slot.generation = extent.generation;
  return slot;
}

Result<Extent> DramTier::Allocate(uint32_t /*domain_index*/, uint64_t length_bytes,
                                  uint32_t /*part_count*/) {
  const uint64_t slot_bytes = RoundUp(length_bytes, kArenaPageBytes);
  auto known = class_by_slot_bytes_.find(slot_bytes);
  if (known == class_by_slot_bytes_.end()) {
    const Result<uint32_t> added = options_.slots->AddClass(slot_bytes, options_.owner);
    if (!added.ok()) return added.status();
    known = class_by_slot_bytes_.emplace(slot_bytes, *added).first;
  }
  const Result<SlotRef> slot = options_.slots->Allocate(known->second);
  if (!slot.ok()) return slot.status();
  return ExtentOf(*slot, length_bytes);
}

void DramTier::Free(const Extent& extent) {
  TERRACE_CHECK(std::ranges::none_of(
                    in_flight_, [&](const auto& entry) { return entry.second.extent == extent; }),
                "no transfer on a freed extent is in flight");
  options_.slots->Free(SlotOf(extent));
}

std::byte* DramTier::BytesOf(const Extent& extent) const {
  return options_.segment_base(extent.shard) + SlotOf(extent).address.page * kArenaPageBytes;
}

Status DramTier::Refusal(const Extent& extent) const {
  if (in_flight_.size() >= options_.queue_max) {
    return Status(StatusCode::kBusy, "queue_max transfers are in flight");
  }
  if (!options_.slots->IsCurrent(SlotOf(extent))) {
    return Status(StatusCode::kGone, "the extent was freed");
  }
  return Status::Ok();
}

Status DramTier::Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) {
  TERRACE_CHECK(into.size() == extent.length_bytes, "the buffer is as long as the extent");
  TERRACE_RETURN_IF_ERROR(Refusal(extent));
  Begin(transfer_id,
        {.extent = extent, .to = into.data(), .from = BytesOf(extent), .is_read = true});
  return Status::Ok();
}

Status DramTier::Write(TransferId transfer_id, const Extent& extent, const BlockRecord& /*record*/,
                       std::span<const std::byte> from) {
  TERRACE_CHECK(from.size() == extent.length_bytes, "the buffer is as long as the extent");
  TERRACE_RETURN_IF_ERROR(Refusal(extent));
  Begin(transfer_id,
        {.extent = extent, .to = BytesOf(extent), .from = from.data(), .is_read = false});
  return Status::Ok();
}

void DramTier::Begin(TransferId transfer_id, const Copy& copy) {
  TERRACE_CHECK(in_flight_.emplace(transfer_id, copy).second, "a transfer id is in use once");
  bytes_in_flight_ += copy.extent.length_bytes;
  options_.copy_executor([this, transfer_id, copy] {
    std::memcpy(copy.to, copy.from, copy.extent.length_bytes);
    options_.store_executor([this, transfer_id] { Finish(transfer_id); });
  });
}

void DramTier::Finish(TransferId transfer_id) {
  const Copy copy = in_flight_.extract(transfer_id).mapped();
  bytes_in_flight_ -= copy.extent.length_bytes;
  (copy.is_read ? stats_.read_bytes : stats_.written_bytes) += copy.extent.length_bytes;
  listener_.OnTransferDone(transfer_id, Status::Ok());
}

uint64_t DramTier::PredictReadUs(uint64_t length_bytes) const {
  return (bytes_in_flight_ + length_bytes + options_.bytes_per_us - 1) / options_.bytes_per_us;
}

TierStats DramTier::stats() const {
  const SlotAllocator::Usage usage = options_.slots->usage();
  TierStats stats = stats_;
  stats.capacity_bytes =
      usage.used_bytes + usage.free_slot_bytes + usage.waste_bytes + usage.unassigned_bytes;
  stats.used_bytes = usage.used_bytes;
  stats.transfers_in_flight = in_flight_.size();
  return stats;
}

}  // namespace terrace
