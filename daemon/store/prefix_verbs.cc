#include "daemon/store/prefix_verbs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "daemon/store/acquire_misses.h"
#include "daemon/store/store_rooms.h"
#include "daemon/store/visibility.h"
#include "terrace/check.h"

namespace terrace {

using protocol::BlockSpan;
using protocol::SpanState;

// ---- Match ----

namespace {

// The blocks of the leading keys, as far as there are any.
std::vector<BlockId> PathOf(const CacheDomain& domain, const KeysQuery& query,
                            RadixIndex::Proof proof) {
  std::vector<BlockRange> path;
  std::vector<BlockId> run;
  run.reserve(domain.index.Match(query.group_index, query.keys, proof, &path));
  for (const BlockRange& range : path) {
    for (uint32_t i = 0; i < range.block_count; ++i) {
      run.push_back(range.first + i);
      domain.blocks.Prefetch(run.back());
    }
  }
  return run;
}

}  // namespace

Status MatchOperation::Walk(const KeysQuery& query) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(tie_.store()->Enter(query.session, query.group_index, &caller));
  group_ = caller.group;
  CacheDomain& domain = caller.domain();
  if (answer_->walk.walked_count == 0) {
    ++domain.counters.match_requests;
    answer_->walk.first_position = query.first_position;
  }
  domain.counters.match_blocks_asked += query.keys.size();
  const uint32_t usable_before = answer_->walk.usable_count;
  // Nothing is served by it, so what chains prove is enough.
  const bool is_chain = (query.flags & protocol::kKeysFlat) == 0;
  const std::vector<BlockId> run =
      PathOf(domain, query, is_chain ? RadixIndex::Proof::kChain : RadixIndex::Proof::kEveryKey);
  for (const BlockId id : run) {
    const Visibility found = VisibilityOf(caller, id);
    const uint32_t index = answer_->walk.walked_count;
    if (found == Visibility::kNothing || found == Visibility::kReserved ||
        !WalkOn(*caller.group, MembersOf(domain, domain.block(id)), &answer_->walk)) {
      answer_->is_finished = true;
      break;
    }
    BlockSpan span{.first_block = index, .block_count = 1};
    if (found != Visibility::kReady) {
      const Coming coming = ComingFrom(*caller.rooms, id, &answer_->walk.unqueued);
      span.state = SpanState::kComing;
      span.tier = coming.tier;
      span.eta_us = coming.eta_us;
    }
    AppendToSpans(span, &answer_->spans);
  }
  if (run.size() < query.keys.size()) answer_->is_finished = true;
  domain.counters.match_blocks_hit += answer_->walk.usable_count - usable_before;
  return Status::Ok();
}

namespace {

// The answer to a whole request: at most `block_count` blocks, none if they are too few to be
// useful.
uint32_t UsefulBlocks(const KeysQuery& query, const Group& group, uint32_t block_count) {
  const uint64_t token_count = uint64_t{block_count} * group.block_tokens();
  return token_count < query.hints.min_tokens ? 0 : block_count;
}

void AnswerMatch(const Group& group, uint32_t block_count, PrefixMatch* result) {
  TrimSpans(block_count, &result->spans);
  result->reply.block_count = block_count;
  result->reply.token_count = block_count * group.block_tokens();
  result->reply.span_count = static_cast<uint32_t>(result->spans.size());
  result->reply.flags = group.has_remote() ? protocol::kMatchIsBound : 0;
}

}  // namespace

Result<Progress> MatchOperation::Step(const KeysQuery& query) {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  TERRACE_RETURN_IF_ERROR(Walk(query));
  passed_count_ += static_cast<uint32_t>(query.keys.size());
  if (!answer_->is_finished && passed_count_ < query.key_count_of_request) return Progress::kGoesOn;
  const Group& group = *group_;
  AnswerMatch(group, UsefulBlocks(query, group, answer_->walk.usable_count), answer_);
  tie_.Cut();
  return Progress::kDone;
}

// ---- Acquire and Prefetch ----

namespace {

// One call's part of a prefix: first everything that is there is held, then room is made for what
// is not in DRAM. So no block of the prefix makes room for another.
class PrefixHolder {
 public:
  struct Target {
    LeaseId lease = kLeaseNone;
    PendingId pending = kPendingNone;
    PrefixWalk* walk = nullptr;
    std::vector<BlockSpan>* spans = nullptr;
    std::vector<SlotAddress>* slots = nullptr;  // null: a Prefetch
  };

  PrefixHolder(StoreRooms& store, const Caller& caller, const KeysQuery& query,
               const Target& target)
      : store_(store), caller_(caller), query_(query), target_(target) {}

  // False if the prefix ends here.
  bool Hold() {
    const bool may_follow = query_.flags & protocol::kAcquireFollow;
    // Every key is compared: whose keys are no chain gets nobody else's bytes for it.
    const uint32_t blocks_left = caller_.rooms->lease_manager.BlocksLeft(target_.lease);
    for (const BlockId id : PathOf(caller_.domain(), query_, RadixIndex::Proof::kEveryKey)) {
      Visibility found = VisibilityOf(caller_, id);
      if (takes_device() && IsReadableThere(id)) found = Visibility::kOnDevice;
      if (found == Visibility::kNothing || held_.size() == blocks_left ||
          (found == Visibility::kReserved && !(may_follow && IsOwnUid(id)))) {
        break;
      }
      held_.push_back(id);
      found_.push_back(found);
    }
    // Nobody waits for a Prefetch.
    const bool is_cut = target_.slots != nullptr && LeaveWhatComesTooLate();
    Append();
    if (held_.size() < query_.keys.size() && !is_cut) ExpectMore(blocks_left);
    return held_.size() == query_.keys.size();
  }

  // Fills in the answer. False if the prefix ends before what is held.
  bool Answer() {
    CacheDomain& domain = caller_.domain();
    for (size_t i = 0; i < held_.size(); ++i) {
      const uint32_t index = target_.walk->walked_count;
      const Block& b = domain.block(held_[i]);
      // A key that comes twice is being promoted since its first time.
      if (b.dram.state == CopyState::kFilling && found_[i] == Visibility::kBelow) {
        found_[i] = Visibility::kFilling;
      }
      if (found_[i] == Visibility::kBelow &&
          !caller_.rooms->mover.Promote(held_[i], Order()).ok()) {
        return CutAt(index, i);
      }
      if (found_[i] == Visibility::kFilling) caller_.rooms->mover.Reprioritize(held_[i], Order());
      if (found_[i] == Visibility::kToVerify) caller_.rooms->verifier.VerifyForReader(held_[i]);
      if (!WalkOn(*caller_.group, MembersSeen(domain, b, found_[i]), target_.walk))
        return CutAt(index, i);
      AppendToSpans(SpanOf(held_[i], found_[i], index), target_.spans);
      caller_.rooms->residency.hints.CountHit(held_[i]);
      caller_.rooms->shared_writer.Offer(held_[i], SharedWriter::Moment::kServed);
      target_.walk->read_on =
          found_[i] == Visibility::kBelow || found_[i] == Visibility::kFilling || b.is_read_ahead
              ? held_[i]
              : kBlockNone;
      if (caller_.rooms->residency.dram.TakeReadAhead(held_[i])) ++domain.counters.read_ahead_used;
      // Who reads in the device reads further than who joins without it: see
      // JoinOperation::ReadBlocks.
      if (takes_device() || (found_[i] == Visibility::kReady && is_by_parts())) KeepReadable(index);
      if (found_[i] == Visibility::kOnDevice) {
        AnswerOnDevice(index, b);
        continue;
      }
      if (takes_device()) caller_.rooms->mover.PromoteToDevice(held_[i]);
      if (found_[i] != Visibility::kReady) {
        caller_.rooms->waiters.Await(target_.pending, index, held_[i]);
      } else if (target_.slots == nullptr) {
        LetGo(index);
      } else if (b.writer_session != query_.session || !b.has_roots) {
        caller_.rooms->verifier.CheckServed(held_[i]);
      }
      if (target_.slots != nullptr) AppendSlots(b);
    }
    Used();
    return true;
  }

 private:
  // True if something was left where it is: the engine has computed it before it would come, or
  // does not wait so long.
  bool LeaveWhatComesTooLate() {
    const uint64_t left_us = store_.DeadlineUs(query_.hints) - store_.clock.NowUs();
    const size_t kept_count = WorthLoading(caller_, query_, *target_.walk, left_us, held_, found_);
    if (kept_count == held_.size()) return false;
    caller_.rooms->mover.ReadBehind(std::span(held_).subspan(kept_count));
    held_.resize(kept_count);
    found_.resize(kept_count);
    return true;
  }

  // Blocks that the shared tier may have.
  void ExpectMore(uint32_t blocks_left) {
    BlockId parent = held_.empty() ? kBlockNone : held_.back();
    if (held_.empty() && !query_.parent.is_zero()) {
      parent = caller_.domain().index.Find(query_.group_index, query_.parent);
    }
    const std::vector<BlockId> expected = caller_.rooms->shared_reader.Expect(
        query_, held_.size(), parent, blocks_left - held_.size());
    caller_.rooms->lease_manager.AppendPath(target_.lease, expected);
    held_.insert(held_.end(), expected.begin(), expected.end());
    found_.resize(held_.size(), Visibility::kBelow);
  }

  // To the lease, together what may be together.
  void Append() {
    LeaseManager& manager = caller_.rooms->lease_manager;
    std::span<const BlockId> left = held_;
    for (size_t i = 0; i < held_.size(); ++i) {
      if (found_[i] != Visibility::kReserved) continue;
      manager.AppendPath(target_.lease, left.first(left.size() - (held_.size() - i)));
      manager.Append(target_.lease, held_[i], kEntryByParts);
      left = std::span(held_).subspan(i + 1);
    }
    manager.AppendPath(target_.lease, left);
  }

  ReadOrder Order() {
    uint64_t& run = target_.walk->read_run;
    if (run == 0) run = caller_.rooms->mover.NewRun();
    return {.run = run, .is_by_parts = is_by_parts()};
  }
  bool is_by_parts() const { return (query_.flags & protocol::kAcquireByParts) != 0; }

  bool takes_device() const {
    return (query_.flags & protocol::kAcquireDevice) != 0 && target_.slots != nullptr &&
           store_.sessions.at(caller_.session).has_device;
  }
  // Whether anybody can copy it to DRAM just now does not matter to who reads it there.
  bool IsReadableThere(BlockId id) const {
    const Block& b = caller_.domain().block(id);
    return b.phase == BlockPhase::kSealed && caller_.domain().IsOnDevice(b) &&
           !caller_.rooms->residency.candidates.IsExpired(id);
  }
  void AnswerOnDevice(uint32_t index, const Block& b) {
    CacheDomain& domain = caller_.domain();
    domain.leases.Flag(target_.lease, index, kEntryOnDevice);
    ++domain.counters.device_blocks_served;
    AppendDeviceSlots(*caller_.group, domain, b, query_.member_mask, target_.slots);
  }

  // Nobody has checked a Reserved block's bytes.
  bool IsOwnUid(BlockId id) const { return caller_.domain().block(id).writer_uid == caller_.uid; }

  // Entry `index`, the i-th of this call, and all behind it leave the lease.
  bool CutAt(uint32_t index, size_t i) {
    caller_.rooms->waiters.Truncate(target_.lease, index, StatusCode::kNotFound);
    for (size_t j = held_.size(); j-- > i;) {
      if (caller_.domain().block(held_[j]).is_expected()) {
        caller_.rooms->shared_reader.GiveUp(held_[j]);
      }
    }
    held_.resize(i);
    Used();
    return false;
  }

  void Used() {
    CacheDomain& domain = caller_.domain();
    if (!held_.empty()) {
      domain.leases.SetTip(target_.lease, domain.index.key(held_.back()));
    }
    // Why the request ended is known when its lease is released.
    protocol::Hints hints = query_.hints;
    hints.end_reason = protocol::EndReason::kUnknown;
    const bool goes_on = held_.size() == query_.keys.size() &&
                         target_.walk->walked_count < query_.key_count_of_request;
    caller_.rooms->residency.hints.Touch(held_, hints,
                                         {.behind = target_.walk->used, .goes_on = goes_on});
    if (!held_.empty()) target_.walk->used = held_.back();
  }

  // Who reads by parts does not wait for blocks before this one, which may yet fail.
  void KeepReadable(uint32_t index) {
    caller_.domain().leases.Flag(target_.lease, index, kEntryByParts);
  }

  void LetGo(uint32_t index) {
    CacheDomain& domain = caller_.domain();
    domain.lease_backlog.Add(domain.leases.Take(target_.lease, index));
  }

  BlockSpan SpanOf(BlockId id, Visibility found, uint32_t index) {
    BlockSpan span{.first_block = index, .block_count = 1};
    if (found == Visibility::kReserved) span.state = SpanState::kFollowing;
    if (found == Visibility::kOnDevice) span.tier = protocol::TierKind::kHbm;
    if (found != Visibility::kFilling && found != Visibility::kBelow &&
        found != Visibility::kToVerify) {
      return span;
    }
    const Coming coming = ComingFrom(*caller_.rooms, id, &target_.walk->unqueued);
    target_.walk->wait_us = std::max(target_.walk->wait_us, coming.eta_us);
    span.state = SpanState::kComing;
    span.tier = coming.tier;
    span.eta_us = coming.eta_us;
    return span;
  }

  void AppendSlots(const Block& b) {
    const std::span<const SlotRef> refs = caller_.domain().slots_of(b);
    const std::span<const LocalMember> locals = caller_.group->locals();
    for (size_t i = 0; i < locals.size(); ++i) {
      if ((query_.member_mask >> locals[i].member) & 1) target_.slots->push_back(refs[i].address);
    }
  }

  StoreRooms& store_;
  const Caller& caller_;
  const KeysQuery& query_;
  const Target target_;
  std::vector<BlockId> held_;
  std::vector<Visibility> found_;
};

// Opens the lease and the pending request of a new Acquire or Prefetch.
Status Begin(StoreRooms& store, const Caller& caller, const KeysQuery& query, LeaseKind kind,
             LeaseId* lease) {
  const PendingRegister& known = caller.rooms->pending;
  if (known.CountOf(query.session) >= store.options.pending_per_session_max) {
    return Status(StatusCode::kBusy, "the session has pending_per_session_max requests pending");
  }
  if (known.Find(query.session, query.request_id) != kPendingNone) {
    return Status(StatusCode::kInvalid, "a request of that id is pending");
  }
  const Result<LeaseId> opened =
      caller.rooms->lease_manager.Open(kind, caller.session, query.group_index);
  if (!opened.ok()) return opened.status();
  *lease = *opened;
  if (query.key_count_of_request > CacheDomain::kGrownAtOnceMin) {
    caller.domain().leases.MakeRoom(*lease, query.key_count_of_request);
  }
  caller.rooms->waiters.Open(
      {.kind = kind == LeaseKind::kPrefetch ? PendingKind::kPrefetch : PendingKind::kAcquire,
       .session = query.session,
       .request_id = query.request_id,
       .lease = *lease,
       .member_mask = query.member_mask,
       .block_count = query.key_count_of_request,
       .is_by_parts = kind == LeaseKind::kRead && (query.flags & protocol::kAcquireByParts) != 0});
  return Status::Ok();
}

// How many of the blocks from `first` on anybody may read, or the class.
uint32_t ReadyCount(const uint8_t* first, uint32_t block_count, uint8_t own_class) {
  constexpr uint32_t kAtOnce = 64;  // looked at without a branch
  uint32_t i = 0;
  for (; i + kAtOnce <= block_count; i += kAtOnce) {
    bool is_other = false;
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      is_other |= (first[i + j] != kReadyForAll) & (first[i + j] != own_class);
    }
    if (is_other) break;
  }
  while (i < block_count && (first[i] == kReadyForAll || first[i] == own_class)) ++i;
  return i;
}

// Of the leading keys: blocks that are ready for the session, as many as it may still hold.
std::vector<BlockRange> ReadyPathOf(const Caller& caller, const KeysQuery& query) {
  const CacheDomain& domain = caller.domain();
  std::vector<BlockRange> path;
  domain.index.Match(query.group_index, query.keys, RadixIndex::Proof::kEveryKey, &path);
  uint32_t left = caller.rooms->lease_manager.BlocksLeftOf(caller.session);
  const uint8_t class_of_uid = domain.writer_classes.ClassOf(caller.uid);
  const uint8_t own_class = class_of_uid == kReadyForNone ? kReadyForAll : class_of_uid;
  for (size_t i = 0; i < path.size(); ++i) {
    BlockRange& range = path[i];
    const uint32_t ready_count =
        std::min(ReadyCount(&domain.readiness[range.first], range.block_count, own_class), left);
    left -= ready_count;
    if (ready_count == range.block_count) continue;
    range.block_count = ready_count;
    path.resize(ready_count == 0 ? i : i + 1);
    break;
  }
  return path;
}

// The run was asked for to its end, and had to be promoted there: what comes next may be asked for
// next.
void ReadOn(const Caller& caller, uint32_t block_count, bool is_finished, const PrefixWalk& walk) {
  if (is_finished || walk.read_on == kBlockNone || block_count != walk.walked_count) return;
  caller.rooms->mover.ReadAheadOf(walk.read_on);
  caller.rooms->mover.Step();
}

}  // namespace

Status PrefixVerbs::Seek(const KeysQuery& query, uint64_t* end_us) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(query.session, query.group_index, &caller));
  const CacheDomain& domain = caller.domain();
  if (domain.options.shared.tier == nullptr || query.keys.empty()) return Status::Ok();
  const uint64_t now_us = domain.NowUs();
  if (*end_us == 0) {
    *end_us = std::min(now_us + domain.options.shared.seek_us, store_.AnswerDueUs(query.hints));
  }
  if (now_us >= *end_us) return Status::Ok();
  std::vector<BlockRange> path;
  const uint32_t known_count =
      domain.index.Match(query.group_index, query.keys, RadixIndex::Proof::kEveryKey, &path);
  if (known_count == query.keys.size()) return Status::Ok();
  if (known_count > 0) {
    // A block that is being written here comes from here.
    const Visibility found = VisibilityOf(caller, path.back().first + path.back().block_count - 1);
    if (found == Visibility::kNothing || found == Visibility::kReserved) return Status::Ok();
  }
  return caller.rooms->shared_reader.Seek(query, known_count, *end_us);
}

Status AcquireOperation::HoldRuns(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(query.session, query.group_index, &caller));
  CacheDomain& domain = caller.domain();
  const std::vector<BlockRange> path = ReadyPathOf(caller, query);
  uint32_t block_count = 0;
  for (const BlockRange& range : path) block_count += range.block_count;
  if (block_count == 0 || !caller.rooms->deferred_hits.has_room(block_count)) return Status::Ok();
  LeaseId lease = kLeaseNone;
  TERRACE_RETURN_IF_ERROR(Begin(store, caller, query, LeaseKind::kRead, &lease));
  answer_->reply.token = domain.leases.at(lease).token;
  answer_->misses.asked_count += block_count;
  caller.rooms->lease_manager.AppendReady(lease, path);
  domain.leases.SetTip(lease, query.keys[block_count - 1]);
  answer_->walk.first_position = query.first_position;
  WalkOnReady(*caller.group, block_count, &answer_->walk);
  AppendToSpans({.first_block = 0, .block_count = block_count}, &answer_->spans);
  caller.rooms->deferred_hits.Add(lease, query, block_count);
  return Status::Ok();
}

Status AcquireOperation::Hold(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(query.session, query.group_index, &caller));
  CacheDomain& domain = caller.domain();
  LeaseId lease = kLeaseNone;
  if (answer_->reply.token.is_zero()) {
    TERRACE_RETURN_IF_ERROR(Begin(store, caller, query, LeaseKind::kRead, &lease));
    answer_->reply.token = domain.leases.at(lease).token;
    answer_->reply.member_mask = query.member_mask & caller.group->local_mask();
    if (query.key_count_of_request > CacheDomain::kGrownAtOnceMin) {
      answer_->slots.reserve(size_t{query.key_count_of_request} *
                             std::popcount(answer_->reply.member_mask));
    }
  } else {
    lease = domain.leases.Find(answer_->reply.token);
  }
  const PendingId pending = caller.rooms->pending.Find(query.session, query.request_id);
  if (lease == kLeaseNone || pending == kPendingNone ||
      domain.leases.at(lease).phase != LeasePhase::kBuilding) {
    return Status(StatusCode::kGone, "the lease was revoked while it was built");
  }
  answer_->misses.asked_count += static_cast<uint32_t>(query.keys.size());
  caller.rooms->deferred_hits.OnAsked(query.group_index, query.keys);
  if (domain.leases.at(lease).entries.size() < answer_->walk.walked_count) {
    answer_->is_finished = true;  // what came before has failed meanwhile
    answer_->misses.cause = protocol::MissCause::kLate;
    return Status::Ok();
  }
  const uint32_t walked_before = answer_->walk.walked_count;
  if (walked_before == 0) answer_->walk.first_position = query.first_position;
  PrefixHolder holder(store, caller, query,
                      {.lease = lease,
                       .pending = pending,
                       .walk = &answer_->walk,
                       .spans = &answer_->spans,
                       .slots = &answer_->slots});
  const bool goes_on = holder.Hold();
  answer_->is_finished = !holder.Answer() || !goes_on;
  const auto missed = query.keys.subspan(answer_->walk.walked_count - walked_before);
  CountMisses(caller, query, missed, &answer_->misses);
  if (!domain.has_more_than_dram()) {  // they may pass by
    const uint32_t rest_count = query.key_count_of_request -
                                std::min(query.key_count_of_request, answer_->misses.asked_count);
    domain.dram_policy->OnMissed(missed, {.count = rest_count, .last = query.last_key});
  }
  caller.rooms->mover.Step();
  store.Settle(*caller.rooms);
  return Status::Ok();
}

// Applies min_tokens, sends the lease off, or releases it when nothing matched. Completions of the
// request come from later calls only, never before the reply.
void AcquireOperation::Finish(const KeysQuery& query) {
  const LeaseToken token = answer_->reply.token;
  const uint64_t member_mask = answer_->reply.member_mask;
  answer_->reply = {};
  StoreRooms& store = *tie_.store();
  Caller caller;
  const bool is_open = store.Enter(query.session, query.group_index, &caller).ok();
  const LeaseId id = is_open ? caller.domain().leases.Find(token) : kLeaseNone;
  uint32_t block_count = 0;
  if (id != kLeaseNone && caller.domain().leases.at(id).phase == LeasePhase::kBuilding) {
    // What has left it meanwhile may have been what made a window whole.
    const size_t entry_count = caller.domain().leases.at(id).entries.size();
    block_count = UsefulBlocks(query, *caller.group, UsableWithin(answer_->walk, entry_count));
    caller.rooms->waiters.Truncate(id, block_count, StatusCode::kNotFound);
    if (block_count > 0) ReadOn(caller, block_count, answer_->is_finished, answer_->walk);
  }
  TrimSpans(block_count, &answer_->spans);
  answer_->slots.resize(size_t{block_count} * std::popcount(member_mask));
  if (id != kLeaseNone && block_count == 0) {
    caller.rooms->lease_manager.Leave(id, caller.session);
  } else if (id != kLeaseNone) {
    caller.domain().leases.GoLive(id);
    if (query.hints.recompute_ns_per_token != 0) {
      caller.group->recompute_ns_per_token = query.hints.recompute_ns_per_token;
    }
    PromisedHits promised(query.group_index, block_count, query.hints.recompute_ns_per_token,
                          answer_->spans);
    const PendingId pending = caller.rooms->pending.Find(query.session, query.request_id);
    if (pending != kPendingNone &&
        caller.rooms->waiters.Arm(pending, store.DeadlineUs(query.hints))) {
      caller.rooms->waiters.Promise(pending, std::move(promised));
    } else {
      promised.DeliverAll(caller.domain());
    }
    answer_->reply.token = token;
  }
  if (is_open && !answer_->slots.empty()) store.sessions.at(caller.session).has_slots = true;
  if (is_open) store.Settle(*caller.rooms);
  answer_->reply.member_mask = member_mask;
  answer_->reply.block_count = block_count;
  answer_->reply.token_count = is_open ? block_count * caller.group->block_tokens() : 0;
  answer_->reply.span_count = static_cast<uint32_t>(answer_->spans.size());
  answer_->reply.slot_count = static_cast<uint32_t>(answer_->slots.size());
  answer_->reply.lease_ttl_ms = store.options.lease_ttl_ms;
  answer_->reply.flags = is_open && caller.group->has_remote() ? protocol::kMatchIsBound : 0;
  if (is_open) CountAnswer(caller, query, *answer_);
}

Result<Progress> AcquireOperation::StepReady(const KeysQuery& query) {
  TERRACE_CHECK(tie_.store() != nullptr && passed_count_ == 0, "the short way comes first");
  session_ = query.session;
  if (const Status held = HoldRuns(query); !held.ok()) return Fail(held);
  passed_count_ = answer_->walk.walked_count;
  const auto key_count = std::max<size_t>(query.key_count_of_request, query.keys.size());
  return passed_count_ < key_count ? Progress::kGoesOn : End(query);
}

Result<Progress> AcquireOperation::Step(const KeysQuery& query) {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  session_ = query.session;
  if (const Status held = Hold(query); !held.ok()) return Fail(held);
  passed_count_ += static_cast<uint32_t>(query.keys.size());
  const bool is_last = answer_->is_finished || passed_count_ >= query.key_count_of_request;
  return is_last ? End(query) : Progress::kGoesOn;
}

Progress AcquireOperation::End(const KeysQuery& query) {
  Finish(query);
  tie_.Cut();
  return Progress::kDone;
}

Status AcquireOperation::Fail(Status status) {
  Undo();
  return status;
}

void AcquireOperation::Undo() {
  if (tie_.store() == nullptr) return;
  tie_.store()->LeaveUntold(session_, answer_->reply.token);
  tie_.Cut();
}

Status PrefetchOperation::Hold(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(query.session, query.group_index, &caller));
  CacheDomain& domain = caller.domain();
  PendingId pending = caller.rooms->pending.Find(query.session, query.request_id);
  LeaseId lease = kLeaseNone;
  if (answer_->walk.walked_count == 0) {
    answer_->walk.first_position = query.first_position;
    TERRACE_RETURN_IF_ERROR(Begin(store, caller, query, LeaseKind::kPrefetch, &lease));
    pending = caller.rooms->pending.Find(query.session, query.request_id);
  } else if (pending != kPendingNone) {
    lease = caller.rooms->pending.at(pending).lease;
  }
  if (lease == kLeaseNone) return Status(StatusCode::kBusy, "the request was cancelled");
  if (domain.leases.at(lease).entries.size() < answer_->walk.walked_count) {
    answer_->is_finished = true;
    return Status::Ok();
  }
  PrefixHolder holder(
      store, caller, query,
      {.lease = lease, .pending = pending, .walk = &answer_->walk, .spans = &answer_->spans});
  const bool goes_on = holder.Hold();
  answer_->is_finished = !holder.Answer() || !goes_on;
  caller.rooms->mover.Step();
  store.Settle(*caller.rooms);
  return Status::Ok();
}

void PrefetchOperation::Finish(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  if (!store.Enter(query.session, query.group_index, &caller).ok()) return;
  Waiters& waiters = caller.rooms->waiters;
  const PendingId pending = caller.rooms->pending.Find(query.session, query.request_id);
  uint32_t block_count = 0;
  if (pending != kPendingNone) {
    const LeaseId lease = caller.rooms->pending.at(pending).lease;
    block_count =
        UsefulBlocks(query, *caller.group,
                     UsableWithin(answer_->walk, caller.domain().leases.at(lease).entries.size()));
    waiters.Truncate(lease, block_count, StatusCode::kNotFound);
    if (block_count > 0) ReadOn(caller, block_count, answer_->is_finished, answer_->walk);
    waiters.Arm(pending, store.DeadlineUs(query.hints));
  }
  AnswerMatch(*caller.group, block_count, answer_);
  store.Settle(*caller.rooms);
}

Result<Progress> PrefetchOperation::Step(const KeysQuery& query) {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  session_ = query.session;
  request_id_ = query.request_id;
  if (const Status held = Hold(query); !held.ok()) {
    Undo();
    return held;
  }
  passed_count_ += static_cast<uint32_t>(query.keys.size());
  if (!answer_->is_finished && passed_count_ < query.key_count_of_request) return Progress::kGoesOn;
  Finish(query);
  tie_.Cut();
  return Progress::kDone;
}

void PrefetchOperation::Undo() {
  StoreRooms* const store = tie_.store();
  tie_.Cut();
  if (store == nullptr || passed_count_ == 0) return;
  const SessionIndex session = store->sessions.Find(session_);
  if (session == kSessionNone || store->sessions.at(session).is_hung_up) return;
  DomainRooms& rooms = store->at(store->sessions.at(session).domain_index);
  const PendingId pending = rooms.pending.Find(session_, request_id_);
  if (pending == kPendingNone || rooms.pending.IsArmed(pending)) return;
  rooms.waiters.Drop(pending);
  store->Settle(rooms);
}

MatchOperation PrefixVerbs::Match(PrefixMatch* answer) { return {store_.operations, answer}; }
AcquireOperation PrefixVerbs::Acquire(AcquireResult* answer) { return {store_.operations, answer}; }
PrefetchOperation PrefixVerbs::Prefetch(PrefixMatch* answer) { return {store_.operations, answer}; }

}  // namespace terrace
