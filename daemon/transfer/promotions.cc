#include "daemon/transfer/promotions.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

// ---- queueing ----

uint32_t Promotions::Take(BlockId id, uint32_t tier, const Read& read) {
  const uint32_t number = jobs_.Take(id, tier, TransferJobs::Direction::kRead);
  if (number >= reads_.size()) reads_.resize(number + 1);
  reads_[number] = read;
  reads_[number].sequence = next_sequence_++;
  const bool is_only = by_block_.insert_or_assign(id, number).second;
  TERRACE_CHECK(is_only, "I3: one promotion a block");
  if (!read.is_ahead) CountAsked(number);
  return number;
}

// ---- what waits ----

uint64_t Promotions::BytesOf(const TransferJob& job) const {
  const Block& b = d_.block(job.block);
  return d_.group_of(b).BytesOf(b.lower[job.tier].member_mask);
}

void Promotions::CountAsked(uint32_t number) {
  const TransferJob& job = jobs_.at(number);
  Read& read = reads_[number];
  read.waiting_bytes = BytesOf(job);
  read.asked_mark = queues_[job.tier].asked_bytes += read.waiting_bytes;
}

void Promotions::CountBegun(uint32_t number, uint64_t waiting_bytes) {
  Read& read = reads_[number];
  const uint64_t left_bytes = std::min(read.waiting_bytes, waiting_bytes);
  queues_[jobs_.at(number).tier].begun_bytes += read.waiting_bytes - left_bytes;
  read.waiting_bytes = left_bytes;
}

uint64_t Promotions::WaitingBytesTo(BlockId id) const {
  const auto found = by_block_.find(id);
  if (found == by_block_.end() || reads_[found->second].waiting_bytes == 0) return 0;
  const TierQueue& queue = queues_[jobs_.at(found->second).tier];
  const uint64_t mark = reads_[found->second].asked_mark;
  return mark > queue.begun_bytes ? mark - queue.begun_bytes : 0;
}

// ---- turns ----

Promotions::QueuedRead Promotions::PlaceOf(uint32_t number) {
  return {.run = reads_[number].run,
          .step = jobs_.at(number).step,
          .sequence = reads_[number].sequence,
          .job = number};
}

void Promotions::Enqueue(uint32_t number) {
  TERRACE_CHECK(!reads_[number].is_queued, "a read has one place in the queue");
  reads_[number].is_queued = true;
  queues_[jobs_.at(number).tier].reads.insert(PlaceOf(number));
}

void Promotions::Unqueue(uint32_t number) {
  if (!reads_[number].is_queued) return;
  reads_[number].is_queued = false;
  queues_[jobs_.at(number).tier].reads.erase(PlaceOf(number));
}

Status Promotions::Begin(BlockId id, const ReadOrder& order) {
  const uint32_t tier = d_.FastestTier(d_.block(id));
  if (tier == kLowerTiersMax) return Status(StatusCode::kNotFound, "the block is in no tier");
  // Making room may write others below, where this copy could be the next to go: it is held first.
  residency_.holds.Hold(id, HoldKind::kJob);
  const Status status = evictor_.TakeSlots(id, d_.block(id).lower[tier].member_mask,
                                           {.source = FillSource::kTier, .tier = tier});
  if (status.ok()) {
    const uint32_t number = Take(id, tier, {.run = order.run});
    if (order.is_by_parts) jobs_.MakeByParts(number);
    Enqueue(number);
  }
  residency_.holds.LetGo(id, HoldKind::kJob);
  return status;
}

void Promotions::BeginAhead(BlockId id, uint32_t tier) {
  ++queues_[tier].ahead_in_flight;
  Enqueue(Take(id, tier, {.run = kRunAhead, .is_ahead = true}));
}

void Promotions::Reprioritize(BlockId id, const ReadOrder& order) {
  const auto found = by_block_.find(id);
  if (found == by_block_.end()) return;
  const uint32_t number = found->second;
  const TransferJob& job = jobs_.at(number);
  Read& read = reads_[number];
  if (read.is_ahead) {
    const bool is_queued = read.is_queued;
    Unqueue(number);
    read.is_ahead = false;
    --queues_[job.tier].ahead_in_flight;
    read.run = order.run;
    read.sequence = next_sequence_++;
    if (is_queued) {
      Enqueue(number);
      CountAsked(number);
    }
  }
  if (job.has_begun() || job.is_failed || job.is_by_parts()) return;
  if (order.is_by_parts) jobs_.MakeByParts(number);
}

// Whoever asked first, and of each run the first layers of all its blocks.
bool Promotions::Step(uint32_t tier) {
  std::set<QueuedRead>& reads = queues_[tier].reads;
  while (!reads.empty()) {
    const uint32_t number = reads.begin()->job;
    GiveUpIfUnwanted(number);
    if (!jobs_.Begin(number)) return false;
    Unqueue(number);
    TransferJob& job = jobs_.at(number);
    const uint32_t step = job.step++;
    const uint32_t steps_left = job.is_failed ? 0 : job.step_count - job.step;
    CountBegun(number, BytesOf(job) * steps_left / job.step_count);
    if (job.is_by_parts()) {
      CheckIfIn(number, step);
      if (job.step < job.step_count && !job.is_failed) {
        job.next_local = 0;
        Enqueue(number);
      }
    }
    FinishIfDone(number);
  }
  return true;
}

void Promotions::GiveUpIfUnwanted(uint32_t number) {
  TransferJob& job = jobs_.at(number);
  const Block& b = d_.block(job.block);
  const bool is_sealed = b.phase == BlockPhase::kSealed;
  if (is_sealed && (reads_[number].is_ahead || b.is_read_again)) return;
  if (is_sealed && d_.index.pin_count(job.block) > 0) return;
  // Whoever comes while it lasts may still want all of it, if there is anything to want.
  if (is_sealed && (job.in_flight_count > 0 || reads_[number].check_count > 0)) return;
  job.is_failed = true;
  job.verdict = std::max(job.verdict, TransferVerdict::kUnwanted);
}

// ---- what was read ----

void Promotions::OnTransferDone(const TransferJobs::Ended& ended) {
  if (jobs_.at(ended.number).is_by_parts()) CheckIfIn(ended.number, ended.step);
  FinishIfDone(ended.number);
}

void Promotions::CheckIfIn(uint32_t number, uint32_t step) {
  const TransferJob& job = jobs_.at(number);
  const bool is_wanted = d_.block(job.block).phase == BlockPhase::kSealed && !job.is_failed;
  if (!is_wanted || step >= job.step || job.step_transfers[step] > 0) return;
  ++reads_[number].check_count;
  verifier_.CheckStep(job.block, step);
}

void Promotions::OnStepChecked(BlockId id, uint32_t step, bool is_good) {
  const uint32_t number = by_block_.at(id);
  TransferJob& job = jobs_.at(number);
  Read& read = reads_[number];
  TERRACE_CHECK(read.check_count > 0, "a step is checked once");
  --read.check_count;
  const bool is_sealed = d_.block(id).phase == BlockPhase::kSealed;
  if (!is_good) {
    if (is_sealed && job.verdict != TransferVerdict::kBad && !MayReadAgain(id)) {
      ++d_.counters.blocks_corrupt;
    }
    job.is_failed = true;
    job.verdict = TransferVerdict::kBad;
  }
  read.steps_in.set(step);
  if (is_sealed && !job.is_failed && read.steps_in.count() < job.step_count) {
    uint32_t in_count = 0;
    while (read.steps_in.test(in_count)) ++in_count;
    residency_.dram.StepsIn(id, in_count);
  }
  FinishIfDone(number);
}

void Promotions::FinishIfDone(uint32_t number) {
  const Read& read = reads_[number];
  const TransferJob& job = jobs_.at(number);
  if (job.is_by_parts() && job.is_failed) {  // what has not begun need not
    Unqueue(number);
    CountBegun(number, 0);
  }
  if (job.in_flight_count > 0 || read.check_count > 0 || read.is_queued) return;
  if (read.is_ahead) --queues_[job.tier].ahead_in_flight;
  CountBegun(number, 0);
  by_block_.erase(job.block);
  Finish(jobs_.Give(number));
}

void Promotions::Finish(const TransferJob& job) {
  const bool is_sealed = d_.block(job.block).phase == BlockPhase::kSealed;
  const bool is_checked = job.is_by_parts();
  if (is_sealed && !job.is_failed && !is_checked) verifier_.CheckPromotion(job.block);
  residency_.holds.LetGo(job.block, HoldKind::kJob);
  if (is_sealed && (job.is_failed || is_checked)) End(job.block, job.verdict);
}

void Promotions::OnChecked(BlockId id, bool is_good) {
  End(id, is_good ? TransferVerdict::kGood : TransferVerdict::kBad);
}

// ---- the end ----

bool Promotions::MayReadAgain(BlockId id) const {
  const Block& b = d_.block(id);
  return b.dram.state == CopyState::kFilling && b.fill_source == FillSource::kTier &&
         b.fill_tier != d_.device_tier && !b.is_read_again && !b.is_part_told &&
         b.lower[b.fill_tier].is_readable();
}

void Promotions::ReadAgain(BlockId id) {
  residency_.dram.FillAgain(id);
  ++d_.counters.reads_repeated;
  Enqueue(Take(id, d_.block(id).fill_tier, {}));
}

void Promotions::End(BlockId id, TransferVerdict verdict) {
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed) return;
  TERRACE_CHECK(b.fill_source == FillSource::kTier, "a promotion reads a tier");
  if (verdict == TransferVerdict::kBad && MayReadAgain(id)) return ReadAgain(id);
  if (verdict == TransferVerdict::kGood) {
    ++d_.counters.promotions;
    if (b.is_read_again) ++d_.counters.reads_recovered;
    residency_.dram.EndFill(id, true);
    return;
  }
  if (verdict == TransferVerdict::kUnwanted) {
    ++d_.counters.promotions_cancelled;
    residency_.dram.EndFill(id, false);
    return;
  }
  ++d_.counters.promotions_failed;
  const uint32_t tier = b.fill_tier;
  if (b.is_part_told && d_.index.pin_count(id) > 0) return Forget(id, tier, verdict);
  residency_.dram.EndFill(id, false);
  // Whoever else reads the copy just now will find out, too.
  if (verdict == TransferVerdict::kLater || b.job_count > 0) return;
  if (d_.IsReadInPlace(id, tier)) return Forget(id, tier, verdict);
  // The copy is not to be trusted, or not to be had: it is dropped, once.
  const bool is_bad = verdict == TransferVerdict::kBad;
  residency_.lifecycle.DropLower(id, tier, is_bad ? DropReason::kBadBytes : DropReason::kNotWanted);
}

// Somebody may be reading the parts that were good, or the copy itself on the device: the slots
// stay for them, and so cannot be the block's any more.
void Promotions::Forget(BlockId id, uint32_t tier, TransferVerdict verdict) {
  const bool is_bad = verdict == TransferVerdict::kBad;
  if (is_bad && d_.block(id).job_count == 0 && !d_.IsReadInPlace(id, tier)) {
    residency_.lifecycle.DropLower(id, tier, DropReason::kBadBytes);
  }
  if (is_bad) residency_.lower.FoundBad(id);
  const EraseCauseScope scope(d_, is_bad ? protocol::MissCause::kCorrupt : d_.erase_cause);
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
}

}  // namespace terrace
