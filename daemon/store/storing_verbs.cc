#include "daemon/store/storing_verbs.h"

#include <algorithm>
#include <bit>

#include "daemon/store/store_rooms.h"
#include "terrace/check.h"

namespace terrace {

using protocol::CommitEntry;
using protocol::ReservedKey;

namespace {

// What a call of Commit gives to do beside its entries, in blocks: followers to tell, parts.
constexpr uint64_t kCommitWorkMax = 4096;
constexpr uint32_t kPartsPerWork = 32;
// Between two calls of a Reserve of one prompt: what an engine computes at once takes less.
constexpr uint64_t kPassesTogetherS = 10;

// One call of a Reserve: its keys, each behind the one before.
class Reserver {
 public:
  Reserver(StoreRooms& store, const Caller& caller, const KeysQuery& query, ReserveResult* result)
      : store_(store), caller_(caller), query_(query), result_(result) {}

  void Run(LeaseId lease) {
    lease_ = lease;
    const bool is_chain = !(query_.flags & protocol::kKeysFlat);
    BlockId parent = kBlockNone;
    may_pass_by_ = is_chain && MayPassBy();
    if (is_chain && !query_.parent.is_zero()) {
      parent = caller_.domain().index.Find(query_.group_index, query_.parent);
      if (parent == kBlockNone && may_pass_by_ && HasJustPassedBy(query_.parent)) PassBy();
    }
    for (size_t i = 0; i < query_.keys.size(); ++i) {
      if (i + kPrefetchDistance < query_.keys.size()) {
        caller_.domain().index.Prefetch(query_.group_index, query_.keys[i + kPrefetchDistance]);
      }
      const uint32_t position = query_.first_position + (is_chain ? static_cast<uint32_t>(i) : 0);
      const BlockId id = ReserveOne(i, parent, position);
      if (result_->awaits_room) break;
      if (is_chain) parent = id;
      result_->last_key = query_.keys[i];
      ++answered_count_;
    }
    caller_.rooms->evictor.Expect(1);
    if (answered_count_ > 0) caller_.domain().leases.SetTip(lease_, result_->last_key);
    // New blocks say by themselves that their prefix was used, and so do those that passed by. One
    // that is all there already was used, too.
    if (!has_new_ && !result_->is_passed_by) {
      caller_.rooms->residency.hints.Touch(run_, query_.hints);
    } else {
      caller_.rooms->residency.hints.Expect(run_, query_.hints);
      caller_.rooms->residency.hints.Expect(new_, query_.hints);
    }
  }

  std::span<const BlockKey> answered() const { return query_.keys.first(answered_count_); }

 private:
  // Answers key i, unless it has to wait; the block that has the key now, or kBlockNone.
  BlockId ReserveOne(size_t i, BlockId parent, uint32_t position) {
    CacheDomain& domain = caller_.domain();
    Residency& residency = caller_.rooms->residency;
    BlockId id = domain.index.Find(query_.group_index, query_.keys[i]);
    if (id != kBlockNone && domain.block(id).phase == BlockPhase::kSealed &&
        residency.candidates.IsExpired(id)) {
      ++domain.counters.blocks_expired;
      const EraseCauseScope scope(domain, protocol::MissCause::kExpired);
      residency.lifecycle.Erase(id, StatusCode::kNotFound);
      id = kBlockNone;
    }
    if (id != kBlockNone && IsOutOfReach(id)) {
      residency.lifecycle.Erase(id, StatusCode::kNotFound);
      id = kBlockNone;
    }
    if (id != kBlockNone) {
      AnswerKnown(id);
      run_.push_back(id);
      if (parent != kBlockNone) residency.lifecycle.Link(id, parent);
      return id;
    }
    if (!has_new_ && !result_->is_out_of_space) {
      const uint32_t new_count = CountNew(i);
      caller_.rooms->evictor.Expect(new_count);
      may_pass_by_ &= i + new_count == query_.keys.size();
    }
    id = result_->is_out_of_space ? kBlockNone : TakeRoom(i, parent, position);
    if (id != kBlockNone) {
      has_new_ = true;
      if (query_.hints.expected_reuse_ms != 0) new_.push_back(id);
      Answer({.status = static_cast<uint8_t>(StatusCode::kOk),
              .commit_id = domain.block(id).commit_id},
             id);
      return id;
    }
    if (result_->awaits_room) return kBlockNone;
    const bool is_passed_by = result_->is_passed_by;
    ++(is_passed_by ? domain.counters.reserve_passed_by : domain.counters.reserve_no_space);
    domain.forgotten.Remember(
        query_.group_index, query_.keys[i],
        is_passed_by ? protocol::MissCause::kCapacity : protocol::MissCause::kQuota, domain.NowUs(),
        is_passed_by ? ForgottenKeys::Was::kPassingBy : ForgottenKeys::Was::kHere);
    result_->is_out_of_space =
        !(query_.flags & protocol::kKeysFlat) || domain.dram_policy->Victim() == kBlockNone;
    Answer({.status = static_cast<uint8_t>(StatusCode::kNoSpace), .is_passed_by = is_passed_by},
           kBlockNone);
    return kBlockNone;
  }

  // Whether newcomers may pass by: DRAM is all that there is, it has all of a block, and nobody
  // waits for them or wants them kept.
  bool MayPassBy() const {
    const CacheDomain& domain = caller_.domain();
    return !domain.has_more_than_dram() && query_.hints.expected_reuse_ms == 0 &&
           (query_.hints.flags & protocol::kHintPin) == 0 && !caller_.group->has_remote() &&
           domain.dram_policy->MayPassBy();
  }

  // A prompt comes in several calls: whoever looks for it never gets to what is behind a gap.
  bool HasJustPassedBy(const BlockKey& parent) const {
    const CacheDomain& domain = caller_.domain();
    const ForgottenKeys::Entry* const entry = domain.forgotten.Find(query_.group_index, parent);
    return entry != nullptr && entry->has_passed_by &&
           domain.NowUs() / kUsPerSecond + 1 - entry->time_s <= kPassesTogetherS;
  }

  void PassBy() { result_->is_out_of_space = result_->is_passed_by = true; }

  // The block of key i is the first new one: what comes with it is known now.
  void Announce(size_t i, BlockId id) {
    const size_t known_count = result_->keys.size() + query_.keys.size() - i;
    const size_t more_count =
        std::max<size_t>(query_.key_count_of_request, known_count) - known_count;
    caller_.domain().dram_policy->OnComing(query_.keys.subspan(i), caller_.domain().TraitsOf(id),
                                           static_cast<uint32_t>(more_count),
                                           caller_.domain().NowUs());
  }

  // How many keys from the first new one on are new: all, if the last is one of the same chain.
  uint32_t CountNew(size_t first) const {
    const bool are_all =
        !(query_.flags & protocol::kKeysFlat) &&
        caller_.domain().index.Find(query_.group_index, query_.keys.back()) == kBlockNone;
    return are_all ? static_cast<uint32_t>(query_.keys.size() - first) : 1;
  }

  // All its copies are in tiers that are off: nobody can have it, and it is computed again.
  bool IsOutOfReach(BlockId id) const {
    const Block& b = caller_.domain().block(id);
    return b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kNone &&
           !caller_.domain().IsHeld(id) && caller_.domain().FastestTier(b) == kLowerTiersMax;
  }

  void AnswerKnown(BlockId id) {
    CacheDomain& domain = caller_.domain();
    const Block& b = domain.block(id);
    // A key that this request has named before is written under its first place.
    if (b.phase == BlockPhase::kSealed || b.writer_lease == lease_) {
      ++domain.counters.reserve_exists;
      Answer({.status = static_cast<uint8_t>(StatusCode::kExists)}, kBlockNone);
      return;
    }
    ++domain.counters.reserve_busy;
    const uint64_t age_ms = (domain.NowUs() - b.created_us) / kUsPerMs;
    Answer({.status = static_cast<uint8_t>(StatusCode::kBusy),
            .writer_age_ms = static_cast<uint32_t>(std::min<uint64_t>(age_ms, UINT32_MAX))},
           kBlockNone);
  }

  // A new block with its slots, evicting as needed; all local members or none.
  BlockId TakeRoom(size_t i, BlockId parent, uint32_t position) {
    CacheDomain& domain = caller_.domain();
    if (domain.fenced_bytes + domain.inherited.byte_count() >= store_.options.fenced_bytes_max)
      return kBlockNone;
    if (caller_.rooms->lease_manager.BlocksLeft(lease_) == 0) return kBlockNone;
    if (parent != kBlockNone) position = domain.index.node(parent).position + 1;
    const SessionRecord& session = store_.sessions.at(caller_.session);
    const BlockId id = caller_.rooms->evictor.Insert(
        {.group_index = query_.group_index,
         .key = query_.keys[i],
         .position = position,
         .parent = parent,
         .event_hash = i < query_.event_hashes.size() ? query_.event_hashes[i] : 0,
         .writer_session = session.id,
         .writer_uid = session.uid,
         .writer_lease = lease_,
         .writer_entry = static_cast<uint32_t>(domain.leases.at(lease_).entries.size()),
         .hints = query_.hints});
    if (id == kBlockNone) return kBlockNone;
    if (!has_new_ && may_pass_by_) Announce(i, id);
    const Status taken = TakeSlots(id);
    if (taken.ok()) return id;
    if (taken.code() == StatusCode::kNotFound) PassBy();
    caller_.rooms->residency.lifecycle.Erase(id, StatusCode::kGone);
    return kBlockNone;
  }

  // While memory is still to come nobody's block goes for it: a client that says how long it can
  // wait asks again later, too.
  Status TakeSlots(BlockId id) {
    const CacheDomain& domain = caller_.domain();
    const uint64_t members = caller_.group->local_mask();
    if (!domain.is_room_coming || query_.hints.by_verb == 0) {
      using enum Evictor::Newcomer;
      return caller_.rooms->evictor.TakeSlots(id, members, {}, may_pass_by_ ? kMayPassBy : kComes);
    }
    uint32_t short_class = 0;
    const Status taken = caller_.rooms->residency.dram.TakeSlots(id, members, {}, &short_class);
    result_->awaits_room = !taken.ok() && domain.NowUs() < result_->room_until_us;
    return taken;
  }

  void Answer(const ReservedKey& key, BlockId id) {
    result_->keys.push_back(key);
    if (id != kBlockNone) caller_.rooms->lease_manager.Append(lease_, id, 0);
    caller_.domain().leases.AddKey(lease_);
    if (id == kBlockNone) return;
    const std::span<const SlotRef> refs = caller_.domain().slots_of(caller_.domain().block(id));
    const std::span<const LocalMember> locals = caller_.group->locals();
    for (size_t m = 0; m < locals.size(); ++m) {
      if ((query_.member_mask >> locals[m].member) & 1) result_->slots.push_back(refs[m]);
    }
  }

  StoreRooms& store_;
  const Caller& caller_;
  const KeysQuery& query_;
  ReserveResult* result_;
  LeaseId lease_ = kLeaseNone;
  std::vector<BlockId> run_;  // whose keys were in use already
  std::vector<BlockId> new_;  // those of whom something is expected
  bool has_new_ = false;
  bool may_pass_by_ = false;
  size_t answered_count_ = 0;
};

// Of a long request: what grows with it is not moved again and again.
void MakeRoom(const Caller& caller, const KeysQuery& query, LeaseId lease, ReserveResult* result) {
  const size_t key_count = query.key_count_of_request;
  if (key_count <= CacheDomain::kGrownAtOnceMin) return;
  // No more of them than the arena has room for can get a slot.
  const DomainOptions& options = caller.domain().options;
  const size_t block_count =
      std::min<uint64_t>(key_count, options.segments_max * options.segment_bytes /
                                        std::max<uint64_t>(caller.group->block_bytes(), 1));
  caller.domain().leases.MakeRoom(lease, block_count);
  result->keys.reserve(key_count);
  result->slots.reserve(key_count * std::popcount(result->reply.member_mask));
}

}  // namespace

Status ReserveOperation::Take(const Caller& caller, const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  if (caller.group->local_mask() == 0) {
    return Status(StatusCode::kUnsupported, "every member of the group is on another host");
  }
  LeaseId lease = kLeaseNone;
  if (answer_->reply.token.is_zero()) {
    const Result<LeaseId> opened =
        caller.rooms->lease_manager.Open(LeaseKind::kWrite, caller.session, query.group_index);
    if (!opened.ok()) return opened.status();
    lease = *opened;
    answer_->reply.token = caller.domain().leases.at(lease).token;
    answer_->reply.member_mask = query.member_mask & caller.group->local_mask();
    MakeRoom(caller, query, lease, answer_);
  } else {
    lease = caller.domain().leases.Find(answer_->reply.token);
    if (lease == kLeaseNone || caller.rooms->lease_manager.IsVoid(lease)) {
      return Status(StatusCode::kGone, "the lease was revoked while it was built");
    }
  }
  if (answer_->room_until_us == 0) {
    answer_->room_until_us = store.clock.NowUs() + query.hints.by_verb * protocol::kRoomWaitUnitUs;
  }
  answer_->awaits_room = false;
  Reserver reserver(store, caller, query, answer_);
  reserver.Run(lease);
  caller.rooms->deferred_hits.CountAsked();  // in the order of the requests
  caller.domain().meter.OnStored(reserver.answered(), caller.group->block_bytes());
  store.Settle(*caller.rooms);
  if (answer_->awaits_room) {
    caller.rooms->room_waits.Await(query.session, query.request_id, answer_->room_until_us);
  }
  return Status::Ok();
}

void ReserveOperation::Finish(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  const bool is_open = store.Enter(query.session, query.group_index, &caller).ok();
  const LeaseId id = is_open ? caller.domain().leases.Find(answer_->reply.token) : kLeaseNone;
  if (answer_->slots.empty() && id != kLeaseNone) {
    const std::vector<LeaseEntry>& entries = caller.domain().leases.at(id).entries;
    if (std::ranges::all_of(entries, [](const auto& entry) { return entry.block == kBlockNone; })) {
      caller.rooms->lease_manager.Leave(id, caller.session);
      store.Settle(*caller.rooms);
      answer_->reply.token = {};
    }
  }
  if (is_open && !answer_->slots.empty()) store.sessions.at(caller.session).has_slots = true;
  if (id != kLeaseNone && caller.domain().leases.at(id).phase == LeasePhase::kBuilding) {
    caller.domain().leases.GoLive(id);
  }
  answer_->reply.key_count = static_cast<uint32_t>(answer_->keys.size());
  answer_->reply.slot_count = static_cast<uint32_t>(answer_->slots.size());
  answer_->reply.lease_ttl_ms = store.options.lease_ttl_ms;
}

// What a request stores belongs to what it has found.
bool ReserveOperation::AreHitsNoted(const Caller& caller) {
  const DeferredHits& hits = caller.rooms->deferred_hits;
  if (!hits_before_.has_value()) hits_before_ = hits.added_count();
  return hits.noted_count() >= *hits_before_;
}

Result<Progress> ReserveOperation::Step(const KeysQuery& query) {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  session_ = query.session;
  Caller caller;
  Status taken = tie_.store()->Enter(query.session, query.group_index, &caller);
  if (taken.ok() && !AreHitsNoted(caller)) return Progress::kStays;
  const size_t answered_before = answer_->keys.size();
  if (taken.ok()) taken = Take(caller, query);
  if (!taken.ok()) {
    Undo();
    return taken;
  }
  passed_count_ += answer_->keys.size() - answered_before;
  if (answer_->awaits_room) return Progress::kAwaits;
  if (passed_count_ < query.key_count_of_request) return Progress::kGoesOn;
  Finish(query);
  tie_.Cut();
  return Progress::kDone;
}

void ReserveOperation::Undo() {
  if (tie_.store() == nullptr) return;
  tie_.store()->LeaveUntold(session_, answer_->reply.token);
  tie_.Cut();
}

ReserveOperation StoringVerbs::Reserve(ReserveResult* answer) {
  return {store_.operations, answer};
}

// ---- Commit ----

namespace {

// One Commit call, judged entry by entry: a client is believed in nothing.
class Committer {
 public:
  Committer(const Caller& caller, LeaseId lease, const protocol::Hints& hints)
      : caller_(caller), lease_id_(lease), hints_(hints) {}

  StatusCode Commit(const CommitEntry& entry, std::span<const Checksum> checksums) {
    CacheDomain& domain = caller_.domain();
    const Lease& lease = domain.leases.at(lease_id_);
    if (entry.key_index >= lease.marks.key_count()) return StatusCode::kInvalid;
    const uint32_t place = lease.marks.EntryOf(entry.key_index);
    const BlockId id = place == kEntryNone ? kBlockNone : lease.entries[place].block;
    // Sealed already, or never ours.
    if (id == kBlockNone || (lease.entries[place].flags & kEntrySealed) != 0) {
      return StatusCode::kExists;
    }
    const Block& b = domain.block(id);
    if (b.phase != BlockPhase::kReserved) return StatusCode::kGone;
    const Group& group = domain.group_of(b);
    const LocalMember* local = group.FindLocal(entry.member);
    if (local == nullptr) return StatusCode::kInvalid;
    const SlotRef& ref = domain.slots_of(b)[local - group.locals().data()];
    if (entry.segment != ref.address.segment || entry.row != ref.row ||
        entry.generation != ref.generation || !domain.slots.IsCurrent(ref)) {
      return StatusCode::kGone;
    }
    const StatusCode code = entry.flags & protocol::kCommitAbsent ? MarkAbsent(place, entry, *local)
                                                                  : MarkParts(place, entry, *local);
    if (code != StatusCode::kOk) return code;
    domain.seams.work += entry.part_count / kPartsPerWork;
    for (size_t i = 0; i < checksums.size(); ++i) {
      domain.roots_of(b)[local->first_root + entry.part_first + i] = checksums[i];
    }
    caller_.rooms->waiters.OnParts(id, entry);
    SealIfComplete(id, place);
    return StatusCode::kOk;
  }

  // What is said of all that was sealed, once it is.
  void Finish() {
    if (sealed_.empty()) return;
    if (hints_.end_reason != protocol::EndReason::kUnknown) {
      caller_.rooms->residency.hints.Touch({&sealed_.back(), 1}, hints_);
    }
    caller_.rooms->residency.hints.Expect(sealed_, hints_);
  }

  uint32_t sealed_count() const { return static_cast<uint32_t>(sealed_.size()); }

 private:
  CommitMarks& marks() const { return caller_.domain().leases.marks(lease_id_); }

  StatusCode MarkParts(uint32_t place, const CommitEntry& entry, const LocalMember& local) {
    const uint32_t end = uint32_t{entry.part_first} + entry.part_count;
    if (entry.part_count == 0 || end > local.part_count) return StatusCode::kInvalid;
    if ((marks().absent_mask(place) >> local.member) & 1) return StatusCode::kExists;
    const PartBits bits{.first = local.first_part_bit + entry.part_first,
                        .count = entry.part_count};
    return marks().MarkParts(place, bits) ? StatusCode::kOk : StatusCode::kExists;
  }

  StatusCode MarkAbsent(uint32_t place, const CommitEntry& entry, const LocalMember& local) {
    if (local.window_blocks == 0 || (entry.flags & protocol::kCommitHasChecksums)) {
      return StatusCode::kInvalid;
    }
    const std::span<const uint64_t> bits = marks().PartBitsOf(place);
    for (uint32_t part = 0; part < local.part_count; ++part) {
      const uint32_t bit = local.first_part_bit + part;
      if ((bits[bit / 64] >> (bit % 64)) & 1) return StatusCode::kInvalid;
    }
    return marks().MarkAbsent(place, local.member) ? StatusCode::kOk : StatusCode::kExists;
  }

  // A member's bits begin a word of their own.
  static bool HasAllParts(const uint64_t* bits, const LocalMember& local) {
    const uint64_t* word = bits + local.first_part_bit / 64;
    uint32_t left = local.part_count;
    for (; left >= 64; left -= 64, ++word) {
      if (*word != ~uint64_t{0}) return false;
    }
    return left == 0 || *word == (uint64_t{1} << left) - 1;
  }

  void SealIfComplete(BlockId id, uint32_t place) {
    CacheDomain& domain = caller_.domain();
    const Group& group = domain.group_of(domain.block(id));
    const uint64_t* bits = marks().PartBitsOf(place).data();
    const uint64_t absent = marks().absent_mask(place);
    for (const LocalMember& local : group.locals()) {
      if (((absent >> local.member) & 1) == 0 && !HasAllParts(bits, local)) return;
    }
    domain.seams.work += group.root_count() / kPartsPerWork;
    if (is_hinted_) caller_.rooms->residency.hints.Apply(id, hints_);
    const std::vector<SlotRef> slots_left =
        caller_.rooms->residency.lifecycle.Seal(id, group.local_mask() & ~absent);
    sealed_.push_back(id);
    caller_.rooms->mover.OnSealed(id);
    caller_.rooms->lease_manager.Sealed(lease_id_, caller_.session, place, slots_left);
  }

  const Caller& caller_;
  LeaseId lease_id_;
  const protocol::Hints& hints_;
  const bool is_hinted_ = hints_.priority != protocol::kPriorityUnset || hints_.flags != 0 ||
                          hints_.ttl_s != 0 || hints_.recompute_ns_per_token != 0;
  std::vector<BlockId> sealed_;
};

// Checksums must be exactly those that the entries announce.
bool HasAllChecksums(std::span<const CommitEntry> entries, size_t checksum_count) {
  size_t announced_count = 0;
  for (const CommitEntry& entry : entries) {
    if (entry.flags & protocol::kCommitHasChecksums) announced_count += entry.part_count;
  }
  return announced_count == checksum_count;
}

}  // namespace

Status StoringVerbs::Commit(SessionId session, const protocol::CommitRequest& request,
                            std::span<const protocol::CommitEntry> entries,
                            std::span<const Checksum> checksums, CommitResult* result) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const LeaseId id = caller.domain().leases.Find(request.token);
  if (id == kLeaseNone || !caller.rooms->lease_manager.IsJoiner(id, caller.session)) {
    return Status(StatusCode::kGone, "the session has no such lease");
  }
  if (caller.domain().leases.at(id).kind != LeaseKind::kWrite) {
    return Status(StatusCode::kInvalid, "a ReadLease commits nothing");
  }
  if (!HasAllChecksums(entries, checksums.size())) {
    return Status(StatusCode::kInvalid, "the checksums are not those the entries announce");
  }
  caller.domain().counters.parts_refused += request.hints.by_verb;
  const bool is_void = caller.rooms->lease_manager.IsVoid(id);
  Committer committer(caller, id, request.hints);
  const uint64_t work_end = store_.work + kCommitWorkMax;
  size_t passed_count = 0;
  for (; passed_count < entries.size() && store_.work < work_end; ++passed_count) {
    const CommitEntry& entry = entries[passed_count];
    const size_t own_count =
        entry.flags & protocol::kCommitHasChecksums ? entry.part_count : size_t{0};
    const StatusCode code =
        is_void ? StatusCode::kGone : committer.Commit(entry, checksums.first(own_count));
    checksums = checksums.subspan(own_count);
    if (code == StatusCode::kGone) ++caller.domain().counters.commits_gone;
    result->entries.push_back(code);
  }
  committer.Finish();
  result->reply.entry_count = static_cast<uint32_t>(result->entries.size());
  result->reply.sealed_count += committer.sealed_count();
  if (passed_count == entries.size() && (request.flags & protocol::kCommitRelease) != 0) {
    caller.rooms->lease_manager.Leave(id, caller.session);
  }
  store_.Settle(*caller.rooms);
  return Status::Ok();
}

Status StoringVerbs::Abort(SessionId session, const LeaseToken& token,
                           std::span<const uint32_t> key_indexes, uint32_t parts_refused) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const LeaseId id = caller.domain().leases.Find(token);
  if (id == kLeaseNone || !caller.rooms->lease_manager.IsJoiner(id, caller.session)) {
    return Status(StatusCode::kGone, "the session has no such lease");
  }
  if (caller.domain().leases.at(id).kind != LeaseKind::kWrite) {
    return Status(StatusCode::kInvalid, "a ReadLease is released, not aborted");
  }
  caller.domain().counters.parts_refused += parts_refused;
  Status status;
  if (key_indexes.empty()) {
    caller.rooms->lease_manager.AbortAll(id, caller.session);
  } else if (caller.rooms->lease_manager.IsVoid(id)) {
    status = Status(StatusCode::kGone, "the lease was revoked");
  } else {
    status = caller.rooms->lease_manager.AbortKeys(id, caller.session, key_indexes);
  }
  store_.Settle(*caller.rooms);
  return status;
}

}  // namespace terrace
