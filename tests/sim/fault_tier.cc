#include "sim/fault_tier.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/swarm.h"
#include "terrace/check.h"

namespace terrace::sim {
namespace {

constexpr uint32_t kMillion = 1'000'000;
constexpr std::byte kGarbage{0xA5};
constexpr const char* kInjected = "a fault was injected";
constexpr Status kFailed(StatusCode::kIo, kInjected, 5 /* EIO */);
constexpr Status kSwitchedOff(StatusCode::kUnsupported, "the tier is switched off");

}  // namespace

bool FaultTier::Strikes(Fault fault) {
  const auto index = static_cast<size_t>(fault);
  if (rates_ppm_[index] == 0) return false;
  if (HashOf(seed_, index, ++draws_[index]) % kMillion >= rates_ppm_[index]) return false;
  ++struck_[index];
  return true;
}

std::optional<Fault> FaultTier::FirstToStrike(std::initializer_list<Fault> faults) {
  for (const Fault fault : faults) {
    if (Strikes(fault)) return fault;
  }
  return std::nullopt;
}

FaultTier::Live* FaultTier::FindLive(const Extent& extent) {
  const auto found = live_.find({extent.shard, extent.position});
  return found != live_.end() && found->second.extent == extent ? &found->second : nullptr;
}

Result<Extent> FaultTier::Allocate(uint32_t domain_index, uint64_t length_bytes,
                                   uint32_t part_count) {
  if (is_off_) return kSwitchedOff;
  if (Strikes(Fault::kNoSpace)) return Status(StatusCode::kNoSpace, kInjected);
  if (Strikes(Fault::kMakesRoom)) {
    domains_without_room_.insert(domain_index);
    return Status(StatusCode::kBusy, kInjected);
  }
  Result<Extent> extent = tier_.Allocate(domain_index, length_bytes, part_count);
  if (extent.ok()) live_[{extent->shard, extent->position}] = Live{.extent = *extent};
  return extent;
}

void FaultTier::Free(const Extent& extent) { GiveBack(extent, /*is_bad=*/false); }

void FaultTier::Quarantine(const Extent& extent) { GiveBack(extent, /*is_bad=*/true); }

void FaultTier::GiveBack(const Extent& extent, bool is_bad) {
  Live* live = FindLive(extent);
  TERRACE_CHECK(live != nullptr && !live->is_freed,
                "only the present use of an extent can be freed");
  TERRACE_CHECK(live->transfer_count == 0, "no transfer on a freed extent is in flight");
  live->is_freed = true;
  live->is_bad = is_bad;
  records_.erase(live->record);
  ++live->borrower_count;
  EndBorrowing(extent);
}

void FaultTier::EndBorrowing(const Extent& extent) {
  Live* live = FindLive(extent);
  if (--live->borrower_count > 0 || !live->is_freed) return;
  const bool is_bad = live->is_bad;
  live_.erase({extent.shard, extent.position});
  if (is_bad) {
    tier_.Quarantine(extent);
  } else {
    tier_.Free(extent);
  }
}

BlockRecord FaultTier::Renamed(const BlockRecord& record, uint32_t name) const {
  BlockRecord renamed = record;
  renamed.owner = name;
  return renamed;
}

void FaultTier::Amend(const Extent& extent, const BlockRecord& record) {
  const Live* live = FindLive(extent);
  TERRACE_CHECK(live != nullptr && !live->is_freed, "only the present use can be amended");
  tier_.Amend(extent, Renamed(record, live->record));
}

const Extent* FaultTier::OtherOfEqualLength(const Extent& extent) {
  auto at = std::next(live_.begin(), static_cast<ptrdiff_t>(random_() % live_.size()));
  for (size_t i = 0; i < live_.size(); ++i) {
    const Live& other = at->second;
    if (other.extent.length_bytes == extent.length_bytes && !(other.extent == extent) &&
        !other.is_freed) {
      return &other.extent;
    }
    if (++at == live_.end()) at = live_.begin();
  }
  return nullptr;
}

Status FaultTier::Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) {
  return ReadRange(transfer_id, extent, 0, into);
}

Status FaultTier::ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                            std::span<std::byte> into) {
  if (is_off_) return kSwitchedOff;
  if (FindLive(extent) == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  if (Strikes(Fault::kBusy)) return Status(StatusCode::kBusy, kInjected);
  Transfer transfer{.extent = extent, .moved = extent, .into = into};
  const Extent* other = OtherOfEqualLength(extent);
  transfer.fault =
      FirstToStrike({Fault::kReadFails, Fault::kReadShort, Fault::kReadFlipsBit, Fault::kHangs});
  if (!transfer.fault && other != nullptr) {
    transfer.fault = FirstToStrike({Fault::kReadMisdirected});
    if (transfer.fault) transfer.moved = *other;
  }
  std::span<std::byte> target = into;
  if (transfer.fault == Fault::kReadShort) {
    transfer.scratch.resize(into.size());
    target = transfer.scratch;
  }
  const Extent moved = transfer.moved;
  TERRACE_CHECK(transfers_.emplace(transfer_id, std::move(transfer)).second,
                "a transfer id is in use once");
  const bool is_whole = into.size() == extent.length_bytes;
  return Began(transfer_id, is_whole ? tier_.Read(transfer_id, moved, target)
                                     : tier_.ReadRange(transfer_id, moved, offset_bytes, target));
}

Status FaultTier::Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                        std::span<const std::byte> from) {
  if (is_off_) return kSwitchedOff;
  if (FindLive(extent) == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  if (Strikes(Fault::kBusy)) return Status(StatusCode::kBusy, kInjected);
  const uint32_t name = next_record_++;
  Transfer transfer{.record = name, .extent = extent, .moved = extent};
  transfer.fault = FirstToStrike({Fault::kWriteFails, Fault::kWriteShort, Fault::kHangs});
  std::span<const std::byte> source = from;
  if (transfer.fault == Fault::kWriteShort) {
    transfer.scratch.assign(from.begin(), from.end());
    std::fill(transfer.scratch.begin() + static_cast<ptrdiff_t>(from.size() / 2),
              transfer.scratch.end(), kGarbage);
    source = transfer.scratch;
  }
  TERRACE_CHECK(transfers_.emplace(transfer_id, std::move(transfer)).second,
                "a transfer id is in use once");
  const Status status =
      Began(transfer_id, tier_.Write(transfer_id, extent, Renamed(record, name), source));
  if (status.ok()) {
    records_[name] = {.extent = extent, .owner = record.owner};
    FindLive(extent)->record = name;
  }
  return status;
}

Status FaultTier::Began(TransferId transfer_id, Status status) {
  const auto found = transfers_.find(transfer_id);
  if (!status.ok()) {
    transfers_.erase(found);
    return status;
  }
  ++FindLive(found->second.extent)->transfer_count;
  ++FindLive(found->second.moved)->borrower_count;
  return status;
}

void FaultTier::OnTransferDone(TransferId transfer_id, Status status) {
  const auto found = transfers_.find(transfer_id);
  TERRACE_CHECK(found != transfers_.end(), "a completion belongs to a transfer");
  const Transfer transfer = std::move(found->second);
  transfers_.erase(found);
  EndBorrowing(transfer.moved);
  if (transfer.fault == Fault::kHangs) {
    hung_.push_back({transfer_id, transfer, status});
    return;
  }
  if (transfer.fault == Fault::kReadShort) {
    std::copy_n(transfer.scratch.begin(), transfer.into.size() / 2, transfer.into.begin());
  }
  if (transfer.fault == Fault::kReadFlipsBit) {
    const uint64_t bit = random_() % (transfer.into.size() * 8);
    transfer.into[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  const bool is_lie =
      transfer.fault == Fault::kReadFlipsBit || transfer.fault == Fault::kReadMisdirected;
  Report(transfer_id, transfer, transfer.fault && !is_lie ? kFailed : status);
}

void FaultTier::Report(TransferId transfer_id, const Transfer& transfer, Status status) {
  --FindLive(transfer.extent)->transfer_count;
  if (!status.ok()) {
    ++failed_transfers_;
    records_.erase(transfer.record);  // whatever becomes of it below
  }
  listener_->OnTransferDone(transfer_id, status);
  const auto record = records_.find(transfer.record);
  if (record == records_.end()) return;
  record->second.is_done = true;
  if (!record->second.is_persisted) return;
  const Record::Early early = record->second.early;
  listener_->OnPersisted(early.domain_index, record->second.owner, early.commit_id, early.member);
}

void FaultTier::OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                            uint32_t member) {
  const auto record = records_.find(owner);
  if (record == records_.end()) return;  // freed, or its write was said to have failed
  if (record->second.is_done) {
    listener_->OnPersisted(domain_index, record->second.owner, commit_id, member);
    return;
  }
  record->second.is_persisted = true;
  record->second.early = {domain_index, commit_id, member};
}

void FaultTier::AppendOwnersToDrop(uint64_t length_bytes, uint32_t part_count,
                                   std::vector<uint32_t>* owners) {
  std::vector<uint32_t> names;
  tier_.AppendOwnersToDrop(length_bytes, part_count, &names);
  AppendOwnersOf(names, owners);
}

bool FaultTier::AppendOwnersToGive(std::vector<uint32_t>* owners) {
  std::vector<uint32_t> names;
  const bool has_more = tier_.AppendOwnersToGive(&names);
  AppendOwnersOf(names, owners);
  return has_more;
}

bool FaultTier::AppendOwnersToMove(std::vector<uint32_t>* owners) {
  std::vector<uint32_t> names;
  const bool has_more = tier_.AppendOwnersToMove(&names);
  AppendOwnersOf(names, owners);
  return has_more;
}

void FaultTier::AppendOwnersOf(const std::vector<uint32_t>& names,
                               std::vector<uint32_t>* owners) const {
  for (const uint32_t name : names) {
    const auto record = records_.find(name);
    if (record != records_.end()) owners->push_back(record->second.owner);
  }
}

void FaultTier::Forget() {
  live_.clear();
  records_.clear();
  transfers_.clear();
  hung_.clear();
  domains_without_room_.clear();
}

uint32_t FaultTier::OnRestored(const Extent& extent, uint32_t owner) {
  if (owner == kOwnerNone) return kOwnerNone;
  const uint32_t name = next_record_++;
  live_[{extent.shard, extent.position}] = {.extent = extent, .record = name};
  records_[name] = {.extent = extent, .owner = owner, .is_done = true};
  return name;
}

void FaultTier::ReleaseHung() {
  for (const Hung& hung : std::exchange(hung_, {})) {
    Report(hung.transfer_id, hung.transfer, hung.status);
  }
  for (const uint32_t domain_index : std::exchange(domains_without_room_, {})) {
    listener_->OnRoom(domain_index);
  }
}

// What is borrowed when it is freed is erased later, and counts from then on.
ErasureProgress FaultTier::erasures() const {
  ErasureProgress progress = tier_.erasures();
  for (const auto& [place, live] : live_) progress.begun += live.is_freed;
  return progress;
}

TierStats FaultTier::stats() const {
  TierStats stats = tier_.stats();
  stats.transfers_in_flight += hung_.size();
  stats.failed_transfers = failed_transfers_;
  stats.is_healthy = stats.is_healthy && !is_off_;
  return stats;
}

}  // namespace terrace::sim
