#include "daemon/transfer/shared_reader.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

// TransferIds: block (bits 8 and up), place of the member among the local ones.
constexpr uint32_t kBlockShift = 8;
static_assert(kGroupMembersMax <= 1 << kBlockShift);

constexpr uint64_t kExpiryLeftMaxS = uint64_t{1} << 32;  // what a record says may be anything

}  // namespace

SharedReader::SharedReader(CacheDomain& domain, Residency& residency, Evictor& evictor,
                           Verifier& verifier, VerifierListener& listener)
    : d_(domain),
      residency_(residency),
      evictor_(evictor),
      verifier_(verifier),
      listener_(listener) {}

// ---- expected ----

std::vector<BlockId> SharedReader::Expect(const KeysQuery& query, size_t from_index, BlockId parent,
                                          size_t count_max) {
  std::vector<BlockId> ids;
  if (findings_.is_empty() || !is_on()) return ids;
  const Group& group = *d_.groups[query.group_index];
  const uint64_t now_us = d_.NowUs();
  std::vector<SharedFinding> found;
  const size_t end = std::min(query.keys.size(), from_index + count_max);
  for (size_t i = from_index; i < end; ++i) {
    const SharedFinding* const finding = findings_.Find({group.id(), query.keys[i]}, now_us);
    if (finding == nullptr) break;
    found.push_back(*finding);
  }
  if (found.empty() || !IsWorth(query, found.size())) return ids;
  const bool is_chain = !(query.flags & protocol::kKeysFlat);
  for (size_t i = 0; i < found.size(); ++i) {
    const BlockKey& key = query.keys[from_index + i];
    // It has come by another way meanwhile, or the request names it twice.
    if (d_.index.Find(query.group_index, key) != kBlockNone) break;
    const BlockId id = evictor_.Insert({.group_index = query.group_index,
                                        .key = key,
                                        .position = found[i].position,
                                        .parent = is_chain ? parent : kBlockNone});
    if (id == kBlockNone) break;
    residency_.lifecycle.Expect(id);
    arrivals_[id] = {.finding = found[i]};
    findings_.Forget({group.id(), key});
    ids.push_back(id);
    parent = id;
  }
  return ids;
}

void SharedReader::GiveUp(BlockId id) {
  TERRACE_CHECK(d_.block(id).is_expected(), "what has slots arrives");
  arrivals_.erase(id);
  const EraseCauseScope scope(d_, protocol::MissCause::kLate);
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
}

Status SharedReader::Fetch(BlockId id) {
  const auto found = arrivals_.find(id);
  TERRACE_CHECK(found != arrivals_.end() && d_.block(id).is_expected(), "a block is fetched once");
  residency_.holds.Hold(id, HoldKind::kJob);
  const Status status =
      evictor_.TakeSlots(id, found->second.finding.member_mask, {.source = FillSource::kShared});
  if (status.ok()) {
    begun_.push_back(id);
    asked_bytes_ += d_.group_of(d_.block(id)).BytesOf(found->second.finding.member_mask);
    found->second.asked_mark = asked_bytes_;
  } else {
    residency_.holds.LetGo(id, HoldKind::kJob);
  }
  return status;
}

// They begin in the order in which they were asked for.
uint64_t SharedReader::WaitingBytesTo(BlockId id) const {
  const auto found = arrivals_.find(id);
  const uint64_t mark = found == arrivals_.end() ? 0 : found->second.asked_mark;
  return mark > begun_bytes_ ? mark - begun_bytes_ : 0;
}

// ---- arriving ----

void SharedReader::Step() {
  while (!begun_.empty()) {
    const BlockId id = begun_.front();
    Arrival& arrival = arrivals_.at(id);
    const bool is_wanted = d_.block(id).phase == BlockPhase::kSealed && d_.index.pin_count(id) > 0;
    if (!is_wanted && arrival.in_flight_count == 0) {
      arrival.is_cancelled = arrival.is_failed = true;
    }
    if (!Begin(id, &arrival)) return;
    begun_.pop_front();
    begun_bytes_ += d_.group_of(d_.block(id)).BytesOf(arrival.finding.member_mask);
    FinishIfDone(id);
  }
}

// False if the tier takes no more for now.
bool SharedReader::Begin(BlockId id, Arrival* arrival) {
  const Block& b = d_.block(id);
  const Group& group = d_.group_of(b);
  const std::span<const LocalMember> locals = group.locals();
  for (; arrival->next_local < locals.size() && !arrival->is_failed; ++arrival->next_local) {
    const LocalMember& local = locals[arrival->next_local];
    if (!((arrival->finding.member_mask >> local.member) & 1)) continue;
    const SlotAddress address = d_.slots_of(b)[arrival->next_local].address;
    const std::span<std::byte> into(
        d_.options.arena->SegmentBase(address.segment) + address.page * kArenaPageBytes,
        local.slot_bytes);
    const Status status =
        d_.options.shared.tier->Fetch((TransferId{id} << kBlockShift) | arrival->next_local,
                                      {.group = group.id(),
                                       .space = local.space,
                                       .key = d_.index.node(id).key,
                                       .run = arrival->finding.run,
                                       .position = arrival->finding.position},
                                      into);
    if (status.code() == StatusCode::kBusy) return false;
    if (status.ok()) {
      ++arrival->in_flight_count;
    } else {
      arrival->is_failed = true;
    }
  }
  arrival->next_local = static_cast<uint32_t>(locals.size());
  return true;
}

void SharedReader::OnFetched(TransferId transfer_id, Status status, const BlockRecord& record) {
  const auto id = static_cast<BlockId>(transfer_id >> kBlockShift);
  const auto local_index = static_cast<uint32_t>(transfer_id & ((1u << kBlockShift) - 1));
  const auto found = arrivals_.find(id);
  TERRACE_CHECK(found != arrivals_.end() && found->second.in_flight_count > 0,
                "a fetch is done once");
  Arrival& arrival = found->second;
  --arrival.in_flight_count;
  const bool is_answered = status.ok() || status.code() == StatusCode::kNotFound ||
                           status.code() == StatusCode::kCorrupt;
  if (!status.ok() || !Accept(id, local_index, record, &arrival)) {
    arrival.is_failed = true;
    arrival.is_missed |= is_answered;
  }
  FinishIfDone(id);
}

// One block never mixes two commits, and its bytes are believed because of its checksums only.
bool SharedReader::Accept(BlockId id, uint32_t local_index, const BlockRecord& record,
                          Arrival* arrival) {
  const Block& b = d_.block(id);
  const LocalMember& local = d_.group_of(b).locals()[local_index];
  const auto is_zero = [](const Checksum& root) { return root.is_zero(); };
  if (record.commit_id == 0 || record.part_checksums.size() != local.part_count ||
      std::ranges::any_of(record.part_checksums, is_zero)) {
    return false;
  }
  if (arrival->commit_id == 0) {
    arrival->commit_id = record.commit_id;
    arrival->event_hash = record.event_hash;
    arrival->expires_at_s = record.expires_at_s;
    arrival->recompute_ns_per_token = record.recompute_ns_per_token;
    arrival->priority = record.priority;
  }
  if (arrival->commit_id != record.commit_id) {
    arrival->is_mixed = true;
    return false;
  }
  // Its server may keep it longer.
  const bool is_expired =
      record.expires_at_s != 0 && record.expires_at_s <= d_.seams.clock.UnixSeconds();
  if (is_expired) return false;
  std::ranges::copy(record.part_checksums, d_.roots_of(b).begin() + local.first_root);
  return true;
}

void SharedReader::FinishIfDone(BlockId id) {
  const Arrival arrival = arrivals_.at(id);
  const Block& b = d_.block(id);
  if (arrival.in_flight_count > 0 || arrival.next_local < d_.group_of(b).locals().size()) return;
  arrivals_.erase(id);
  const bool is_sealed = b.phase == BlockPhase::kSealed;
  if (is_sealed && !arrival.is_failed) {
    Publish(id, arrival);
    verifier_.CheckPromotion(id);  // EndFetch follows
  }
  residency_.holds.LetGo(id, HoldKind::kJob);
  if (!is_sealed || !arrival.is_failed) return;
  ++(arrival.is_cancelled ? counts_.blocks_cancelled : counts_.blocks_missed);
  if (arrival.is_mixed) EraseMixed(id, arrival.finding);
  if (arrival.is_missed) ForgetCopy(id);
  Lose(id);
}

void SharedReader::ForgetCopy(BlockId id) {
  d_.shared_copies.Remove({d_.group_of(d_.block(id)).id(), d_.index.node(id).key});
}

// Two hosts stored members of one block at once, and each won some: nobody can ever use it, and
// nobody could store it whole.
void SharedReader::EraseMixed(BlockId id, const SharedFinding& finding) {
  const Group& group = d_.group_of(d_.block(id));
  for (const LocalMember& local : group.locals()) {
    d_.options.shared.tier->Drop({.group = group.id(),
                                  .space = local.space,
                                  .key = d_.index.node(id).key,
                                  .run = finding.run,
                                  .position = finding.position});
  }
}

// What the block is, as its record says. Its bytes are still to be compared.
void SharedReader::Publish(BlockId id, const Arrival& arrival) {
  residency_.lifecycle.Describe(id, arrival.commit_id, arrival.event_hash);
  protocol::Hints hints;
  hints.priority = std::min(arrival.priority, protocol::kPriorityMax);
  hints.recompute_ns_per_token = arrival.recompute_ns_per_token;
  if (arrival.expires_at_s != 0) {
    const uint64_t unix_s = d_.seams.clock.UnixSeconds();
    const uint64_t left_s = arrival.expires_at_s > unix_s ? arrival.expires_at_s - unix_s : 1;
    hints.ttl_s = static_cast<uint32_t>(std::min(left_s, kExpiryLeftMaxS - 1));
  }
  residency_.hints.Apply(id, hints);  // the rows of its slots say so, too
}

void SharedReader::EndFetch(BlockId id, bool is_good) {
  if (!is_good) {
    ForgetCopy(id);
    return Lose(id);
  }
  residency_.dram.EndFill(id, true);
  d_.blocks.Change<SharedMarks>(id, {}).shared_epoch =
      d_.shared_epoch;  // it need not be given back
  d_.NoteSharedCopy(id, d_.NowUs(), SharedOrigin::kFound);
  ++counts_.blocks_fetched;
  listener_.OnFetched(id);
}

void SharedReader::Lose(BlockId id) {
  residency_.dram.EndFill(id, false);
  const EraseCauseScope scope(d_, protocol::MissCause::kLate);
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
}

void SharedReader::AddStats(DomainStats::SharedStats* stats) const {
  stats->seeks = counts_.seeks;
  stats->seeks_joined = counts_.seeks_joined;
  stats->seeks_late = counts_.seeks_late;
  stats->blocks_found = counts_.blocks_found;
  stats->blocks_fetched = counts_.blocks_fetched;
  stats->blocks_missed = counts_.blocks_missed;
  stats->blocks_cancelled = counts_.blocks_cancelled;
  stats->blocks_not_worth = counts_.blocks_not_worth;
}

}  // namespace terrace
