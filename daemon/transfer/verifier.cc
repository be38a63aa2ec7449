#include "daemon/transfer/verifier.h"

#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {

void Verifier::Verify(BlockId id) {
  const Block& b = d_.block(id);
  if (b.is_verified || b.is_check_due || b.is_in_check) return;
  if (waiting_.empty() && may_start_unasked() && Start(id, Purpose::kUnasked).ok()) return;
  if (waiting_.size() >= kWaitingMax) return;
  MarksOf(id).is_check_due = true;
  waiting_.push_back({.block = id, .commit_id = b.commit_id});
}

void Verifier::VerifyForReader(BlockId id) {
  if (Start(id, Purpose::kReader).ok()) return;
  // One reader may ask for a block many times. Who is not noted waits for others' checks, or until
  // its deadline.
  if (readers_waiting_.size() >= kWaitingMax) return Verify(id);
  readers_waiting_.push_back({.block = id, .commit_id = d_.block(id).commit_id});
}

bool Verifier::VerifyToLeave(BlockId id) {
  return may_start_unasked() && Start(id, Purpose::kUnasked).ok() && d_.block(id).is_in_check;
}

Status Verifier::Start(BlockId id, Purpose purpose) {
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed || !b.dram.is_readable() || b.is_in_check || b.is_verified) {
    return Status::Ok();
  }
  MarksOf(id).is_in_check = true;
  residency_.holds.Hold(id, HoldKind::kJob);
  const Status status = Submit({.block = id, .purpose = purpose});
  if (!status.ok()) {
    MarksOf(id).is_in_check = false;
    residency_.holds.LetGo(id, HoldKind::kJob);
  }
  return status;
}

void Verifier::CheckServed(BlockId id) {
  if (!d_.block(id).has_roots) {
    Verify(id);
  } else if (served_in_flight_ < kServedInFlightMax) {
    (void)Start(id, Purpose::kServed);
  }
}

void Verifier::CheckPromotion(BlockId id) {
  MarksOf(id).is_in_check = true;
  residency_.holds.Hold(id, HoldKind::kJob);
  const Check check{.block = id, .purpose = Purpose::kPromotion};
  if (!Submit(check).ok()) promotions_waiting_.push_back(check);
}

void Verifier::CheckStep(BlockId id, uint32_t step) {
  residency_.holds.Hold(id, HoldKind::kJob);
  const Check check{.block = id, .purpose = Purpose::kStep, .step = step};
  if (!Submit(check).ok()) promotions_waiting_.push_back(check);
}

Status Verifier::Submit(const Check& check) {
  ChecksumJob job = Describe(check);
  job.id = (uint64_t{d_.domain_index} << kDomainShift) | jobs_.next();
  const bool was_lost = HasLost(check.block);  // before anybody looks there
  TERRACE_RETURN_IF_ERROR(d_.seams.offload.Submit(std::move(job)));
  jobs_.Take({.check = check, .commit_id = d_.block(check.block).commit_id, .was_lost = was_lost});
  CountInFlight(check, 1);
  return Status::Ok();
}

void Verifier::CountInFlight(const Check& check, int32_t by) {
  if (check.purpose == Purpose::kServed) served_in_flight_ += by;
  if (check.purpose != Purpose::kUnasked) return;
  unasked_in_flight_ += by;
  const auto block_bytes = static_cast<int64_t>(d_.group_of(d_.block(check.block)).block_bytes());
  unasked_bytes_in_flight_ += by * block_bytes;
}

PartRun Verifier::PartsOf(const LocalMember& local, const Check& check) {
  if (check.purpose != Purpose::kStep) return {.part_count = local.part_count};
  return check.step < local.part_runs.size() ? local.part_runs[check.step] : PartRun{};
}

// Parts of all members with bytes, in order.
ChecksumJob Verifier::Describe(const Check& check) const {
  const Block& b = d_.block(check.block);
  const std::span<const SlotRef> refs = d_.slots_of(b);
  const BlockKey key = d_.index.node(check.block).key;
  ChecksumJob job;
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!refs[i].address.has_bytes()) continue;
    const std::byte* base = d_.options.arena->SegmentBase(refs[i].address.segment) +
                            refs[i].address.page * kArenaPageBytes;
    const PartRun run = PartsOf(locals[i], check);
    for (uint32_t part = run.part_first; part < run.part_first + run.part_count; ++part) {
      job.parts.push_back(
          {.bytes = {base + locals[i].part_offset_bytes[part], locals[i].part_bytes[part]},
           .seed = ChecksumSeed(d_.options.secret, {.space = locals[i].space,
                                                    .key = key,
                                                    .commit_id = b.commit_id,
                                                    .part_index = part})});
    }
  }
  return job;
}

void Verifier::OnChecksumsDone(uint64_t number, std::span<const Checksum> roots) {
  TERRACE_CHECK(jobs_.is_taken(number), "a job is done once");
  const Job job = jobs_.Give(static_cast<uint32_t>(number));
  const Block& b = d_.block(job.check.block);
  TERRACE_CHECK(b.commit_id == job.commit_id && b.job_count > 0, "I2: a block under check is held");
  const bool is_clients_memory = !job.was_lost && !HasLost(job.check.block);
  Conclude(job.check, is_clients_memory && Compare(job.check, roots));
}

// Its bytes were, or are to be, checked where no client reads them: they may be right there alone.
bool Verifier::HasLost(BlockId id) const {
  const Block& b = d_.block(id);
  const std::span<const SlotRef> refs = d_.slots_of(b);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!refs[i].address.has_bytes()) continue;
    const std::byte* const base = d_.options.arena->SegmentBase(refs[i].address.segment) +
                                  refs[i].address.page * kArenaPageBytes;
    if (d_.options.arena->HasLost({base, locals[i].slot_bytes})) return true;
  }
  return false;
}

bool Verifier::Compare(const Check& check, std::span<const Checksum> roots) {
  const Block& b = d_.block(check.block);
  const std::span<const SlotRef> refs = d_.slots_of(b);
  const std::span<Checksum> known = d_.roots_of(b);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  size_t next = 0;
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!refs[i].address.has_bytes()) continue;
    const PartRun run = PartsOf(locals[i], check);
    for (uint32_t part = run.part_first; part < run.part_first + run.part_count; ++part) {
      if (next >= roots.size()) return false;
      const Checksum root = roots[next++];
      Checksum& expected = known[locals[i].first_root + part];
      if (expected.is_zero() && check.purpose != Purpose::kStep) expected = root;
      if (expected != root) return false;
    }
    // Of an adopted copy a digest of the roots is known, no more.
    if (b.is_adopting() && FoldRoots(known.subspan(locals[i].first_root, locals[i].part_count),
                                     b.commit_id) != d_.slots.row(refs[i]).checksum) {
      return false;
    }
  }
  return true;
}

void Verifier::Conclude(const Check& check, bool is_good) {
  const BlockId id = check.block;
  const Purpose purpose = check.purpose;
  const Block& b = d_.block(id);
  if (purpose == Purpose::kStep) {
    residency_.holds.LetGo(id, HoldKind::kJob);
    listener_->OnStepChecked(id, check.step, is_good);
    return;
  }
  MarksOf(id).is_in_check = false;
  const bool is_sealed = b.phase == BlockPhase::kSealed;
  if (purpose == Purpose::kPromotion) {
    residency_.holds.LetGo(id, HoldKind::kJob);
    listener_->OnPromotionChecked(id, is_good);
    return;
  }
  CountInFlight(check, -1);
  if (is_sealed && is_good) {
    ++d_.counters.checksums_verified;
    residency_.dram.Verified(id);
  }
  if (is_sealed && !is_good) Refute(id);
  residency_.holds.LetGo(id, HoldKind::kJob);
  if (is_sealed && is_good && listener_ != nullptr) listener_->OnVerified(id);
}

// Its writer said something else of the bytes, or somebody who may write there has changed them
// since. Of what came from below or from other hosts no writer is known.
void Verifier::Refute(BlockId id) {
  const Block& b = d_.block(id);
  ++d_.counters.blocks_corrupt;
  ++d_.counters.blocks_refuted;
  d_.NoteRefuted({.session = b.writer_session, .uid = b.writer_uid, .block_count = 1});
  const EraseCauseScope scope(d_, protocol::MissCause::kCorrupt);
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
}

bool Verifier::Step() {
  while (!promotions_waiting_.empty()) {
    const Check check = promotions_waiting_.front();
    const bool is_sealed = d_.block(check.block).phase == BlockPhase::kSealed;
    if (is_sealed && !Submit(check).ok()) return true;
    promotions_waiting_.pop_front();
    if (!is_sealed) Conclude(check, false);
  }
  if (StepWaiting(&readers_waiting_, Purpose::kReader)) {
    StepWaiting(&waiting_, Purpose::kUnasked);
  }
  return has_work();
}

// False if the queue takes no more for now.
bool Verifier::StepWaiting(std::deque<Waiting>* waiting, Purpose purpose) {
  for (uint32_t i = 0; i < kWaitingPerStepMax && !waiting->empty(); ++i) {
    if (purpose == Purpose::kUnasked && !may_start_unasked()) return true;
    const Waiting next = waiting->front();
    const Block& b = d_.block(next.block);
    // Evicted meanwhile, perhaps, and another block since.
    if (b.commit_id == next.commit_id) {
      if (!Start(next.block, purpose).ok()) return false;
      if (purpose == Purpose::kUnasked) MarksOf(next.block).is_check_due = false;
    }
    waiting->pop_front();
  }
  return true;
}

}  // namespace terrace
