#include "sim/memory_tier.h"

#include <algorithm>
#include <tuple>

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
  stored_[position] = Stored{.extent = extent, .bytes = std::vector<std::byte>(length_bytes)};
  stats_.used_bytes += occupied_bytes;
  return extent;
}

MemoryTier::Stored* MemoryTier::Find(const Extent& extent) {
  const auto found = stored_.find(extent.position);
  return found != stored_.end() && found->second.extent == extent ? &found->second : nullptr;
}

void MemoryTier::Free(const Extent& extent) {
  Stored* stored = Find(extent);
  TERRACE_CHECK(stored != nullptr && !stored->is_quarantined,
                "only the present use of an extent can be freed");
  TERRACE_CHECK(stored->transfer_count == 0, "no transfer on a freed extent is in flight");
  if (options_.is_persistent && stored->state != RecordState::kNone) {
    erasing_[erasures_begun_] = std::move(*stored);
    Post(random_() % (options_.persist_us_max + 1),
         {.kind = EventKind::kErase, .id = erasures_begun_});
    ++erasures_begun_;
  }
  stored_.erase(extent.position);
  stats_.used_bytes -= OccupiedBytes(extent.length_bytes);
}

// Its bytes stay where they are, for whoever wants to look at them; its record does not.
void MemoryTier::Quarantine(const Extent& extent) {
  Stored* stored = Find(extent);
  TERRACE_CHECK(stored != nullptr && stored->transfer_count == 0, "as Free");
  stored->is_quarantined = true;
  stored->state = RecordState::kNone;
  stats_.used_bytes -= OccupiedBytes(extent.length_bytes);
  stats_.quarantined_bytes += OccupiedBytes(extent.length_bytes);
}

Status MemoryTier::Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) {
  TERRACE_CHECK(into.size() == extent.length_bytes, "the buffer is as long as the extent");
  return Begin({.id = transfer_id, .extent = extent, .into = into});
}

Status MemoryTier::ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                             std::span<std::byte> into) {
  TERRACE_CHECK(into.size() <= extent.length_bytes &&
                    offset_bytes <= extent.length_bytes - into.size() &&
                    (offset_bytes | into.size()) % kRangeAlignmentBytes == 0,
                "a range lies in the extent, aligned");
  return Begin({.id = transfer_id, .extent = extent, .into = into, .offset_bytes = offset_bytes});
}

Status MemoryTier::Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                         std::span<const std::byte> from) {
  TERRACE_CHECK(from.size() == extent.length_bytes, "the buffer is as long as the extent");
  const Status status = Begin({.id = transfer_id, .extent = extent, .from = from});
  if (!status.ok()) return status;
  Stored* stored = Find(extent);
  stored->epoch = ++write_count_;
  Keep(record, stored);
  return status;
}

void MemoryTier::Amend(const Extent& extent, const BlockRecord& record) {
  Stored* stored = Find(extent);
  TERRACE_CHECK(stored != nullptr, "only the present use of an extent can be amended");
  if (stored->state == RecordState::kNone) stored->state = RecordState::kPersisted;  // forgotten
  Keep(record, stored);
}

void MemoryTier::Keep(const BlockRecord& record, Stored* stored) const {
  stored->record = record;
  stored->part_checksums.assign(record.part_checksums.begin(), record.part_checksums.end());
  stored->record.part_checksums = {};
}

Status MemoryTier::Begin(Event transfer) {
  TERRACE_CHECK(listener_ != nullptr, "a transfer has somebody to report to");
  if (in_flight_.size() >= options_.queue_max) {
    return Status(StatusCode::kBusy, "queue_max transfers are in flight");
  }
  Stored* stored = Find(transfer.extent);
  if (stored == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  TERRACE_CHECK(in_flight_.insert(transfer.id).second, "a transfer id is in use once");
  ++stored->transfer_count;
  link_free_at_us_ = std::max(link_free_at_us_, now_us_) +
                     TransferUs(std::max(transfer.into.size(), transfer.from.size()));
  const uint64_t latency_us =
      options_.latency_us_min + random_() % (options_.latency_us_max - options_.latency_us_min + 1);
  Post(link_free_at_us_ + latency_us - now_us_, transfer);
  return Status::Ok();
}

void MemoryTier::Post(uint64_t delay_us, const Event& event) {
  queue_.emplace(std::pair(now_us_ + delay_us, event_count_++), event);
}

uint64_t MemoryTier::TransferUs(uint64_t length_bytes) const {
  return (length_bytes + options_.bytes_per_us - 1) / options_.bytes_per_us;
}

void MemoryTier::RunUntil(uint64_t now_us) {
  while (!queue_.empty() && queue_.begin()->first.first <= now_us) {
    now_us_ = std::max(now_us_, queue_.begin()->first.first);
    const Event event = queue_.begin()->second;
    queue_.erase(queue_.begin());
    Stored* stored = Find(event.extent);
    switch (event.kind) {
      case EventKind::kTransfer:
        EndTransfer(event);
        break;
      case EventKind::kPersist:
        if (stored == nullptr || stored->state != RecordState::kWritten) break;
        stored->state = RecordState::kPersisted;
        listener_->OnPersisted(stored->record.domain_index, stored->record.owner,
                               stored->record.commit_id, stored->record.member);
        break;
      case EventKind::kErase:
        erasing_.erase(event.id);
        break;
    }
  }
  now_us_ = std::max(now_us_, now_us);
}

void MemoryTier::EndTransfer(const Event& transfer) {
  Stored& stored = *Find(transfer.extent);
  if (transfer.from.data() != nullptr) {
    std::copy(transfer.from.begin(), transfer.from.end(), stored.bytes.begin());
    stats_.written_bytes += transfer.from.size();
    if (options_.is_persistent) {
      stored.state = RecordState::kWritten;
      Post(random_() % (options_.persist_us_max + 1),
           {.kind = EventKind::kPersist, .extent = transfer.extent});
    }
  } else {
    std::copy_n(stored.bytes.begin() + static_cast<ptrdiff_t>(transfer.offset_bytes),
                transfer.into.size(), transfer.into.begin());
    stats_.read_bytes += transfer.into.size();
  }
  --stored.transfer_count;
  in_flight_.erase(transfer.id);
  listener_->OnTransferDone(transfer.id, Status::Ok());
}

void MemoryTier::KillProcess() {
  TERRACE_CHECK(options_.is_persistent, "a tier that forgets is built anew");
  queue_.clear();
  in_flight_.clear();
  std::vector<Stored> left;
  using Name = std::tuple<GroupId, BlockKey, uint32_t>;
  std::map<Name, uint64_t> epochs;  // of two records for one name the later one holds
  const auto keep = [&](Stored& stored) {
    const bool is_safe = stored.state == RecordState::kPersisted;
    const bool is_lucky = stored.state == RecordState::kWritten && random_() % 2 == 0;
    if (!is_safe && !is_lucky) return;
    uint64_t& epoch = epochs[{stored.record.group, stored.record.key, stored.record.member}];
    epoch = std::max(epoch, stored.epoch);
    left.push_back(std::move(stored));
  };
  for (auto& [position, stored] : stored_) keep(stored);
  // Erased, but not yet for a successor.
  for (auto& [number, stored] : erasing_) {
    if (random_() % 2 == 0) keep(stored);
  }
  stored_.clear();
  erasing_.clear();
  stats_.used_bytes = stats_.quarantined_bytes = 0;
  for (Stored& stored : left) {
    const BlockRecord& record = stored.record;
    if (stored.epoch < epochs.at({record.group, record.key, record.member})) continue;
    const Result<Extent> place = Allocate(0, stored.extent.length_bytes, 1);
    if (!place.ok()) continue;  // what was erased had made room
    stored.extent = *place;
    stored.transfer_count = 0;
    stored.state = RecordState::kPersisted;
    stored_[place->position] = std::move(stored);
  }
}

void MemoryTier::ForgetRecord(const BlockKey& key, uint32_t member) {
  for (auto& [position, stored] : stored_) {
    if (stored.record.key == key && stored.record.member == member) {
      stored.state = RecordState::kNone;
    }
  }
}

void MemoryTier::FlipBit(const BlockKey& key, uint32_t member) {
  for (auto& [position, stored] : stored_) {
    if (stored.record.key == key && stored.record.member == member) {
      stored.bytes[stored.bytes.size() / 2] ^= std::byte{1};
    }
  }
}

void MemoryTier::Restore(const RestoreSink& sink) {
  std::vector<Extent> unwanted;
  for (auto& [position, stored] : stored_) {
    BlockRecord record = stored.record;
    record.part_checksums = stored.part_checksums;
    record.epoch = stored.epoch;
    stored.record.owner = sink(record, stored.extent);
    if (stored.record.owner == kOwnerNone) unwanted.push_back(stored.extent);
  }
  for (const Extent& extent : unwanted) Free(extent);
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
