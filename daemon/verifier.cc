#include "daemon/verifier.h"

#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {

// OffloadIds say which domain asked: bits 48 and up.
static constexpr uint32_t kDomainShift = 48;

void Verifier::ComputeRoots(BlockId id) {
  Block& b = d_.block(id);
  if (b.has_roots || b.is_in_check) return;
  b.is_in_check = true;
  residency_.Hold(id, HoldKind::kJob);
  if (!Submit(id, Purpose::kRoots).ok()) {
    waiting_.push_back({.block = id, .commit_id = b.commit_id, .purpose = Purpose::kRoots});
  }
}

void Verifier::CheckServed(BlockId id) {
  Block& b = d_.block(id);
  if (b.is_verified || b.is_in_check || !b.has_roots || b.dram.state != CopyState::kReady) return;
  residency_.Hold(id, HoldKind::kJob);
  b.is_in_check = true;
  if (Submit(id, Purpose::kServed).ok()) return;
  b.is_in_check = false;
  residency_.LetGo(id, HoldKind::kJob);
}

void Verifier::CheckPromotion(BlockId id) {
  Block& b = d_.block(id);
  b.is_in_check = true;
  residency_.Hold(id, HoldKind::kJob);
  if (!Submit(id, Purpose::kPromotion).ok()) {
    waiting_.push_back({.block = id, .commit_id = b.commit_id, .purpose = Purpose::kPromotion});
  }
}

Status Verifier::Submit(BlockId id, Purpose purpose) {
  uint32_t number;
  if (free_jobs_.empty()) {
    number = static_cast<uint32_t>(jobs_.size());
    jobs_.emplace_back();
  } else {
    number = free_jobs_.back();
    free_jobs_.pop_back();
  }
  ChecksumJob job = Describe(id);
  job.id = (uint64_t{d_.domain_index} << kDomainShift) | number;
  const Status status = d_.seams.offload.Submit(std::move(job));
  if (!status.ok()) {
    free_jobs_.push_back(number);
    return status;
  }
  jobs_[number] = {
      .block = id, .commit_id = d_.block(id).commit_id, .purpose = purpose, .is_used = true};
  return Status::Ok();
}

// Parts of all members with bytes, in order.
ChecksumJob Verifier::Describe(BlockId id) const {
  const Block& b = d_.block(id);
  const std::span<const SlotRef> refs = d_.slots_of(b);
  const BlockKey key = d_.index.node(id).key;
  ChecksumJob job;
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!refs[i].address.has_bytes()) continue;
    const std::byte* base = d_.options.arena->SegmentBase(refs[i].address.segment) +
                            refs[i].address.page * kArenaPageBytes;
    for (uint32_t part = 0; part < locals[i].part_count; ++part) {
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
  TERRACE_CHECK(number < jobs_.size() && jobs_[number].is_used, "a job is done once");
  const Job job = jobs_[number];
  jobs_[number].is_used = false;
  free_jobs_.push_back(static_cast<uint32_t>(number));
  const Block& b = d_.block(job.block);
  TERRACE_CHECK(b.commit_id == job.commit_id && b.job_count > 0, "I2: a block under check is held");
  Conclude(job.block, job.purpose, Compare(job.block, roots));
}

bool Verifier::Compare(BlockId id, std::span<const Checksum> roots) {
  const Block& b = d_.block(id);
  const std::span<const SlotRef> refs = d_.slots_of(b);
  const std::span<Checksum> known = d_.roots_of(b);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  size_t next = 0;
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!refs[i].address.has_bytes()) continue;
    for (uint32_t part = 0; part < locals[i].part_count; ++part) {
      if (next >= roots.size()) return false;
      const Checksum root = roots[next++];
      Checksum& expected = known[locals[i].first_root + part];
      if (expected.is_zero()) expected = root;
      if (expected != root) return false;
    }
  }
  return true;
}

void Verifier::Conclude(BlockId id, Purpose purpose, bool is_good) {
  Block& b = d_.block(id);
  b.is_in_check = false;
  const bool is_sealed = b.phase == BlockPhase::kSealed;
  if (purpose == Purpose::kPromotion) {
    residency_.LetGo(id, HoldKind::kJob);
    listener_->OnPromotionChecked(id, is_good);
    return;
  }
  if (is_sealed && is_good) {
    b.is_verified = true;
    ++d_.counters.checksums_verified;
    if (purpose == Purpose::kRoots) residency_.RootsKnown(id);
  }
  if (is_sealed && !is_good) {
    ++d_.counters.blocks_corrupt;
    residency_.Erase(id, StatusCode::kNotFound);
  }
  residency_.LetGo(id, HoldKind::kJob);
  if (is_sealed && is_good && purpose == Purpose::kRoots && listener_ != nullptr) {
    listener_->OnRooted(id);
  }
}

bool Verifier::Step() {
  while (!waiting_.empty()) {
    const Job job = waiting_.front();
    const Block& b = d_.block(job.block);
    if (b.phase != BlockPhase::kSealed) {
      waiting_.pop_front();
      Conclude(job.block, job.purpose, false);
      continue;
    }
    if (!Submit(job.block, job.purpose).ok()) break;
    waiting_.pop_front();
  }
  return has_work();
}

}  // namespace terrace
