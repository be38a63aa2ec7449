#include "daemon/transfer/transfer_jobs.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

// TransferIds: domain (16 bits), job (32 bits), step (8 bits), place of the member among the local
// ones (8 bits).
constexpr uint32_t kJobShift = 16;
constexpr uint32_t kStepShift = 8;
static_assert(kGroupMembersMax <= 1 << kStepShift);
static_assert(kPartsPerSpaceMax <= 1 << (kJobShift - kStepShift));

}  // namespace

uint32_t TransferJobs::Take(BlockId block, uint32_t tier, Direction direction) {
  TERRACE_CHECK(tier < d_.lower.size(), "a job is for a tier");
  holds_.Hold(block, HoldKind::kJob);
  return jobs_.Take({.block = block, .tier = tier, .is_write = direction == Direction::kWrite});
}

TransferJob TransferJobs::Give(uint32_t number) {
  TERRACE_CHECK(jobs_.is_taken(number) && jobs_[number].in_flight_count == 0,
                "a job ends once, when nothing of it is in flight");
  return jobs_.Give(number);
}

void TransferJobs::MakeByParts(uint32_t number) {
  TransferJob& job = jobs_[number];
  TERRACE_CHECK(!job.is_write && !job.has_begun(), "in which steps is settled before the first");
  if (!d_.lower[job.tier].tier->reads_ranges()) return;
  job.step_count = d_.group_of(d_.block(job.block)).step_count();
  job.step_transfers.assign(job.step_count, 0);
}

bool TransferJobs::Begin(uint32_t number) {
  TransferJob& job = jobs_[number];
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

Status TransferJobs::BeginMember(uint32_t number, uint32_t local_index) {
  const TransferJob& job = jobs_[number];
  const Block& b = d_.block(job.block);
  Group& group = d_.group_of(b);
  const LocalMember& local = group.locals()[local_index];
  const SlotAddress address = d_.slots_of(b)[local_index].address;
  const Extent& extent = group.extents().at(b.lower[job.tier].row)[local_index];
  TERRACE_CHECK(address.has_bytes() && extent.length_bytes == local.slot_bytes,
                "a transfer is between a slot and an extent of its size");
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

bool TransferJobs::HasBegunAll(uint32_t number) const {
  return jobs_[number].next_local >= d_.group_of(d_.block(jobs_[number].block)).locals().size();
}

TransferJobs::Ended TransferJobs::OnTransferDone(uint64_t transfer_number, Status status) {
  const Ended ended{.number = static_cast<uint32_t>(transfer_number >> kJobShift),
                    .step = static_cast<uint32_t>(transfer_number >> kStepShift) & 0xFF};
  TERRACE_CHECK(jobs_.is_taken(ended.number) && jobs_[ended.number].in_flight_count > 0,
                "a transfer is done once");
  TransferJob& job = jobs_[ended.number];
  --job.in_flight_count;
  if (!status.ok()) Fail(job, status);
  if (job.is_by_parts()) {
    TERRACE_CHECK(ended.step < job.step_count && job.step_transfers[ended.step] > 0,
                  "a step's transfers are counted");
    --job.step_transfers[ended.step];
  }
  return ended;
}

void TransferJobs::Fail(TransferJob& job, Status status) {
  job.is_failed = true;
  LookAtHealth(job.tier);
  TransferVerdict verdict = TransferVerdict::kGone;
  if (d_.lower[job.tier].is_off || status.code() == StatusCode::kBusy ||
      status.code() == StatusCode::kUnsupported) {
    verdict = TransferVerdict::kLater;
  } else if (status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt) {
    verdict = TransferVerdict::kBad;
  }
  job.verdict = std::max(job.verdict, verdict);
}

void TransferJobs::LookAtHealth(uint32_t tier) {
  d_.lower[tier].is_off.of_owner() = !d_.lower[tier].tier->stats().is_healthy;
}

bool TransferJobs::is_idle() const {
  bool is_idle = true;
  jobs_.ForEach([&](uint32_t, const TransferJob& job) { is_idle &= job.tier == d_.device_tier; });
  return is_idle;
}

}  // namespace terrace
