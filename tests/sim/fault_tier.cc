#include "sim/fault_tier.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
  if (rates_ppm_[index] == 0 || random_() % kMillion >= rates_ppm_[index]) return false;
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
  Result<Extent> extent = tier_.Allocate(domain_index, length_bytes, part_count);
  if (extent.ok()) live_[{extent->shard, extent->position}] = Live{.extent = *extent};
  return extent;
}

void FaultTier::Free(const Extent& extent) {
  Live* live = FindLive(extent);
  TERRACE_CHECK(live != nullptr && !live->is_freed,
                "only the present use of an extent can be freed");
  TERRACE_CHECK(live->transfer_count == 0, "no transfer on a freed extent is in flight");
  live->is_freed = true;
  ++live->borrower_count;
  EndBorrowing(extent);
}

void FaultTier::EndBorrowing(const Extent& extent) {
  Live* live = FindLive(extent);
  if (--live->borrower_count > 0 || !live->is_freed) return;
  live_.erase({extent.shard, extent.position});
  tier_.Free(extent);
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
  return Began(transfer_id, tier_.Read(transfer_id, moved, target));
}

Status FaultTier::Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                        std::span<const std::byte> from) {
  if (is_off_) return kSwitchedOff;
  if (FindLive(extent) == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  if (Strikes(Fault::kBusy)) return Status(StatusCode::kBusy, kInjected);
  Transfer transfer{.extent = extent, .moved = extent};
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
  return Began(transfer_id, tier_.Write(transfer_id, extent, record, source));
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
    hung_.push_back({transfer_id, transfer.extent, status});
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
  Report(transfer_id, transfer.extent, transfer.fault && !is_lie ? kFailed : status);
}

void FaultTier::Report(TransferId transfer_id, const Extent& extent, Status status) {
  --FindLive(extent)->transfer_count;
  if (!status.ok()) ++failed_transfers_;
  listener_->OnTransferDone(transfer_id, status);
}

void FaultTier::ReleaseHung() {
  for (const Hung& hung : std::exchange(hung_, {})) {
    Report(hung.transfer_id, hung.extent, hung.status);
  }
}

TierStats FaultTier::stats() const {
  TierStats stats = tier_.stats();
  stats.transfers_in_flight += hung_.size();
  stats.failed_transfers = failed_transfers_;
  stats.is_healthy = stats.is_healthy && !is_off_;
  return stats;
}

}  // namespace terrace::sim
