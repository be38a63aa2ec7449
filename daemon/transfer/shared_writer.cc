#include "daemon/transfer/shared_writer.h"

#include "daemon/transfer/shared_names.h"
#include "terrace/check.h"
#include "tiers/shared_name.h"

namespace terrace {
namespace {

// TransferIds: block (bits 8 and up), place of the member among the local ones. A block is stored
// or fetched, never both at once.
constexpr uint32_t kBlockShift = 8;
static_assert(kGroupMembersMax <= 1 << kBlockShift);

}  // namespace

bool SharedWriter::IsToGive(BlockId id) const {
  const Block& b = d_.block(id);
  return !IsOfBefore(b) && b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kReady &&
         !b.is_no_store && b.shared_epoch != d_.shared_epoch &&
         !residency_.candidates.IsExpired(id);
}

bool SharedWriter::IsOfBefore(const Block& b) const {
  const Group& group = d_.group_of(b);
  if (group.shared_since_us != 0 && b.created_us <= group.shared_since_us) return true;
  // Whenever it is found again: it is older than whatever this process has heard.
  return b.is_outlived && (group.shared_since_us != 0 || were_too_many_forgotten_ ||
                           forgotten_unopened_.contains(group.id()));
}

// ---- waiting ----

void SharedWriter::OfferToTier(BlockId id, Moment moment) {
  const Block& b = d_.block(id);
  if (!IsToGive(id) || b.is_offered || jobs_.contains(id)) return;
  if (d_.options.shared.is_storing_hits_only && moment == Moment::kSealed) return;
  if (!b.is_verified) return verifier_.Verify(id);
  const uint64_t byte_count = d_.group_of(b).block_bytes();
  if (!MakeRoom(byte_count, b.priority)) {
    ++counts_.blocks_dropped;
    return;
  }
  queue_[b.priority].push_back({.block = id, .commit_id = b.commit_id, .byte_count = byte_count});
  MarksOf(id).is_offered = true;
  ++counts_.queued_blocks;
  counts_.queued_bytes += byte_count;
}

// What is less wanted goes, the last of it first: it hangs from what came before.
bool SharedWriter::MakeRoom(uint64_t byte_count, uint8_t priority) {
  const auto is_full = [&] {
    return counts_.queued_bytes + byte_count > d_.options.shared.queue_bytes_max ||
           counts_.queued_blocks >= kQueuedMax;
  };
  while (is_full()) {
    if (queue_.empty() || queue_.rbegin()->first >= priority) return false;
    const auto lowest = std::prev(queue_.end());
    const Offered dropped = lowest->second.back();
    lowest->second.pop_back();
    if (lowest->second.empty()) queue_.erase(lowest);
    --counts_.queued_blocks;
    counts_.queued_bytes -= dropped.byte_count;
    const bool is_same = d_.block(dropped.block).commit_id == dropped.commit_id;
    if (is_same) MarksOf(dropped.block).is_offered = false;
    ++counts_.blocks_dropped;
  }
  return true;
}

bool SharedWriter::TakeNext(Offered* offered) {
  if (queue_.empty()) return false;
  const auto first = queue_.begin();
  *offered = first->second.front();
  first->second.pop_front();
  if (first->second.empty()) queue_.erase(first);
  --counts_.queued_blocks;
  counts_.queued_bytes -= offered->byte_count;
  return true;
}

// ---- giving ----

void SharedWriter::Step() {
  while (!begun_.empty()) {
    const BlockId id = begun_.front();
    if (!Begin(id, &jobs_.at(id))) return;
    begun_.pop_front();
    FinishIfDone(id);
  }
  if (queue_.empty() || !d_.options.shared.tier->is_ready()) return;
  Offered offered;
  for (uint32_t i = 0;
       i < kOffersPerStepMax && jobs_.size() < kStoresInFlightMax && TakeNext(&offered); ++i) {
    const BlockId id = offered.block;
    const Block& b = d_.block(id);
    const bool is_same = b.commit_id == offered.commit_id;
    if (is_same) MarksOf(id).is_offered = false;
    if (!is_same || !MayGive(id)) {
      ++counts_.blocks_outdated;
      continue;
    }
    if (!HasShareFor(offered.byte_count)) {
      ++counts_.blocks_over_quota;
      continue;
    }
    Job job{.byte_count = offered.byte_count, .begun_us = d_.NowUs()};
    if (!FindRun(d_.index, id, &job.run)) {
      ++counts_.blocks_unnamed;
      continue;
    }
    under_way_bytes_ += job.byte_count;
    residency_.holds.Hold(id, HoldKind::kJob);
    Job& begun = jobs_[id] = job;
    if (!Begin(id, &begun)) {
      begun_.push_back(id);
      return;
    }
    FinishIfDone(id);
  }
}

bool SharedWriter::Begin(BlockId id, Job* job) {
  const Block& b = d_.block(id);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  // Erased while it waited: under a name of now it would be found.
  if (b.phase != BlockPhase::kSealed || IsOfBefore(b)) job->is_failed = true;
  for (; job->next_local < locals.size() && !job->is_failed; ++job->next_local) {
    const LocalMember& local = locals[job->next_local];
    const SlotAddress address = d_.slots_of(b)[job->next_local].address;
    if (!address.has_bytes()) continue;
    const std::span<const std::byte> bytes(
        d_.options.arena->SegmentBase(address.segment) + address.page * kArenaPageBytes,
        local.slot_bytes);
    const Status status = d_.options.shared.tier->Store(
        (TransferId{id} << kBlockShift) | job->next_local, job->run, d_.RecordOf(id, local), bytes);
    if (status.code() == StatusCode::kBusy) return false;
    if (status.ok()) {
      ++job->in_flight_count;
    } else {
      job->is_failed = true;
    }
  }
  job->next_local = static_cast<uint32_t>(locals.size());
  return true;
}

void SharedWriter::OnStored(TransferId transfer_id, Status status) {
  const auto id = static_cast<BlockId>(transfer_id >> kBlockShift);
  const auto found = jobs_.find(id);
  TERRACE_CHECK(found != jobs_.end() && found->second.in_flight_count > 0, "a store is done once");
  Job& job = found->second;
  --job.in_flight_count;
  if (status.code() == StatusCode::kExists) {
    job.is_existing = true;
  } else if (!status.ok()) {
    job.is_failed = true;
  }
  FinishIfDone(id);
}

void SharedWriter::FinishIfDone(BlockId id) {
  const Job job = jobs_.at(id);
  if (job.in_flight_count > 0 || job.next_local < d_.group_of(d_.block(id)).locals().size()) return;
  jobs_.erase(id);
  under_way_bytes_ -= job.byte_count;
  if (job.is_failed) {
    ++counts_.blocks_failed;
  } else {
    EndStored(id, job);
  }
  residency_.holds.LetGo(id, HoldKind::kJob);
}

void SharedWriter::EndStored(BlockId id, const Job& job) {
  const Block& b = d_.block(id);
  if (!job.is_existing) given_bytes_ += job.byte_count;
  ++(job.is_existing ? counts_.blocks_existing : counts_.blocks_stored);
  MarksOf(id).shared_epoch = d_.shared_epoch;
  if (b.phase != BlockPhase::kSealed || job.is_erased || IsOfBefore(b)) return;
  d_.NoteSharedCopy(id, job.begun_us,
                    job.is_existing ? SharedOrigin::kFound : SharedOrigin::kGiven);
}

void SharedWriter::OnCopyDue(uint32_t copy) {
  const SharedCopies::Copy* const due = d_.shared_copies.at(copy);
  if (due != nullptr) {
    std::vector<BlockId> ids;
    d_.index.FindAll(due->key, &ids);
    for (const BlockId id : ids) {
      if (d_.group_of(d_.block(id)).id().low == due->group_low) MarksOf(id).shared_epoch = 0;
    }
  }
  d_.shared_copies.OnDue(copy);
}

bool SharedWriter::HasShareFor(uint64_t byte_count) {
  const SharedUse& use = d_.options.shared;
  if (use.shares == nullptr) return true;
  NoteShare();
  return use.shares->MayTake(d_.domain_index, byte_count, d_.NowUs());
}

// What is given fails seldom, so that it counts from its beginning.
void SharedWriter::NoteShare() {
  TierShares* const shares = d_.options.shared.shares;
  if (shares == nullptr) return;
  given_.Note(given_bytes_, d_.NowUs());
  shares->SetHeld(d_.domain_index, given_.Sum() + under_way_bytes_);
}

void SharedWriter::Tick() {
  if (d_.options.shared.tier == nullptr) return;
  NoteShare();
  d_.options.shared.tier->Tick();
  // A server that was away may have come back empty.
  const SharedTierStats stats = d_.options.shared.tier->stats();
  const bool is_away = !stats.is_ready && d_.shared_copies.has_some();
  if (stats.connections_lost != connections_lost_ || stats.begun_anew != begun_anew_ || is_away) {
    ++d_.shared_epoch.of_owner();
    d_.shared_copies.RemoveAll();
  }
  connections_lost_ = stats.connections_lost;
  begun_anew_ = stats.begun_anew;
  Step();
}

void SharedWriter::Erase(BlockId id) {
  SharedTier* const tier = d_.options.shared.tier;
  if (tier == nullptr) return;
  const Group& group = d_.group_of(d_.block(id));
  if (const auto job = jobs_.find(id); job != jobs_.end()) job->second.is_erased = true;
  d_.shared_copies.Remove({group.id(), d_.index.node(id).key});
  RedisBlockName name{.group = group.id(),
                      .key = d_.index.node(id).key,
                      .run = d_.index.node(id).key,
                      .position = d_.index.node(id).position};
  const bool is_named = FindRun(d_.index, id, &name.run);
  for (const LocalMember& local : group.locals()) {
    name.space = local.space;
    if (is_named) {
      tier->Erase(name);
    } else {
      tier->EraseByKey(name);
    }
  }
}

// Keys are chained from their group's id: what one group has of a key no other has.
Status SharedWriter::EraseUnknown(const KeysQuery& query) {
  SharedTier* const tier = d_.options.shared.tier;
  if (tier == nullptr) return Status::Ok();
  const bool is_of_all = query.group_index == kAllGroups;
  std::vector<size_t> unknown;
  std::vector<BlockKey> unknown_keys;
  std::vector<BlockId> found;
  for (size_t i = 0; i < query.keys.size(); ++i) {
    found.clear();
    if (is_of_all) d_.index.FindAll(query.keys[i], &found);
    const bool is_known =
        is_of_all ? !found.empty() : d_.index.Find(query.group_index, query.keys[i]) != kBlockNone;
    if (is_known) continue;
    unknown.push_back(i);
    unknown_keys.push_back(query.keys[i]);
  }
  if (unknown.empty()) return Status::Ok();
  if (is_of_all) TERRACE_RETURN_IF_ERROR(tier->EraseInAnyGroup(unknown_keys));
  for (const BlockKey& key : unknown_keys) d_.shared_copies.RemoveKey(key);
  const uint32_t first = is_of_all ? 0 : query.group_index;
  const uint32_t end = is_of_all ? static_cast<uint32_t>(d_.groups.size()) : first + 1;
  for (uint32_t g = first; g < end; ++g) EraseUnknownOf(*d_.groups[g], g, query, unknown);
  return Status::Ok();
}

void SharedWriter::EraseUnknownOf(const Group& group, uint32_t group_index, KeysQuery query,
                                  std::span<const size_t> unknown) {
  if (group.locals().empty()) return;
  query.group_index = group_index;
  const std::vector<SharedPlace> places = NameKeys(d_.index, query, 0, query.keys.size());
  for (const size_t i : unknown) {
    RedisBlockName name{.group = group.id(), .key = query.keys[i], .run = query.keys[i]};
    if (i < places.size()) {
      name.run = places[i].run;
      name.position = places[i].position;
    }
    for (const LocalMember& local : group.locals()) {
      name.space = local.space;
      d_.options.shared.tier->EraseByKey(name);
    }
  }
}

void SharedWriter::Forget(uint32_t group_index) {
  Group& group = *d_.groups[group_index];
  if (d_.options.shared.tier == nullptr) return;
  group.shared_since_us = d_.NowUs();
  d_.shared_copies.RemoveGroup(group.id());
  d_.options.shared.tier->Forget(group.id());
}

void SharedWriter::ForgetAll() {
  SharedTier* const tier = d_.options.shared.tier;
  if (tier == nullptr) return;
  for (const std::unique_ptr<Group>& group : d_.groups) group->shared_since_us = d_.NowUs();
  d_.shared_copies.RemoveAll();
  tier->ForgetAll();
}

void SharedWriter::OnForgotten(const GroupId& group) {
  d_.shared_copies.RemoveGroup(group);
  bool is_known = false;
  for (const std::unique_ptr<Group>& one : d_.groups) {
    if (one->id() != group) continue;
    one->shared_since_us = d_.NowUs();
    is_known = true;
  }
  if (is_known) return;
  // What is kept of it, and not served for want of its file, is of before as well.
  were_too_many_forgotten_ |= forgotten_unopened_.size() >= kForgottenUnopenedMax;
  if (!were_too_many_forgotten_) forgotten_unopened_.insert(group);
}

bool SharedWriter::is_idle() const {
  if (d_.options.shared.tier == nullptr) return true;
  return jobs_.empty() && (queue_.empty() || !d_.options.shared.tier->is_ready());
}

DomainStats::SharedStats SharedWriter::stats() const {
  DomainStats::SharedStats stats = counts_;
  stats.queue_bytes_max = d_.options.shared.queue_bytes_max;
  stats.stores_under_way = jobs_.size();
  if (d_.options.shared.shares != nullptr) {
    stats.share = d_.options.shared.shares->stats(d_.domain_index, d_.NowUs());
  }
  return stats;
}

}  // namespace terrace
