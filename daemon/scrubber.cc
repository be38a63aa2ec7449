#include "daemon/scrubber.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {
namespace {

constexpr uint32_t kDomainShift = 48;  // of TransferIds and OffloadIds
constexpr uint64_t kMemoryAlignmentBytes = 4096;

}  // namespace

Scrubber::~Scrubber() {
  if (phase_ == Phase::kReading || phase_ == Phase::kHashing) KeepForGood(std::move(memory_));
}

void Scrubber::KeepForGood(Memory memory) {
  static auto* kept = new std::vector<Memory>;
  kept->push_back(std::move(memory));
}

void Scrubber::Tick() {
  if (d_.persistent_tier == kLowerTiersMax || d_.options.scrub_bytes_per_second == 0) return;
  EarnBudget();
  if (phase_ == Phase::kRead) BeginHashing();
  Step();
}

void Scrubber::EarnBudget() {
  const auto rate_bytes = static_cast<int64_t>(d_.options.scrub_bytes_per_second);
  const uint64_t now_us = d_.NowUs();
  const auto earned_us = static_cast<int64_t>(std::min(now_us - budget_since_us_, kBurstUs));
  budget_since_us_ = now_us;
  // In milliseconds: 64 GiB a second times a million microseconds would not fit.
  budget_bytes_ = std::min(budget_bytes_ + rate_bytes / 1000 * (earned_us / 1000) +
                               rate_bytes % 1000 * (earned_us / 1000) / 1000,
                           rate_bytes);
}

void Scrubber::Step() {
  while (phase_ == Phase::kIdle && budget_bytes_ > 0 && MayRead()) {
    if (!MoveOn() || !BeginRead()) return;
  }
}

bool Scrubber::MayRead() {
  const TierStats stats = tier().stats();
  if (!stats.is_healthy || is_stopped_) return false;
  return stats.transfers_in_flight == 0 || d_.NowUs() - last_read_us_ >= kYieldUs;
}

bool Scrubber::MoveOn() {
  for (uint32_t looked_at = 0; looked_at < kBlocksPerStepMax;) {
    if (block_ >= d_.index.id_count()) {
      if (block_ == 0) return false;
      ++d_.counters.scrub_passes;
      block_ = 0;
      is_fresh_ = true;
      return false;  // the next pass begins at another tick, lest an empty tier keep us here
    }
    const bool is_below =
        d_.block(block_).phase == BlockPhase::kSealed && copy().state == CopyState::kReady;
    if (is_below) {
      const uint32_t local_count =
          static_cast<uint32_t>(d_.group_of(d_.block(block_)).locals().size());
      local_ = is_fresh_ ? 0 : local_ + 1;
      is_fresh_ = false;
      for (; local_ < local_count; ++local_) {
        if ((copy().member_mask >> member().member) & 1) return true;
      }
    }
    ++block_;
    ++looked_at;
    is_fresh_ = true;
  }
  return false;
}

bool Scrubber::BeginRead() {
  const Extent& extent = d_.group_of(d_.block(block_)).extents().at(copy().row)[local_];
  if (extent.length_bytes > memory_bytes_) {
    memory_bytes_ = RoundUp(extent.length_bytes, kMemoryAlignmentBytes);
    memory_.reset(
        static_cast<std::byte*>(std::aligned_alloc(kMemoryAlignmentBytes, memory_bytes_)));
    TERRACE_CHECK(memory_ != nullptr, "memory for one member of a block");
  }
  residency_.Hold(block_, HoldKind::kJob);
  phase_ = Phase::kReading;
  budget_bytes_ -= static_cast<int64_t>(extent.length_bytes);
  const Status status = tier().Read(uint64_t{d_.domain_index} << kDomainShift | kNumberBit, extent,
                                    {memory_.get(), extent.length_bytes});
  if (status.ok()) {
    last_read_us_ = d_.NowUs();
    return true;
  }
  const bool is_later =
      status.code() == StatusCode::kBusy || status.code() == StatusCode::kUnsupported;
  EndMember(status.code() == StatusCode::kIo ? Verdict::kBad : Verdict::kUnknown);
  return !is_later;
}

void Scrubber::OnTransferDone(Status status) {
  TERRACE_CHECK(phase_ == Phase::kReading, "a transfer is done once");
  if (!status.ok()) {
    // A drive that is off may have it all the same.
    EndMember(tier().stats().is_healthy ? Verdict::kBad : Verdict::kUnknown);
    return Step();
  }
  phase_ = Phase::kRead;
  BeginHashing();
}

void Scrubber::BeginHashing() {
  const Block& b = d_.block(block_);
  if (b.phase != BlockPhase::kSealed) {
    EndMember(Verdict::kUnknown);
    return Step();
  }
  const LocalMember& local = member();
  ChecksumJob job{.id = uint64_t{d_.domain_index} << kDomainShift | kNumberBit};
  for (uint32_t part = 0; part < local.part_count; ++part) {
    job.parts.push_back(
        {.bytes = {memory_.get() + local.part_offset_bytes[part], local.part_bytes[part]},
         .seed = ChecksumSeed(d_.options.secret, {.space = local.space,
                                                  .key = d_.index.node(block_).key,
                                                  .commit_id = b.commit_id,
                                                  .part_index = part})});
  }
  if (d_.seams.offload.Submit(std::move(job)).ok()) phase_ = Phase::kHashing;
}

void Scrubber::OnChecksumsDone(std::span<const Checksum> roots) {
  TERRACE_CHECK(phase_ == Phase::kHashing, "a job is done once");
  EndMember(Verifies(roots) ? Verdict::kGood : Verdict::kBad);
  Step();
}

bool Scrubber::Verifies(std::span<const Checksum> roots) const {
  const std::span<const Checksum> known =
      d_.roots_of(d_.block(block_)).subspan(member().first_root, member().part_count);
  return std::ranges::equal(known, roots);
}

void Scrubber::EndMember(Verdict verdict) {
  phase_ = Phase::kIdle;
  if (verdict != Verdict::kUnknown) {
    d_.counters.scrub_bytes += member().slot_bytes;
    ++d_.counters.scrub_members;
  }
  const bool is_sealed = d_.block(block_).phase == BlockPhase::kSealed;
  residency_.LetGo(block_, HoldKind::kJob);
  if (is_sealed && verdict == Verdict::kBad) GiveUpCopy();
  if (!is_sealed || verdict == Verdict::kBad) {
    ++block_;  // whatever is in its place by now is another pass's
    is_fresh_ = true;
  }
}

// Of all members: a block is there or not.
void Scrubber::GiveUpCopy() {
  ++d_.counters.scrub_mismatches;
  // Whoever reads it just now compares it too.
  if (d_.block(block_).job_count > 0) return;
  ++d_.counters.blocks_corrupt;
  const CommitId commit_id = d_.block(block_).commit_id;
  residency_.DropLower(block_, d_.persistent_tier, Residency::DropReason::kBadBytes);
  const Block& b = d_.block(block_);
  if (b.phase == BlockPhase::kSealed && b.commit_id == commit_id) (void)mover_.Persist(block_);
}

}  // namespace terrace
