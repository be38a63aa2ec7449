#include "daemon/transfer/write_back.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "terrace/check.h"

namespace terrace {
namespace {

// Children looked at when their parent has arrived in a tier.
constexpr uint32_t kChildrenQueuedMax = 64;
// Queued writes looked at in one step.
constexpr uint32_t kWritesPerStepMax = 256;
// Ancestors of a dropped tail that are written together.
constexpr uint32_t kAncestorsQueuedMax = 64;

}  // namespace

// ---- what is wanted below ----

bool WriteBack::Admits(AdmissionMoment moment, BlockId id, uint32_t tier) {
  if (tier == d_.device_tier) return false;  // see Mover::PromoteToDevice
  return d_.admission->Admits({.moment = moment,
                               .tier = d_.lower[tier].tier->kind(),
                               .id = id,
                               .traits = d_.TraitsOf(id),
                               .now_us = d_.NowUs(),
                               .has_child_below = d_.block(id).lower_children[tier] > 0});
}

void WriteBack::OnSealed(BlockId id) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (Admits(AdmissionMoment::kSealed, id, t)) Queue(id, t);
  }
}

void WriteBack::OnVerified(BlockId id) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.is_verified, "what a client says of its bytes never meets a drive");
  if (b.dram.state == CopyState::kDraining) EndDraining(id);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (b.is_wanted_below(t)) Queue(id, t);
  }
}

// Its turn in a queue comes once it is verified.
void WriteBack::Queue(BlockId id, uint32_t tier) {
  const Block& b = d_.block(id);
  if (b.is_no_store || b.lower[tier].state != CopyState::kNone) return;
  WishesOf(id).wanted_below |= static_cast<uint8_t>(1 << tier);
  if (!b.is_verified) return verifier_.Verify(id);
  TierQueue& queue = queues_[tier];
  if (queue.writes.size() + queue.without_group_file.size() >= kQueuedMax) return;
  queue.writes.push_back({.block = id, .commit_id = b.commit_id});
}

bool WriteBack::MayGoBelow(BlockId id, uint32_t tier) const {
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed || b.dram.state != CopyState::kReady || b.is_no_store ||
      b.lower[tier].state != CopyState::kNone || residency_.candidates.IsExpired(id)) {
    return false;
  }
  const BlockId parent = d_.index.node(id).parent;
  return parent == kBlockNone || d_.block(parent).lower[tier].row != kRowNone;
}

// A tail cannot go below before what it hangs from. It is lost, but what it hangs from is the next
// to go: now is the time to write that.
void WriteBack::QueueAncestors(BlockId id) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (queues_[t].writes.size() > kQueuedMax / 2 || d_.lower[t].is_off) continue;
    std::vector<BlockId> path;
    BlockId above = d_.index.node(id).parent;
    while (above != kBlockNone && d_.block(above).lower[t].row == kRowNone &&
           path.size() < kAncestorsQueuedMax) {
      path.push_back(above);
      above = d_.index.node(above).parent;
    }
    const bool has_top = above == kBlockNone || d_.block(above).lower[t].row != kRowNone;
    for (size_t i = path.size(); has_top && i-- > 0;) {
      if (Admits(AdmissionMoment::kEvicted, path[i], t)) Queue(path[i], t);
    }
  }
}

// Children that were ready before their parent had arrived.
void WriteBack::QueueChildren(BlockId id, uint32_t tier) {
  uint32_t looked_at = 0;
  for (BlockId child = d_.index.node(id).first_child;
       child != kBlockNone && looked_at < kChildrenQueuedMax;
       child = d_.index.node(child).next_sibling, ++looked_at) {
    if (!MayGoBelow(child, tier)) continue;
    if (d_.block(child).is_wanted_below(tier) || Admits(AdmissionMoment::kSealed, child, tier)) {
      Queue(child, tier);
    }
  }
}

void WriteBack::OnGroupFilesChanged() {
  for (TierQueue& queue : queues_) {
    std::ranges::move(queue.without_group_file, std::back_inserter(queue.writes));
    queue.without_group_file.clear();
  }
  if (d_.persistent_tier < queues_.size()) QueueAgain(d_.persistent_tier);
}

// What waits for a file that could not be written, and is there now.
void WriteBack::QueueAgain(uint32_t tier) {
  TierQueue& queue = queues_[tier];
  std::optional<uint32_t> asked_of;  // one answer for all blocks of a group
  GroupFiles::State state = GroupFiles::State::kFailed;
  for (auto at = queue.without_group.begin(); at != queue.without_group.end();) {
    const auto [id, commit_id] = *at;
    const Block& b = d_.block(id);
    const bool is_same = b.commit_id == commit_id;
    if (is_same && asked_of != b.group_index) {
      asked_of = b.group_index;
      state = GroupFileStateOf(id, tier);
    }
    if (is_same && state != GroupFiles::State::kKept) {
      ++at;
      continue;
    }
    if (is_same) queue.writes.push_back({.block = id, .commit_id = commit_id});
    at = queue.without_group.erase(at);
  }
}

// ---- leaving DRAM ----

bool WriteBack::TryDemote(BlockId id) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    // The copy on a device goes with the device's clients, or with the daemon.
    if (t != d_.device_tier && d_.block(id).lower[t].is_readable()) return false;
  }
  const Block& b = d_.block(id);
  bool is_begun = false;
  bool is_to_verify = false;
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (!MayGoBelow(id, t) || !Admits(AdmissionMoment::kEvicted, id, t)) continue;
    if (b.is_verified) {
      is_begun |= Start(id, t).ok();
    } else {
      WishesOf(id).wanted_below |= static_cast<uint8_t>(1 << t);
      is_to_verify = true;
    }
  }
  // Where too many are being verified already it is dropped: nobody waits for that.
  if (is_to_verify) is_begun = verifier_.VerifyToLeave(id);
  if (is_begun) {
    residency_.dram.SetDraining(id);
  } else {
    QueueAncestors(id);
  }
  return is_begun;
}

// It was verified because it is to leave; now it may. Draining ends with the writes.
void WriteBack::EndDraining(BlockId id) {
  bool is_begun = false;
  residency_.dram.ClearDraining(id);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (d_.block(id).is_wanted_below(t) && MayWrite(id, t)) is_begun |= Start(id, t).ok();
  }
  if (is_begun) residency_.dram.SetDraining(id);
}

// ---- writing ----

Status WriteBack::Start(BlockId id, uint32_t tier) {
  TierQueue& queue = queues_[tier];
  if (queue.in_flight_count >= kInFlightMax) {
    return Status(StatusCode::kBusy, "WriteBack::kInFlightMax blocks are being written");
  }
  if (queue.is_closed) return Status(StatusCode::kBusy, "the tier gives room to another domain");
  switch (GroupFileStateOf(id, tier)) {
    case GroupFiles::State::kComing:
      return Status(StatusCode::kBusy, "the group's spec is being written");
    case GroupFiles::State::kFailed:
      return Status(StatusCode::kNoSpace, "the group's spec could not be written");
    case GroupFiles::State::kKept:
      break;
  }
  TERRACE_RETURN_IF_ERROR(evictor_.TakeExtents(id, tier));
  WishesOf(id).wanted_below &= static_cast<uint8_t>(~(1 << tier));
  ++queue.in_flight_count;
  queue.begun.push_back(jobs_.Take(id, tier, TransferJobs::Direction::kWrite));
  return Status::Ok();
}

GroupFiles::State WriteBack::GroupFileStateOf(BlockId id, uint32_t tier) {
  Group& group = d_.group_of(d_.block(id));
  if (tier != d_.persistent_tier || group.has_file || d_.limits.group_files == nullptr) {
    return GroupFiles::State::kKept;
  }
  const GroupFiles::State state = d_.limits.group_files->StateOf(d_.domain_index, group.id());
  group.has_file = state == GroupFiles::State::kKept;
  return state;
}

bool WriteBack::has_work(uint32_t tier) const {
  return !queues_[tier].begun.empty() || queues_[tier].may_start();
}

bool WriteBack::StepBegun(uint32_t tier) {
  std::deque<uint32_t>& begun = queues_[tier].begun;
  while (!begun.empty()) {
    const uint32_t number = begun.front();
    if (!jobs_.Begin(number)) return false;
    begun.pop_front();
    FinishIfDone(number);
  }
  return true;
}

void WriteBack::StepQueued(uint32_t tier) {
  TierQueue& queue = queues_[tier];
  for (uint32_t i = 0; i < kWritesPerStepMax && queue.may_start(); ++i) {
    const QueuedWrite write = queue.writes.front();
    const bool is_same = d_.block(write.block).commit_id == write.commit_id;
    const GroupFiles::State of_group =
        is_same ? GroupFileStateOf(write.block, tier) : GroupFiles::State::kKept;
    if (of_group == GroupFiles::State::kComing) {
      queue.without_group_file.push_back(write);  // others go on
      queue.writes.pop_front();
      continue;
    }
    if (!is_same || !MayWrite(write.block, tier)) {
      queue.writes.pop_front();
      continue;
    }
    if (of_group == GroupFiles::State::kFailed) {
      if (queue.without_group.size() < kWithoutGroupMax) {
        queue.without_group.insert_or_assign(write.block, write.commit_id);
      }
      queue.writes.pop_front();
      continue;
    }
    const Status started = Start(write.block, tier);
    if (started.code() == StatusCode::kBusy || started.code() == StatusCode::kUnsupported) {
      queue.is_room_awaited = true;
      return;
    }
    queue.writes.pop_front();
    if (!started.ok()) continue;
    const uint32_t number = queue.begun.back();
    if (!jobs_.Begin(number)) return;
    queue.begun.pop_back();
    FinishIfDone(number);
  }
}

void WriteBack::FinishIfDone(uint32_t number) {
  if (jobs_.at(number).in_flight_count > 0 || !jobs_.HasBegunAll(number)) return;
  Finish(jobs_.Give(number));
}

void WriteBack::Finish(const TransferJob& job) {
  const BlockId id = job.block;
  TERRACE_CHECK(queues_[job.tier].in_flight_count > 0, "writes in flight are counted");
  --queues_[job.tier].in_flight_count;
  residency_.lower.EndFill(id, job.tier, !job.is_failed);
  residency_.holds.LetGo(id, HoldKind::kJob);
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed) return;
  if (!job.is_failed) QueueChildren(id, job.tier);
  // The device holds other bytes than the block: those in DRAM may be the wrong ones.
  if (job.tier == d_.device_tier && job.verdict == TransferVerdict::kBad &&
      b.dram.state == CopyState::kReady) {
    residency_.dram.Doubt(id);
    verifier_.CheckServed(id);
  }
  if (b.dram.state != CopyState::kDraining || b.job_count > 0) return;
  ++(job.is_failed ? d_.counters.demotions_failed : d_.counters.demotions);
  if (residency_.candidates.HasOtherCopy(b, b.dram) && residency_.candidates.MayDropDram(id)) {
    residency_.lifecycle.DropDram(id);
  } else {
    residency_.dram.ClearDraining(id);
  }
}

}  // namespace terrace
