#include "daemon/transfer/mover.h"

#include "daemon/transfer/shared_reader.h"
#include "daemon/transfer/shared_writer.h"
#include "terrace/check.h"

namespace terrace {

Mover::Mover(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier)
    : d_(domain),
      residency_(residency),
      verifier_(verifier),
      jobs_(domain, residency.holds),
      promotions_(domain, residency, evictor, verifier, jobs_),
      read_ahead_(domain, residency, promotions_),
      write_back_(domain, residency, evictor, verifier, jobs_),
      batch_drops_(domain, evictor) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) jobs_.LookAtHealth(t);
}

// ---- up ----

Status Mover::Promote(BlockId id, const ReadOrder& order) {
  if (d_.block(id).dram.state == CopyState::kUnverified) {
    residency_.dram.BeginVerify(id);
    verifier_.CheckPromotion(id);
    return Status::Ok();
  }
  if (d_.block(id).is_expected()) return shared_reader_->Fetch(id);
  return promotions_.Begin(id, order);
}

void Mover::OnPromotionChecked(BlockId id, bool is_good) {
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed) return;
  if (!is_good && !promotions_.MayReadAgain(id)) ++d_.counters.blocks_corrupt;
  if (b.is_adopting()) return EndAdoption(id, is_good);
  if (b.is_arriving()) return shared_reader_->EndFetch(id, is_good);
  promotions_.OnChecked(id, is_good);
}

// What is good may go below, as after a seal; what is not leaves its copies below, if there are
// any.
void Mover::EndAdoption(BlockId id, bool is_good) {
  residency_.dram.EndFill(id, is_good);
  if (is_good) return OnSealed(id);
  const Block& b = d_.block(id);
  if (residency_.candidates.HasOtherCopy(b, b.dram)) return;
  const EraseCauseScope scope(d_, protocol::MissCause::kCorrupt);
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
}

// ---- down ----

bool Mover::Persist(BlockId id) {
  if (d_.persistent_tier == kLowerTiersMax || d_.block(id).is_no_store) return false;
  write_back_.Queue(id, d_.persistent_tier);
  return true;
}

void Mover::PromoteToDevice(BlockId id) {
  TERRACE_CHECK(d_.device_tier != kLowerTiersMax, "there is a device to be promoted to");
  const Block& b = d_.block(id);
  if (b.hit_count < d_.options.device.hits_min || b.dram.state != CopyState::kReady) return;
  write_back_.Queue(id, d_.device_tier);
}

void Mover::OnSealed(BlockId id) {
  TERRACE_CHECK(d_.block(id).phase == BlockPhase::kSealed, "what is not Sealed may change");
  if (!d_.block(id).has_roots) verifier_.Verify(id);
  write_back_.OnSealed(id);
  if (shared_writer_ != nullptr) shared_writer_->Offer(id, SharedWriter::Moment::kSealed);
  Step();
}

void Mover::OnVerified(BlockId id) {
  write_back_.OnVerified(id);
  if (shared_writer_ != nullptr) {
    const bool was_served = d_.block(id).hit_count > 0;
    shared_writer_->Offer(
        id, was_served ? SharedWriter::Moment::kServed : SharedWriter::Moment::kSealed);
  }
  Step();
}

// ---- turns ----

void Mover::OnTransferDone(uint64_t number, Status status) {
  const TransferJobs::Ended ended = jobs_.OnTransferDone(number, status);
  if (jobs_.at(ended.number).is_write) {
    write_back_.OnTransferDone(ended);
  } else {
    promotions_.OnTransferDone(ended);
  }
  Step();
}

bool Mover::HasWork(uint32_t tier) const {
  return promotions_.has_work(tier) || write_back_.has_work(tier) || batch_drops_.has_work(tier);
}

bool Mover::has_work() const {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (HasWork(t)) return true;
  }
  return residency_.updates.has_work();
}

// What clients of a device copy ends when they please, and outlives no daemon anyway.
bool Mover::is_idle() const {
  if (!jobs_.is_idle()) return false;
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (t == d_.device_tier) continue;
    if (HasWork(t) || (!d_.lower[t].is_off && write_back_.has_queued(t))) return false;
  }
  return !residency_.updates.has_work();
}

bool Mover::Step() {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) StepTier(t);
  residency_.updates.Step();
  return has_work();
}

void Mover::StepTier(uint32_t tier) {
  if (!promotions_.Step(tier)) return;
  read_ahead_.Step(tier);
  if (!write_back_.StepBegun(tier)) return;
  write_back_.StepQueued(tier);
}

void Mover::StepDrops(uint32_t* budget) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    const bool was_giving = batch_drops_.is_giving(t);
    const bool has_ended = batch_drops_.Step(t, write_back_.in_flight_count(t), budget);
    const bool is_giving = batch_drops_.is_giving(t);
    if (is_giving != was_giving) write_back_.SetClosed(t, is_giving);
    if (has_ended) write_back_.OnRoom(t);
  }
  for (const BlockId id : batch_drops_.TakeHeld()) read_ahead_.QueueAlone(id);
}

void Mover::OnRoom() {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    jobs_.LookAtHealth(t);
    write_back_.OnRoom(t);
  }
  Step();
}

void Mover::OnGroupFilesChanged() {
  write_back_.OnGroupFilesChanged();
  Step();
}

void Mover::Tick() {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    d_.lower[t].tier->Tick();
    batch_drops_.Tick(t);
    write_back_.SetClosed(t, batch_drops_.is_giving(t));
  }
  write_back_.OnGroupFilesChanged();
  OnRoom();  // a word that was missed costs one period
}

}  // namespace terrace
