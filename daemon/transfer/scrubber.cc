#include "daemon/transfer/scrubber.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {
namespace {

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
  if (d_.persistent_tier == kLowerTiersMax || rate_bytes() == 0) return;
  EarnBudget();
  if (phase_ == Phase::kRead) BeginHashing();
  Step();
}

void Scrubber::Check(std::vector<CopyName> asked, uint64_t bytes_per_second,
                     std::function<void(CopyFindings)> done) {
  TERRACE_CHECK(!is_checking() && bytes_per_second > 0, "one check at a time");
  is_fresh_ = true;
  asked_next_ = 0;
  asked_bytes_per_second_ = bytes_per_second;
  budget_bytes_ = 0;  // at another rate
  found_ = {.findings = std::vector<CopyFinding>(asked.size(), CopyFinding::kGood)};
  asked_ = std::move(asked);
  done_ = std::move(done);
}

void Scrubber::EndCheck() {
  for (; asked_next_ < asked_.size(); ++asked_next_) {
    found_.findings[asked_next_] = CopyFinding::kNotLooked;
  }
  const std::function<void(CopyFindings)> done = std::exchange(done_, nullptr);
  if (done) done(std::move(found_));
}

void Scrubber::EarnBudget() {
  const auto rate_bytes = static_cast<int64_t>(this->rate_bytes());
  const uint64_t now_us = d_.NowUs();
  const auto earned_us = static_cast<int64_t>(std::min(now_us - budget_since_us_, kBurstUs));
  // In milliseconds: 64 GiB a second times a million microseconds would not fit.
  const int64_t earned_bytes =
      rate_bytes / 1000 * (earned_us / 1000) + rate_bytes % 1000 * (earned_us / 1000) / 1000;
  if (earned_bytes == 0) return;  // a small rate takes longer than a tick to earn a byte
  budget_since_us_ = now_us;
  budget_bytes_ = std::min(budget_bytes_ + earned_bytes, rate_bytes);
}

void Scrubber::Step() {
  while (phase_ == Phase::kIdle && budget_bytes_ > 0 && MayRead()) {
    if (!MoveOn() || !BeginRead()) return;
  }
}

uint64_t Scrubber::RestUs() const {
  if (d_.persistent_tier == kLowerTiersMax || rate_bytes() == 0) return UINT64_MAX;
  if (!is_pass_over_ || is_next_due_) return 0;
  const uint64_t passed_us = d_.NowUs() - pass_since_us_;
  return d_.options.scrub_interval_us - std::min(d_.options.scrub_interval_us, passed_us);
}

bool Scrubber::MayRead() {
  const TierStats stats = tier().stats();
  if (is_asked_) {
    if (is_checking() && (!stats.is_healthy || is_stopped_)) EndCheck();
    return is_checking();
  }
  const bool is_serving = d_.serving == protocol::ServingMode::kServing;
  if (std::exchange(places_lost_, stats.places_lost) < stats.places_lost) is_next_due_ = true;
  if (!stats.is_healthy || is_stopped_ || !is_serving || RestUs() > 0) return false;
  // A block that is looked at stays: of few, one would be held whenever room is to go back.
  if (stats.share.leaving_bytes > 0) return false;
  return stats.transfers_in_flight == 0 || d_.NowUs() - last_read_us_ >= kYieldUs;
}

bool Scrubber::MoveToMember() {
  const auto local_count = static_cast<uint32_t>(d_.group_of(d_.block(block_)).locals().size());
  if (is_fresh_) is_again_ = false;
  local_ = is_fresh_ ? 0 : local_ + (is_again_ ? 0 : 1);
  is_fresh_ = false;
  for (; local_ < local_count; ++local_) {
    const bool is_meant = !is_asked_ || member().member == asked_[asked_next_].member;
    if (is_meant && ((copy().member_mask >> member().member) & 1)) return true;
  }
  return false;
}

bool Scrubber::MoveOnAsked() {
  for (; asked_next_ < asked_.size(); ++asked_next_, is_fresh_ = true) {
    const CopyName& asked = asked_[asked_next_];
    block_ = asked.owner;
    const Block& b = d_.block(block_);
    const bool is_below = b.phase == BlockPhase::kSealed && b.commit_id == asked.commit_id &&
                          copy().state == CopyState::kReady;
    if (is_below && MoveToMember()) return true;
    found_.findings[asked_next_] = CopyFinding::kNotLooked;
  }
  EndCheck();
  return false;
}

bool Scrubber::MoveOn() {
  if (is_asked_) return MoveOnAsked();
  if (std::exchange(is_pass_over_, false)) {
    pass_since_us_ = d_.NowUs();
    is_next_due_ = false;
  }
  for (uint32_t looked_at = 0; looked_at < kBlocksPerStepMax;) {
    if (block_ >= d_.index.id_count()) {
      if (block_ == 0) return false;
      ++d_.counters.scrub_passes;
      is_pass_over_ = std::exchange(has_read_, false);
      block_ = 0;
      is_fresh_ = true;
      return false;  // the next pass begins at another tick, lest an empty tier keep us here
    }
    const bool is_below =
        d_.block(block_).phase == BlockPhase::kSealed && copy().state == CopyState::kReady;
    if (is_below && MoveToMember()) return true;
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
  residency_.holds.Hold(block_, HoldKind::kJob);
  d_.is_scrubbing = true;
  phase_ = Phase::kReading;
  budget_bytes_ -= static_cast<int64_t>(extent.length_bytes);
  const Status status = tier().Read(uint64_t{d_.domain_index} << kDomainShift | number_bit_, extent,
                                    {memory_.get(), extent.length_bytes});
  if (status.ok()) {
    last_read_us_ = d_.NowUs();
    has_read_ = true;
    return true;
  }
  if (status.code() == StatusCode::kBusy) {
    Retry();
    return false;
  }
  EndMember(status.code() == StatusCode::kIo ? Verdict::kUnreadable : Verdict::kUnknown);
  return status.code() != StatusCode::kUnsupported;
}

void Scrubber::OnTransferDone(Status status) {
  TERRACE_CHECK(phase_ == Phase::kReading, "a transfer is done once");
  if (!status.ok()) {
    // A drive that is off may have it all the same.
    EndMember(tier().stats().is_healthy ? Verdict::kUnreadable : Verdict::kUnknown);
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
  ChecksumJob job{.id = uint64_t{d_.domain_index} << kDomainShift | number_bit_};
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
  const bool is_bad = verdict == Verdict::kBad || verdict == Verdict::kUnreadable;
  const bool is_sealed = d_.block(block_).phase == BlockPhase::kSealed;
  const bool is_asked_for = !is_asked_ || (is_checking() && !is_abandoned_);
  const uint64_t slot_bytes = member().slot_bytes;
  d_.is_scrubbing = false;
  residency_.holds.LetGo(block_, HoldKind::kJob);
  if (is_bad && is_sealed && is_asked_for && !std::exchange(is_again_, true)) {
    ++d_.counters.reads_repeated;
    return;
  }
  if (verdict != Verdict::kUnknown) {
    d_.counters.scrub_bytes += slot_bytes;
    ++d_.counters.scrub_members;
    found_.read_bytes += slot_bytes;
    ++found_.member_count;
  }
  if (std::exchange(is_again_, false) && verdict == Verdict::kGood) ++d_.counters.reads_recovered;
  if (is_asked_) return EndAsked(verdict);
  if (is_sealed && is_bad) GiveUpCopy();
  if (!is_sealed || is_bad) {
    ++block_;  // whatever is in its place by now is another pass's
    is_fresh_ = true;
  }
}

// The same block at the next tick: passed over, it would be unread for an interval.
void Scrubber::Retry() {
  phase_ = Phase::kIdle;
  d_.is_scrubbing = false;
  residency_.holds.LetGo(block_, HoldKind::kJob);
  is_fresh_ = true;
}

// Whoever asked decides what becomes of it.
void Scrubber::EndAsked(Verdict verdict) {
  is_fresh_ = true;
  if (std::exchange(is_abandoned_, false) || !is_checking()) return;
  CopyFinding& finding = found_.findings[asked_next_];
  finding = verdict == Verdict::kGood         ? CopyFinding::kGood
            : verdict == Verdict::kBad        ? CopyFinding::kMismatch
            : verdict == Verdict::kUnreadable ? CopyFinding::kUnreadable
                                              : CopyFinding::kNotLooked;
  if (++asked_next_ == asked_.size()) EndCheck();  // whatever budget is left
}

// The copy goes for all members: a block is there or not.
void Scrubber::GiveUpCopy() {
  ++d_.counters.scrub_mismatches;
  // Whoever reads it just now compares it too.
  if (d_.block(block_).job_count > 0) return;
  ++d_.counters.blocks_corrupt;
  const CommitId commit_id = d_.block(block_).commit_id;
  residency_.lifecycle.DropLower(block_, d_.persistent_tier, DropReason::kBadBytes);
  const Block& b = d_.block(block_);
  if (b.phase == BlockPhase::kSealed && b.commit_id == commit_id) (void)mover_.Persist(block_);
}

}  // namespace terrace
