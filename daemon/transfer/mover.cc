#include "daemon/transfer/mover.h"

#include <algorithm>

#include "daemon/transfer/shared_reader.h"
#include "daemon/transfer/shared_writer.h"
#include "terrace/check.h"

namespace terrace {
namespace {

// TransferIds: domain (16 bits), job (32 bits), step (8 bits), place of the member among the local
// ones (8 bits).
constexpr uint32_t kDomainShift = 48;
constexpr uint32_t kJobShift = 16;
constexpr uint32_t kStepShift = 8;
static_assert(kGroupMembersMax <= 1 << kStepShift);
static_assert(kPartsPerSpaceMax <= 1 << (kJobShift - kStepShift));

// Children looked at when their parent has arrived in a tier.
constexpr uint32_t kChildrenQueuedMax = 64;
// Queued writes looked at in one step.
constexpr uint32_t kWritesPerStepMax = 256;
// Ancestors of a dropped tail that are written together.
constexpr uint32_t kAncestorsQueuedMax = 64;

}  // namespace

Mover::Mover(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier)
    : d_(domain),
      residency_(residency),
      evictor_(evictor),
      verifier_(verifier),
      queues_(domain.lower.size()) {
  for (uint32_t t = 0; t < queues_.size(); ++t) LookAtHealth(t);
}

// ---- transfers ----

uint32_t Mover::TakeJob(const Job& job) {
  uint32_t number;
  if (free_jobs_.empty()) {
    number = static_cast<uint32_t>(jobs_.size());
    jobs_.emplace_back();
  } else {
    number = free_jobs_.back();
    free_jobs_.pop_back();
  }
  jobs_[number] = job;
  jobs_[number].is_used = true;
  residency_.Hold(job.block, HoldKind::kJob);
  return number;
}

bool Mover::Begin(uint32_t number) {
  Job& job = jobs_[number];
  const Block& b = d_.block(job.block);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (; job.next_local < locals.size() && !job.is_failed; ++job.next_local) {
    if (!((b.lower[job.tier].member_mask >> locals[job.next_local].member) & 1)) continue;
    if (job.is_by_parts() && job.step >= locals[job.next_local].part_runs.size()) continue;
    const Status status = BeginMember(number, job.next_local);
    if (status.code() == StatusCode::kBusy) return false;
    if (status.ok()) {
      ++job.in_flight_count;
      if (job.is_by_parts()) ++job.step_transfers[job.step];
    } else {
      Fail(job, status);
    }
  }
  job.next_local = static_cast<uint32_t>(locals.size());
  return true;
}

Status Mover::BeginMember(uint32_t number, uint32_t local_index) {
  const Job& job = jobs_[number];
  Block& b = d_.block(job.block);
  Group& group = d_.group_of(b);
  const LocalMember& local = group.locals()[local_index];
  const SlotAddress address = d_.slots_of(b)[local_index].address;
  const Extent& extent = group.extents().at(b.lower[job.tier].row)[local_index];
  const std::span<std::byte> bytes(
      d_.options.arena->SegmentBase(address.segment) + address.page * kArenaPageBytes,
      local.slot_bytes);
  const TransferId id = (uint64_t{d_.domain_index} << kDomainShift) |
                        (uint64_t{number} << kJobShift) | (job.step << kStepShift) | local_index;
  Tier& tier = *d_.lower[job.tier].tier;
  if (job.is_write) return tier.Write(id, extent, d_.RecordOf(job.block, local), bytes);
  if (!job.is_by_parts()) return tier.Read(id, extent, bytes);
  const PartRun& run = local.part_runs[job.step];
  return tier.ReadRange(id, extent, run.offset_bytes,
                        bytes.subspan(run.offset_bytes, run.length_bytes));
}

void Mover::OnTransferDone(uint64_t number, Status status) {
  const uint32_t job = static_cast<uint32_t>(number >> kJobShift);
  TERRACE_CHECK(job < jobs_.size() && jobs_[job].is_used && jobs_[job].in_flight_count > 0,
                "a transfer is done once");
  --jobs_[job].in_flight_count;
  if (!status.ok()) Fail(jobs_[job], status);
  if (jobs_[job].is_by_parts()) {
    const uint32_t step = (number >> kStepShift) & 0xFF;
    --jobs_[job].step_transfers[step];
    CheckIfIn(job, step);
  }
  FinishIfDone(job);
  Step();
}

void Mover::Fail(Job& job, Status status) {
  job.is_failed = true;
  LookAtHealth(job.tier);
  Verdict verdict = Verdict::kGone;
  if (d_.lower[job.tier].is_off || status.code() == StatusCode::kBusy ||
      status.code() == StatusCode::kUnsupported) {
    verdict = Verdict::kLater;
  } else if (status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt) {
    verdict = Verdict::kBad;
  }
  job.verdict = std::max(job.verdict, verdict);
}

void Mover::FinishIfDone(uint32_t number) {
  Job& job = jobs_[number];
  const uint32_t local_count =
      static_cast<uint32_t>(d_.group_of(d_.block(job.block)).locals().size());
  if (job.is_by_parts() && job.is_failed) Unqueue(number);  // what has not begun need not
  if (job.in_flight_count > 0 || job.check_count > 0 || job.is_queued) return;
  if (job.is_write && job.next_local < local_count) return;
  const Job done = std::move(job);
  jobs_[number] = Job{};
  free_jobs_.push_back(number);
  if (done.is_write) {
    FinishWrite(done);
  } else {
    if (done.is_ahead) --queues_[done.tier].ahead_in_flight;
    reads_.erase(done.block);
    FinishRead(done);
  }
}

// ---- up ----

void Mover::Enqueue(uint32_t number) {
  Job& job = jobs_[number];
  job.is_queued = true;
  queues_[job.tier].reads.insert(
      {.run = job.run, .step = job.step, .sequence = job.sequence, .job = number});
}

void Mover::Unqueue(uint32_t number) {
  Job& job = jobs_[number];
  if (!job.is_queued) return;
  job.is_queued = false;
  queues_[job.tier].reads.erase(
      {.run = job.run, .step = job.step, .sequence = job.sequence, .job = number});
}

void Mover::MakeByParts(Job& job) const {
  if (!d_.lower[job.tier].tier->reads_ranges()) return;
  job.step_count = d_.group_of(d_.block(job.block)).step_count();
  job.step_transfers.assign(job.step_count, 0);
}

Status Mover::Promote(BlockId id, const ReadOrder& order) {
  if (d_.block(id).dram.state == CopyState::kUnverified) {
    residency_.BeginVerify(id);
    verifier_.CheckPromotion(id);
    return Status::Ok();
  }
  if (d_.block(id).is_expected()) return shared_reader_->Fetch(id);
  const uint32_t tier = d_.FastestTier(d_.block(id));
  if (tier == kLowerTiersMax) return Status(StatusCode::kNotFound, "the block is in no tier");
  // Making room may write others below, where this copy could be the next to go: it is held first.
  residency_.Hold(id, HoldKind::kJob);
  const Status status = evictor_.TakeSlots(id, d_.block(id).lower[tier].member_mask);
  if (status.ok()) {
    d_.block(id).fill_tier = static_cast<uint8_t>(tier);
    Job job{.block = id, .tier = tier, .run = order.run, .sequence = next_sequence_++};
    if (order.is_by_parts) MakeByParts(job);
    const uint32_t number = TakeJob(job);
    reads_[id] = number;
    Enqueue(number);
  }
  residency_.LetGo(id, HoldKind::kJob);
  return status;
}

void Mover::Hurry(BlockId id, const ReadOrder& order) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  Job& job = jobs_[found->second];
  if (job.is_ahead) {
    const bool is_queued = job.is_queued;
    Unqueue(found->second);
    job.is_ahead = false;
    --queues_[job.tier].ahead_in_flight;
    job.run = order.run;
    job.sequence = next_sequence_++;
    if (is_queued) Enqueue(found->second);
  }
  const bool has_begun = job.step > 0 || job.next_local > 0 || job.in_flight_count > 0;
  if (has_begun || job.is_failed || job.is_by_parts()) return;
  if (order.is_by_parts) MakeByParts(job);
}

void Mover::GiveUpIfUnwanted(uint32_t number) {
  Job& job = jobs_[number];
  const Block& b = d_.block(job.block);
  if ((job.is_ahead || b.is_read_again) && b.phase == BlockPhase::kSealed) return;
  if (job.is_write || (b.phase == BlockPhase::kSealed && d_.index.pin_count(job.block) > 0)) return;
  // Whoever comes while it lasts may still want all of it, if there is anything to want.
  if (b.phase == BlockPhase::kSealed && (job.in_flight_count > 0 || job.check_count > 0)) return;
  job.is_failed = true;
  job.verdict = std::max(job.verdict, Verdict::kUnwanted);
}

void Mover::CheckIfIn(uint32_t number, uint32_t step) {
  Job& job = jobs_[number];
  const bool is_wanted = d_.block(job.block).phase == BlockPhase::kSealed && !job.is_failed;
  if (!is_wanted || step >= job.step || job.step_transfers[step] > 0) return;
  ++job.check_count;
  verifier_.CheckStep(job.block, step);
}

void Mover::OnStepChecked(BlockId id, uint32_t step, bool is_good) {
  const uint32_t number = reads_.at(id);
  Job& job = jobs_[number];
  --job.check_count;
  const bool is_sealed = d_.block(id).phase == BlockPhase::kSealed;
  if (!is_good) {
    if (is_sealed && job.verdict != Verdict::kBad && !MayReadAgain(id)) {
      ++d_.counters.blocks_corrupt;
    }
    job.is_failed = true;
    job.verdict = Verdict::kBad;
  }
  job.steps_in.set(step);
  if (is_sealed && !job.is_failed && job.steps_in.count() < job.step_count) {
    uint32_t in_count = 0;
    while (job.steps_in.test(in_count)) ++in_count;
    residency_.StepsIn(id, in_count);
  }
  FinishIfDone(number);
}

void Mover::FinishRead(const Job& job) {
  const bool is_sealed = d_.block(job.block).phase == BlockPhase::kSealed;
  const bool is_checked = job.is_by_parts();
  if (is_sealed && !job.is_failed && !is_checked) verifier_.CheckPromotion(job.block);
  residency_.LetGo(job.block, HoldKind::kJob);
  if (is_sealed && (job.is_failed || is_checked)) EndPromotion(job.block, job.verdict);
}

void Mover::OnPromotionChecked(BlockId id, bool is_good) {
  const bool is_sealed = d_.block(id).phase == BlockPhase::kSealed;
  if (!is_good && is_sealed && !MayReadAgain(id)) ++d_.counters.blocks_corrupt;
  EndPromotion(id, is_good ? Verdict::kGood : Verdict::kBad);
}

// Nobody may be reading the slots that the second read fills.
bool Mover::MayReadAgain(BlockId id) const {
  const Block& b = d_.block(id);
  return b.dram.state == CopyState::kFilling && b.fill_tier < d_.lower.size() &&
         b.fill_tier != d_.device_tier && !b.is_read_again && !b.is_part_told &&
         b.lower[b.fill_tier].is_readable();
}

void Mover::ReadAgain(BlockId id) {
  Block& b = d_.block(id);
  b.is_read_again = true;
  b.steps_in = 0;
  ++d_.counters.reads_repeated;
  const uint32_t number =
      TakeJob({.block = id, .tier = b.fill_tier, .run = 0, .sequence = next_sequence_++});
  reads_[id] = number;
  Enqueue(number);
}

void Mover::EndPromotion(BlockId id, Verdict verdict) {
  Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed) return;
  if (b.is_adopting()) return EndAdoption(id, verdict == Verdict::kGood);
  if (b.is_arriving()) return shared_reader_->EndFetch(id, verdict == Verdict::kGood);
  if (verdict == Verdict::kBad && MayReadAgain(id)) return ReadAgain(id);
  if (verdict == Verdict::kGood) {
    ++d_.counters.promotions;
    if (b.is_read_again) ++d_.counters.reads_recovered;
    residency_.EndFill(id, true);
    return;
  }
  if (verdict == Verdict::kUnwanted) {
    ++d_.counters.promotions_cancelled;
    residency_.EndFill(id, false);
    return;
  }
  ++d_.counters.promotions_failed;
  const uint32_t tier = b.fill_tier;
  if (b.is_part_told && d_.index.pin_count(id) > 0) return Forget(id, tier, verdict);
  residency_.EndFill(id, false);
  // Whoever else reads the copy just now will find out, too.
  if (verdict == Verdict::kLater || b.job_count > 0) return;
  if (d_.IsReadInPlace(id, tier)) return Forget(id, tier, verdict);
  // The copy is not to be trusted, or not to be had: it is dropped, once.
  residency_.DropLower(id, tier,
                       verdict == Verdict::kBad ? Residency::DropReason::kBadBytes
                                                : Residency::DropReason::kNotWanted);
}

// Somebody may be reading the parts that were good, or the copy itself on the device: the slots
// stay for them, and so cannot be the block's any more.
void Mover::Forget(BlockId id, uint32_t tier, Verdict verdict) {
  if (verdict == Verdict::kBad && d_.block(id).job_count == 0 && !d_.IsReadInPlace(id, tier)) {
    residency_.DropLower(id, tier, Residency::DropReason::kBadBytes);
  }
  const bool is_bad = verdict == Verdict::kBad;
  d_.block(id).is_bad_below |= is_bad;
  const Because because(d_, is_bad ? protocol::MissCause::kCorrupt : d_.erase_cause);
  residency_.Erase(id, StatusCode::kNotFound);
}

// What is good may go below, as after a seal; what is not leaves its copies below, if there are
// any.
void Mover::EndAdoption(BlockId id, bool is_good) {
  residency_.EndFill(id, is_good);
  if (is_good) return OnSealed(id);
  const Block& b = d_.block(id);
  if (residency_.HasOtherCopy(b, b.dram)) return;
  const Because because(d_, protocol::MissCause::kCorrupt);
  residency_.Erase(id, StatusCode::kNotFound);
}

// ---- down ----

bool Mover::Persist(BlockId id) {
  if (d_.persistent_tier == kLowerTiersMax || d_.block(id).is_no_store) return false;
  QueueWrite(id, d_.persistent_tier);
  return true;
}

void Mover::Raise(BlockId id) {
  const Block& b = d_.block(id);
  if (b.hit_count < d_.options.device.hits_min || b.dram.state != CopyState::kReady) return;
  QueueWrite(id, d_.device_tier);
}

bool Mover::Admits(AdmissionMoment moment, BlockId id, uint32_t tier) {
  if (tier == d_.device_tier) return false;  // see Raise
  return d_.admission->Admits({.moment = moment,
                               .tier = d_.lower[tier].tier->kind(),
                               .id = id,
                               .traits = d_.TraitsOf(id),
                               .now_us = d_.NowUs(),
                               .has_child_below = d_.block(id).lower_children[tier] > 0});
}

void Mover::OnSealed(BlockId id) {
  if (!d_.block(id).has_roots) verifier_.Verify(id);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (Admits(AdmissionMoment::kSealed, id, t)) QueueWrite(id, t);
  }
  if (shared_writer_ != nullptr) shared_writer_->Offer(id, SharedWriter::Moment::kSealed);
  Step();
}

void Mover::OnVerified(BlockId id) {
  const Block& b = d_.block(id);
  if (b.dram.state == CopyState::kDraining) EndDraining(id);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (b.is_wanted_below(t)) QueueWrite(id, t);
  }
  if (shared_writer_ != nullptr) {
    const bool was_served = b.hit_count > 0;
    shared_writer_->Offer(
        id, was_served ? SharedWriter::Moment::kServed : SharedWriter::Moment::kSealed);
  }
  Step();
}

// Its turn in a queue comes once it is verified.
void Mover::QueueWrite(BlockId id, uint32_t tier) {
  Block& b = d_.block(id);
  if (b.is_no_store || b.lower[tier].state != CopyState::kNone) return;
  b.wanted_below |= static_cast<uint8_t>(1 << tier);
  if (!b.is_verified) return verifier_.Verify(id);
  if (queues_[tier].writes.size() + queues_[tier].unshelved.size() >= kWritesQueuedMax) return;
  queues_[tier].writes.push_back({.block = id, .commit_id = b.commit_id});
}

bool Mover::MayGoBelow(BlockId id, uint32_t tier) const {
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed || b.dram.state != CopyState::kReady || b.is_no_store ||
      b.lower[tier].state != CopyState::kNone || residency_.IsExpired(id)) {
    return false;
  }
  const BlockId parent = d_.index.node(id).parent;
  return parent == kBlockNone || d_.block(parent).lower[tier].row != kRowNone;
}

Status Mover::StartWrite(BlockId id, uint32_t tier) {
  if (queues_[tier].writes_in_flight >= kWritesInFlightMax) {
    return Status(StatusCode::kBusy, "kWritesInFlightMax blocks are being written");
  }
  switch (ShelfStateOf(id, tier)) {
    case GroupShelf::State::kComing:
      return Status(StatusCode::kBusy, "the group's spec is being written");
    case GroupShelf::State::kFailed:
      return Status(StatusCode::kNoSpace, "the group's spec could not be written");
    case GroupShelf::State::kKept:
      break;
  }
  TERRACE_RETURN_IF_ERROR(evictor_.TakeExtents(id, tier));
  d_.block(id).wanted_below &= static_cast<uint8_t>(~(1 << tier));
  ++queues_[tier].writes_in_flight;
  const uint32_t number = TakeJob({.block = id, .tier = tier, .is_write = true});
  queues_[tier].begun_writes.push_back(number);
  return Status::Ok();
}

GroupShelf::State Mover::ShelfStateOf(BlockId id, uint32_t tier) {
  Group& group = d_.group_of(d_.block(id));
  if (tier != d_.persistent_tier || group.is_shelved || d_.limits.shelf == nullptr) {
    return GroupShelf::State::kKept;
  }
  const GroupShelf::State state = d_.limits.shelf->StateOf(d_.domain_index, group.id());
  group.is_shelved = state == GroupShelf::State::kKept;
  return state;
}

bool Mover::TryDemote(BlockId id) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    // The copy on a device goes with the device's clients, or with the daemon.
    if (t != d_.device_tier && d_.block(id).lower[t].is_readable()) return false;
  }
  Block& b = d_.block(id);
  bool is_begun = false;
  bool is_to_verify = false;
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (!MayGoBelow(id, t) || !Admits(AdmissionMoment::kEvicted, id, t)) continue;
    if (b.is_verified) {
      is_begun |= StartWrite(id, t).ok();
    } else {
      b.wanted_below |= static_cast<uint8_t>(1 << t);
      is_to_verify = true;
    }
  }
  // Where too many are being verified already it is dropped: nobody waits for that.
  if (is_to_verify) is_begun = verifier_.VerifyToLeave(id);
  if (is_begun) {
    residency_.SetDraining(id);
  } else {
    QueueAncestors(id);
  }
  return is_begun;
}

// A tail cannot go below before what it hangs from. It is lost, but what it hangs from is the next
// to go: now is the time to write that.
void Mover::QueueAncestors(BlockId id) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (queues_[t].writes.size() > kWritesQueuedMax / 2 || d_.lower[t].is_off) continue;
    std::vector<BlockId> path;
    BlockId above = d_.index.node(id).parent;
    while (above != kBlockNone && d_.block(above).lower[t].row == kRowNone &&
           path.size() < kAncestorsQueuedMax) {
      path.push_back(above);
      above = d_.index.node(above).parent;
    }
    const bool has_top = above == kBlockNone || d_.block(above).lower[t].row != kRowNone;
    for (size_t i = path.size(); has_top && i-- > 0;) {
      if (Admits(AdmissionMoment::kEvicted, path[i], t)) {
        QueueWrite(path[i], t);
      }
    }
  }
}

void Mover::FinishWrite(const Job& job) {
  const BlockId id = job.block;
  --queues_[job.tier].writes_in_flight;
  residency_.EndLowerFill(id, job.tier, !job.is_failed);
  residency_.LetGo(id, HoldKind::kJob);
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed) return;
  if (!job.is_failed) QueueChildren(id, job.tier);
  // The device holds other bytes than the block: those in DRAM may be the wrong ones.
  if (job.tier == d_.device_tier && job.verdict == Verdict::kBad &&
      b.dram.state == CopyState::kReady) {
    residency_.Doubt(id);
    verifier_.CheckServed(id);
  }
  if (b.dram.state != CopyState::kDraining || b.job_count > 0) return;
  if (job.is_failed) {
    ++d_.counters.demotions_failed;
  } else {
    ++d_.counters.demotions;
  }
  if (residency_.HasOtherCopy(b, b.dram) && residency_.MayDropDram(id)) {
    residency_.DropDram(id);
  } else {
    residency_.ClearDraining(id);
  }
}

// It was verified because it is to leave; now it may. Draining ends with the writes.
void Mover::EndDraining(BlockId id) {
  bool is_begun = false;
  residency_.ClearDraining(id);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (d_.block(id).is_wanted_below(t) && MayWrite(id, t)) is_begun |= StartWrite(id, t).ok();
  }
  if (is_begun) residency_.SetDraining(id);
}

// Children that were ready before their parent had arrived.
void Mover::QueueChildren(BlockId id, uint32_t tier) {
  uint32_t looked_at = 0;
  for (BlockId child = d_.index.node(id).first_child;
       child != kBlockNone && looked_at < kChildrenQueuedMax;
       child = d_.index.node(child).next_sibling, ++looked_at) {
    if (!MayGoBelow(child, tier)) continue;
    if (d_.block(child).is_wanted_below(tier) || Admits(AdmissionMoment::kSealed, child, tier)) {
      QueueWrite(child, tier);
    }
  }
}

// ---- turns ----

bool Mover::HasWork(const TierQueue& queue) {
  return !queue.reads.empty() || !queue.begun_writes.empty() || queue.may_start_write() ||
         !queue.drops.empty();
}

bool Mover::has_work() const {
  return std::any_of(queues_.begin(), queues_.end(), HasWork) || may_amend();
}

// What clients of a device copy ends when they please, and outlives no daemon anyway.
bool Mover::is_idle() const {
  const auto is_awaited = [this](const Job& job) {
    return job.is_used && job.tier != d_.device_tier;
  };
  if (std::any_of(jobs_.begin(), jobs_.end(), is_awaited)) return false;
  for (uint32_t t = 0; t < queues_.size(); ++t) {
    if (t == d_.device_tier) continue;
    if (HasWork(queues_[t])) return false;
    const bool is_queued = !queues_[t].writes.empty() || !queues_[t].unshelved.empty();
    if (!d_.lower[t].is_off && is_queued) return false;
  }
  return !may_amend();
}

bool Mover::Step() {
  for (uint32_t t = 0; t < queues_.size(); ++t) StepTier(t);
  StepAmends();
  return has_work();
}

// Whoever asked first, and of each run the first layers of all its blocks. False if the tier takes
// no more.
bool Mover::StepReads(uint32_t tier) {
  std::set<QueuedRead>& reads = queues_[tier].reads;
  while (!reads.empty()) {
    const uint32_t number = reads.begin()->job;
    GiveUpIfUnwanted(number);
    if (!Begin(number)) return false;
    Unqueue(number);
    Job& job = jobs_[number];
    const uint32_t step = job.step++;
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

// Reads first: somebody waits for them.
bool Mover::StepTier(uint32_t tier) {
  if (!StepReads(tier)) return false;
  StepAhead(tier);
  TierQueue& queue = queues_[tier];
  while (!queue.begun_writes.empty()) {
    const uint32_t number = queue.begun_writes.front();
    if (!Begin(number)) return false;
    queue.begun_writes.pop_front();
    FinishIfDone(number);
  }
  StepDrops(tier);
  for (uint32_t i = 0; i < kWritesPerStepMax && queue.may_start_write(); ++i) {
    const QueuedWrite write = queue.writes.front();
    const bool is_same = d_.block(write.block).commit_id == write.commit_id;
    if (is_same && ShelfStateOf(write.block, tier) == GroupShelf::State::kComing) {
      queue.unshelved.push_back(write);  // others go on
      queue.writes.pop_front();
      continue;
    }
    if (!is_same || !MayWrite(write.block, tier)) {
      queue.writes.pop_front();
      continue;
    }
    const Status started = StartWrite(write.block, tier);
    if (started.code() == StatusCode::kBusy || started.code() == StatusCode::kUnsupported) {
      queue.is_room_awaited = true;
      return true;
    }
    queue.writes.pop_front();
    if (!started.ok()) continue;
    const uint32_t number = queue.begun_writes.back();
    if (!Begin(number)) return false;
    queue.begun_writes.pop_back();
    FinishIfDone(number);
  }
  return true;
}

}  // namespace terrace
