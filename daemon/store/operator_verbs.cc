#include "daemon/store/operator_verbs.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "daemon/block/keyed_group_files.h"
#include "daemon/rule/named_pins.h"
#include "daemon/store/store_rooms.h"
#include "terrace/check.h"
#include "terrace/protocol_listing.h"

namespace terrace {
namespace {

// A lookup of which something comes: the block is found, and then changed.
constexpr uint32_t kFoundCostBlocks = 2;

// Groups a query is about: one, or all of the domain.
struct GroupRange {
  uint32_t first = 0;
  uint32_t end = 0;
};
GroupRange GroupsOf(const Caller& caller, uint32_t group_index) {
  if (group_index != kAllGroups) return {group_index, group_index + 1};
  return {0, static_cast<uint32_t>(caller.domain().groups.size())};
}

// Blocks with these keys, in the groups asked for.
std::vector<BlockId> BlocksOf(const Caller& caller, const KeysQuery& query) {
  std::vector<BlockId> ids;
  const RadixIndex& index = caller.domain().index;
  for (const BlockKey& key : query.keys) {
    if (query.group_index == kAllGroups) {
      index.FindAll(key, &ids);
    } else if (const BlockId id = index.Find(query.group_index, key); id != kBlockNone) {
      ids.push_back(id);
    }
  }
  return ids;
}

// What other hosts have stored of them, or will have who have not heard of it, does not come back.
void ForgetShared(const Caller& caller, uint32_t group_index) {
  SharedWriter& shared = caller.rooms->shared_writer;
  if (group_index == kAllGroups) {
    shared.ForgetAll();
  } else {
    shared.Forget(group_index);
  }
}

uint8_t SharedMask(const CacheDomain& domain, const Group& group, const BlockKey& key) {
  const bool is_there = domain.shared_copies.Has({group.id(), key});
  return is_there ? 1 << static_cast<uint8_t>(protocol::TierKind::kRedis) : 0;
}

uint8_t TierMask(const CacheDomain& domain, BlockId id) {
  const Block& block = domain.block(id);
  uint8_t mask = SharedMask(domain, domain.group_of(block), domain.index.node(id).key);
  const auto add = [&mask](protocol::TierKind kind) {
    mask = static_cast<uint8_t>(mask | 1 << static_cast<uint8_t>(kind));
  };
  if (block.dram.is_readable() || block.is_adopted()) add(protocol::TierKind::kDram);
  for (size_t t = 0; t < domain.lower.size(); ++t) {
    if (block.lower[t].is_readable()) add(domain.lower[t].tier->kind());
  }
  return mask;
}

uint8_t FlagsOf(const DomainRooms& rooms, BlockId id) {
  uint8_t flags = 0;
  if (rooms.residency.lower.IsPersisted(id)) flags |= protocol::kQueriedPersisted;
  if (rooms.domain.block(id).is_kept()) flags |= protocol::kQueriedPinned;
  if (rooms.domain.block(id).is_no_store) flags |= protocol::kQueriedNoStore;
  return flags;
}

protocol::BlockState StateOf(const Block& block) {
  if (block.phase == BlockPhase::kReserved) return protocol::BlockState::kReserved;
  if (block.phase == BlockPhase::kSealed) return protocol::BlockState::kSealed;
  return protocol::BlockState::kAbsent;
}

// Ends an operation, and the walk that it has begun, if any (0).
void CutAndClose(OperationTie& tie, uint32_t domain_index, uint64_t walk) {
  StoreRooms* const store = tie.store();
  tie.Cut();
  if (store != nullptr && walk != 0) store->at(domain_index).domain.walks.Close(walk);
}

}  // namespace

Status OperatorVerbs::Query(const KeysQuery& query, std::vector<protocol::QueriedBlock>* blocks) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(query.session, query.group_index, &caller));
  const DomainRooms& rooms = *caller.rooms;
  blocks->clear();
  for (const BlockKey& key : query.keys) {
    const BlockId id = rooms.domain.index.Find(query.group_index, key);
    if (id == kBlockNone || rooms.residency.candidates.IsExpired(id)) {
      const bool has_group = caller.group != nullptr;
      blocks->push_back(
          {.tier_mask = has_group ? SharedMask(rooms.domain, *caller.group, key) : uint8_t{0}});
      continue;
    }
    const Block& b = rooms.domain.block(id);
    blocks->push_back({.state = StateOf(b),
                       .tier_mask = TierMask(rooms.domain, id),
                       .priority = b.priority,
                       .flags = FlagsOf(rooms, id),
                       .lease_count = rooms.domain.index.pin_count(id),
                       .commit_id = b.commit_id});
  }
  return Status::Ok();
}

// ---- Wait ----

Status WaitOperation::Await(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(query.session, query.group_index, &caller));
  PendingRegister& known = caller.rooms->pending;
  Waiters& waiters = caller.rooms->waiters;
  if (caller.domain().persistent_tier == kLowerTiersMax) {
    return Status(StatusCode::kUnsupported, "no persistent tier is configured");
  }
  std::vector<BlockId> missing;
  for (const BlockKey& key : query.keys) {
    const BlockId id = caller.domain().index.Find(query.group_index, key);
    if (id == kBlockNone || caller.rooms->residency.candidates.IsExpired(id)) {
      return Status(StatusCode::kNotFound, "a key is not in the cache");
    }
    if (!caller.rooms->residency.lower.IsPersisted(id)) missing.push_back(id);
  }
  if (missing.empty()) return Status::Ok();
  PendingId pending = known.Find(query.session, query.request_id);
  if (pending == kPendingNone) {
    if (known.CountOf(query.session) >= store.options.pending_per_session_max) {
      return Status(StatusCode::kBusy, "the session has pending_per_session_max requests pending");
    }
    pending = waiters.Open(
        {.kind = PendingKind::kWait, .session = query.session, .request_id = query.request_id});
  }
  for (const BlockId id : missing) {
    waiters.Await(pending, 0, id);
    caller.rooms->mover.Persist(id);
  }
  caller.rooms->mover.Step();
  return Status::Ok();
}

// kOk: all persisted now; kBusy: OnWaitDone follows.
Status WaitOperation::Finish(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(query.session, query.group_index, &caller));
  Waiters& waiters = caller.rooms->waiters;
  const PendingId pending = caller.rooms->pending.Find(query.session, query.request_id);
  if (pending == kPendingNone) return Status::Ok();
  const StatusCode outcome = waiters.WaitOutcome(pending);
  if (outcome == StatusCode::kBusy) {
    waiters.Arm(pending, store.DeadlineUs(query.hints));
    return Status(StatusCode::kBusy, "the answer follows");
  }
  waiters.Drop(pending);
  return outcome == StatusCode::kOk ? Status::Ok() : Status(outcome, "a key left the cache");
}

Result<Progress> WaitOperation::Step(const KeysQuery& query) {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  session_ = query.session;
  request_id_ = query.request_id;
  if (const Status awaited = Await(query); !awaited.ok()) {
    Undo();
    return awaited;
  }
  passed_count_ += static_cast<uint32_t>(query.keys.size());
  if (passed_count_ < query.key_count_of_request) return Progress::kGoesOn;
  const Status outcome = Finish(query);
  tie_.Cut();
  if (outcome.code() == StatusCode::kBusy) return Progress::kFollows;
  if (!outcome.ok()) return outcome;
  return Progress::kDone;
}

void WaitOperation::Undo() {
  StoreRooms* const store = tie_.store();
  tie_.Cut();
  const SessionIndex session = store == nullptr ? kSessionNone : store->sessions.Find(session_);
  if (session == kSessionNone) return;
  DomainRooms& rooms = store->at(store->sessions.at(session).domain_index);
  const PendingId pending = rooms.pending.Find(session_, request_id_);
  if (pending != kPendingNone && !rooms.pending.IsArmed(pending)) rooms.waiters.Drop(pending);
}

WaitOperation OperatorVerbs::Wait() { return WaitOperation(store_.operations); }

// ---- Pin ----

Status OperatorVerbs::Pin(const KeysQuery& query, protocol::PinReply* reply) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(query.session, query.group_index, &caller));
  protocol::Hints stay;  // pinned or not, it is forgotten when its time is up
  stay.ttl_s = query.hints.ttl_s;
  for (const BlockId id : BlocksOf(caller, query)) {
    if (stay.ttl_s != 0) caller.rooms->residency.hints.Apply(id, stay);
    if (query.flags & protocol::kPinClear) {
      caller.rooms->residency.hints.ClearPinned(id);
    } else {
      caller.rooms->residency.hints.SetPinned(id);
    }
    ++reply->block_count;
  }
  store_.Settle(*caller.rooms);
  return Status::Ok();
}

// ---- Evict ----

namespace {

// Of the keys and what continues them, also over a block that is not there any more: of which key
// that was nobody knows, so it is what lies deeper in the key's group; of a key that is in none of
// the groups, what has lost its parent. A key is of one group: where it is found, others are left.
void CoverBelow(const Caller& caller, const KeysQuery& query, WalkScope* scope) {
  const RadixIndex& index = caller.domain().index;
  const uint32_t group_count = scope->group_end - scope->group_first;
  scope->below.assign(group_count, UINT32_MAX);
  std::unordered_set<BlockKey> found;
  for (const BlockId id : BlocksOf(caller, query)) {
    const RadixIndex::Node& node = index.node(id);
    scope->roots.push_back({.group_index = node.group_index, .key = node.key});
    uint32_t& below = scope->below[node.group_index - scope->group_first];
    below = std::min(below, node.position);
    found.insert(node.key);
  }
  const auto is_here = [&found](const BlockKey& key) { return found.contains(key); };
  if (!std::ranges::all_of(query.keys, is_here)) std::ranges::fill(scope->below, 0);
}

uint64_t OpenEvictWalk(const Caller& caller, const KeysQuery& query) {
  WalkScope scope{.order = WalkOrder::kChildrenFirst};
  const GroupRange groups = GroupsOf(caller, query.group_index);
  scope.group_first = groups.first;
  scope.group_end = groups.end;
  if (!query.keys.empty()) CoverBelow(caller, query, &scope);
  scope.goes_again = (query.flags & protocol::kEvictDryRun) == 0;
  return caller.domain().walks.Open(std::move(scope), WalkUse::kOperation);
}

// True: it has gone.
bool EvictUnindexed(const Caller& caller, const KeysQuery& query, bool is_begun,
                    protocol::EvictReply* answer) {
  UnindexedEviction& unindexed = caller.rooms->unindexed;
  if (unindexed.is_empty()) return true;
  if (query.keys.empty()) return unindexed.EvictAll(query.group_index, std::nullopt, answer);
  if (is_begun) return unindexed.GoOn(answer);
  return unindexed.EvictKeys(query, BlocksOf(caller, query), answer);
}

}  // namespace

uint32_t OperatorVerbs::KeyCost(SessionId session, uint32_t group_index) const {
  const SessionIndex index = store_.sessions.Find(session);
  if (group_index != kAllGroups || index == kSessionNone) return 1;
  const CacheDomain& domain = store_.domains[store_.sessions.at(index).domain_index]->domain;
  return std::max(kFoundCostBlocks * domain.index.runs().group_count(), 1u);
}

Status EvictOperation::Evict(const KeysQuery& query) {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(query.session, query.group_index, &caller));
  domain_index_ = caller.domain().domain_index;
  const bool is_dry_run = (query.flags & protocol::kEvictDryRun) != 0;
  if (deadline_us_ == 0) {
    deadline_us_ = query.hints.deadline_us == 0 ? kNever : store.DeadlineUs(query.hints);
  } else if (store.clock.NowUs() >= deadline_us_) {
    return Status(
        StatusCode::kBusy,
        is_dry_run ? "deadline_us passed before all blocks were counted: ask with a later one"
                   : "deadline_us passed before all blocks were looked at; those evicted by then "
                     "stay so: ask again for the others, or with a later one");
  }
  if (!eviction_) {
    eviction_.emplace(
        caller.domain(), caller.rooms->residency, caller.rooms->shared_writer,
        KeyedEviction::Options{.is_dry_run = is_dry_run, .is_all = query.keys.empty()});
  }
  const bool is_subtree = (query.flags & protocol::kEvictSubtree) != 0;
  has_unindexed_ =
      !is_dry_run && walk_ == 0 && !EvictUnindexed(caller, query, has_unindexed_, answer_);
  if (has_unindexed_) return Status::Ok();
  // What only the shared tier has. Looked at once, before any of them goes.
  if (!is_dry_run && walk_ == 0) {
    TERRACE_RETURN_IF_ERROR(caller.rooms->shared_writer.EraseUnknown(query));
  }
  if (is_subtree) {
    TERRACE_RETURN_IF_ERROR(Walk(query, caller));
  } else {
    eviction_->EvictKeys(BlocksOf(caller, query), answer_);
  }
  store.Settle(*caller.rooms);
  return Status::Ok();
}

// What is below the keys, or, without any, everything.
Status EvictOperation::Walk(const KeysQuery& query, const Caller& caller) {
  TreeWalks& walks = caller.domain().walks;
  if (walk_ == 0) {
    walk_ = OpenEvictWalk(caller, query);
    if (query.keys.empty() && !(query.flags & protocol::kEvictDryRun)) {
      ForgetShared(caller, query.group_index);
    }
  }
  if (!walks.IsOpen(walk_)) {
    return Status(StatusCode::kGone, "too many walks are under way; start this one again");
  }
  const Result<bool> is_through = eviction_->EvictWalked(walk_, answer_);
  TERRACE_RETURN_IF_ERROR(is_through.status());
  if (*is_through) walks.Close(std::exchange(walk_, 0));
  return Status::Ok();
}

Result<Progress> EvictOperation::Step(const KeysQuery& query) {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  if (const Status evicted = Evict(query); !evicted.ok()) {
    Undo();
    return evicted;
  }
  if (walk_ != 0 || has_unindexed_) return Progress::kStays;
  passed_count_ += static_cast<uint32_t>(query.keys.size());
  if (passed_count_ < query.key_count_of_request) return Progress::kGoesOn;
  tie_.Cut();
  return Progress::kDone;
}

void EvictOperation::Undo() { CutAndClose(tie_, domain_index_, walk_); }

EvictOperation OperatorVerbs::Evict(protocol::EvictReply* answer) {
  return {store_.operations, answer};
}

// ---- EvictWhere ----

Status EvictWhereOperation::Begin(const Caller& caller) {
  filter_ = {.group_end = static_cast<uint32_t>(caller.domain().groups.size()),
             .idle_us_min = request_.idle_ms_min * kUsPerMs,
             .is_dry_run = (request_.flags & protocol::kEvictWhereDryRun) != 0,
             .is_shared = (request_.flags & protocol::kEvictWhereShared) != 0,
             .is_of_all_groups = request_.group.is_zero()};
  if (request_.tier != protocol::kEvictWhereAllTiers) {
    filter_.tier = static_cast<protocol::TierKind>(request_.tier);
  }
  if (!request_.group.is_zero()) {
    const auto& groups = caller.domain().groups;
    const auto found = std::ranges::find_if(groups, [this](const auto& group) {
      return group != nullptr && group->id() == request_.group;
    });
    if (found == groups.end()) {
      return Status(StatusCode::kNotFound, "the domain has no such group");
    }
    filter_.group_first = static_cast<uint32_t>(found - groups.begin());
    filter_.group_end = filter_.group_first + 1;
  }
  eviction_.emplace(caller.domain(), caller.rooms->residency, caller.rooms->shared_writer, filter_);
  return Status::Ok();
}

// True: what the filters cover of it has gone.
bool EvictWhereOperation::EvictUnindexed(const Caller& caller) {
  UnindexedEviction& unindexed = caller.rooms->unindexed;
  if (filter_.is_dry_run || filter_.idle_us_min > unindexed.idle_us()) return true;
  const uint32_t group_index = filter_.is_of_all_groups ? kAllGroups : filter_.group_first;
  return unindexed.EvictAll(group_index, filter_.tier, answer_);
}

Result<bool> EvictWhereOperation::Evict() {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(session_, kAllGroups, &caller));
  if (!eviction_) TERRACE_RETURN_IF_ERROR(Begin(caller));
  if (!EvictUnindexed(caller)) return false;
  const Result<bool> is_through = eviction_->Step(answer_);
  store.Settle(*caller.rooms);
  return is_through;
}

Result<Progress> EvictWhereOperation::Step() {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  const Result<bool> is_through = Evict();
  if (is_through.ok() && !*is_through) return Progress::kGoesOn;
  Undo();
  if (!is_through.ok()) return is_through.status();
  return Progress::kDone;
}

void EvictWhereOperation::Undo() {
  if (tie_.store() != nullptr && eviction_) eviction_->Close();
  tie_.Cut();
}

EvictWhereOperation OperatorVerbs::EvictWhere(SessionId session,
                                              const protocol::EvictWhereRequest& request,
                                              protocol::EvictReply* answer) {
  return {store_.operations, session, request, answer};
}

// ---- NamedPin ----

Status OperatorVerbs::NamedPin(const NamedPinQuery& query, std::span<const BlockKey> keys,
                               uint32_t passed_count, NamedPinResult* answer) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(query.session, kAllGroups, &caller));
  NamedPins& pins = caller.rooms->named_pins;
  const protocol::NamedPinRequest& asked = query.request;
  const bool is_set = asked.action == protocol::PinAction::kSet;
  if (asked.action == protocol::PinAction::kClear) {
    return pins.End(query.name, &answer->entries.emplace_back());
  }
  if (is_set && passed_count == 0) {
    TERRACE_RETURN_IF_ERROR(pins.Open(
        {.name = query.name, .cap_bytes = asked.cap_bytes, .ttl_s = asked.ttl_s, .uid = caller.uid},
        &answer->place));
  } else if (is_set && !pins.IsOpen(answer->place, query.name)) {
    return Status(StatusCode::kGone, "the pin ended while it was being made: make it again");
  }
  std::vector<BlockId> found;
  for (const BlockKey& key : keys) {
    found.clear();
    caller.domain().index.FindAll(key, &found);
    std::erase_if(found, [&](BlockId id) {
      return caller.domain().block(id).phase != BlockPhase::kSealed ||
             caller.rooms->residency.candidates.IsExpired(id);
    });
    if (found.empty()) ++answer->reply.missing_count;
    for (const BlockId id : found) {
      if (!is_set) {
        answer->blocks.push_back(id);
      } else if (pins.Add(answer->place, id).code() == StatusCode::kNoSpace) {
        ++answer->reply.left_out_count;
      }
    }
  }
  store_.Settle(*caller.rooms);
  if (passed_count + keys.size() < asked.key_count) return Status::Ok();
  if (is_set) {
    answer->entries.push_back(pins.Describe(answer->place));
  } else {
    answer->entries = pins.List(answer->blocks, asked.key_count > 0);
  }
  return Status::Ok();
}

// ---- Reset ----

Status ResetOperation::Erase() {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(session_, group_index_, &caller));
  const EraseCauseScope scope(caller.domain(), protocol::MissCause::kOperator);
  // Not an eviction: what is leased leaves the index, too, and its slots fall with the lease.
  const GroupRange groups = GroupsOf(caller, group_index_);
  uint32_t budget = protocol::kBlocksPerTurnMax;
  protocol::EvictReply taken;
  const bool has_unindexed = !caller.rooms->unindexed.EvictAll(group_index_, std::nullopt, &taken);
  erased_count_ += taken.block_count;
  if (has_unindexed) return Status::Ok();
  if (!std::exchange(is_begun_, true)) {
    DestroyGroupKeys(caller.domain(), groups.first, groups.end);
    ForgetShared(caller, group_index_);
  }
  for (uint32_t g = groups.first; g < groups.end && budget > 0; ++g) {
    BlockId root;
    while (budget > 0 && (root = caller.domain().index.first_root(g)) != kBlockNone) {
      caller.rooms->residency.lifecycle.Erase(root, StatusCode::kGone);
      ++erased_count_;
      budget -= std::min(budget, caller.domain().groups[g]->change_cost_blocks());
    }
  }
  is_through_ = budget > 0;
  store.Settle(*caller.rooms);
  return Status::Ok();
}

Result<Progress> ResetOperation::Step() {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  const Status erased = Erase();
  if (erased.ok() && !is_through_) return Progress::kGoesOn;
  tie_.Cut();
  if (!erased.ok()) return erased;
  return Progress::kDone;
}

ResetOperation OperatorVerbs::Reset(SessionId session, uint32_t group_index) {
  return {store_.operations, session, group_index};
}

// ---- what has been erased ----

Status OperatorVerbs::AwaitErasures(SessionId session, uint64_t request_id, ErasureReach reach) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  ErasureMark mark = caller.domain().MarkErasures();
  mark.is_for_absent =
      reach == ErasureReach::kEverywhere && store_.options.absent_places != nullptr;
  if (mark.is_for_absent) store_.options.absent_places->NoteErasure(caller.domain().domain_index);
  if (caller.domain().IsErased(&mark)) return Status::Ok();
  if (caller.rooms->pending.CountOf(session) >= store_.options.pending_per_session_max) {
    return Status(StatusCode::kNoSpace,
                  "erased, but pending_per_session_max requests of the session are pending: ask "
                  "again to learn when no crash can bring it back");
  }
  const PendingId pending = caller.rooms->waiters.Open(
      {.kind = PendingKind::kErasure, .session = session, .request_id = request_id});
  if (pending == kPendingNone) {
    return Status(StatusCode::kInvalid, "a request of that id is pending");
  }
  const uint64_t now_us = store_.clock.NowUs();
  caller.rooms->erasures.Arm(pending, mark, now_us + protocol::kErasureWaitUs);
  store_.retry_us = std::min(store_.retry_us, now_us);
  return Status(StatusCode::kBusy, "the answer follows");
}

// ---- List ----

namespace {

protocol::ListEntry Describe(const DomainRooms& rooms, BlockId id) {
  const CacheDomain& domain = rooms.domain;
  const Block& b = domain.block(id);
  const RadixIndex::Node& node = domain.index.node(id);
  const uint64_t now_us = domain.NowUs();
  protocol::ListEntry entry{.key = node.key,
                            .group = domain.groups[b.group_index]->id(),
                            .byte_count = BytesOf(domain, b),
                            .age_ms = (now_us - b.created_us) / kUsPerMs,
                            .idle_ms = (now_us - domain.index.touched_us(id)) / kUsPerMs,
                            .position = node.position,
                            .lease_count = domain.index.pin_count(id),
                            .hit_count = b.hit_count,
                            .child_count = node.child_count,
                            .state = StateOf(b),
                            .tier_mask = TierMask(domain, id),
                            .priority = b.priority,
                            .flags = FlagsOf(rooms, id)};
  if (node.parent != kBlockNone) entry.parent = domain.index.node(node.parent).key;
  if (b.expires_us != kNever) {
    const uint64_t left_us = b.expires_us > now_us ? b.expires_us - now_us : 0;
    entry.expires_in_s = static_cast<uint32_t>(left_us / kUsPerSecond) + 1;
  }
  return entry;
}

// Adds the next entries, up to so many in all. *cursor 0: there are no more.
Status WalkOn(DomainRooms& rooms, uint32_t entry_count_max, uint64_t* cursor,
              std::vector<protocol::ListEntry>* entries) {
  TreeWalks& walks = rooms.domain.walks;
  if (!walks.IsOpen(*cursor)) {
    return Status(StatusCode::kGone, "too many walks are under way; start this one again");
  }
  uint32_t budget = kListBlocksMax;
  bool is_done = false;
  while (budget > 0 && !is_done && entries->size() < entry_count_max) {
    const BlockId id = walks.Next(*cursor, &budget, &is_done);
    if (id != kBlockNone) entries->push_back(Describe(rooms, id));
  }
  if (!is_done) return Status::Ok();
  walks.Close(*cursor);
  *cursor = 0;
  return Status::Ok();
}

}  // namespace

Status ListOperation::Continue() {
  StoreRooms& store = *tie_.store();
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store.Enter(session_, request_.group_handle, &caller));
  domain_index_ = caller.domain().domain_index;
  TreeWalks& walks = caller.domain().walks;
  uint64_t& cursor = answer_->reply.cursor;
  if (passed_count_ == 0) cursor = request_.cursor;
  if (cursor == 0) {
    const GroupRange groups = GroupsOf(caller, request_.group_handle);
    WalkScope scope{.group_first = groups.first, .group_end = groups.end};
    for (uint32_t g = groups.first; g < groups.end && !request_.root.is_zero(); ++g) {
      scope.roots.push_back({.group_index = g, .key = request_.root});
    }
    cursor = walk_ = walks.Open(std::move(scope));
  }
  const uint32_t entry_count_max = std::min(request_.entry_count_max, protocol::kBlocksPerTurnMax);
  TERRACE_RETURN_IF_ERROR(WalkOn(*caller.rooms, entry_count_max, &cursor, &answer_->entries));
  passed_count_ += kListBlocksMax;
  answer_->reply.entry_count = static_cast<uint32_t>(answer_->entries.size());
  if (answer_->entries.size() >= entry_count_max) passed_count_ = protocol::kBlocksPerTurnMax;
  return Status::Ok();
}

Result<Progress> ListOperation::Step() {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  if (const Status listed = Continue(); !listed.ok()) {
    Undo();
    return listed;
  }
  if (answer_->reply.cursor != 0 && passed_count_ < protocol::kBlocksPerTurnMax) {
    return Progress::kGoesOn;
  }
  tie_.Cut();
  return Progress::kDone;
}

void ListOperation::Undo() { CutAndClose(tie_, domain_index_, walk_); }

ListOperation OperatorVerbs::List(SessionId session, const protocol::ListRequest& request,
                                  ListResult* answer) {
  return {store_.operations, session, request, answer};
}

Status OperatorVerbs::ListAll(uint32_t domain_index, uint64_t* cursor,
                              std::vector<protocol::ListEntry>* entries) {
  DomainRooms& rooms = store_.at(domain_index);
  entries->clear();
  if (*cursor == 0) {
    *cursor =
        rooms.domain.walks.Open({.group_end = static_cast<uint32_t>(rooms.domain.groups.size())});
  }
  return WalkOn(rooms, kListBlocksMax, cursor, entries);
}

protocol::ServingMode OperatorVerbs::serving(uint32_t domain_index) const {
  return store_.at(domain_index).domain.serving;
}

void OperatorVerbs::SetServing(uint32_t domain_index, protocol::ServingMode mode) {
  store_.at(domain_index).domain.serving.of_owner() = mode;
  store_.RetryBy(store_.clock.NowUs());  // routers are told
}

void OperatorVerbs::CountUnserved(uint32_t domain_index) {
  ++store_.at(domain_index).domain.counters.requests_unserved;
}

void OperatorVerbs::CountPinDropped(uint32_t domain_index) {
  ++store_.at(domain_index).domain.counters.pin_hints_dropped;
}

void OperatorVerbs::AddLeft(uint32_t domain_index, protocol::DrainReply* reply) const {
  const DomainRooms& rooms = store_.at(domain_index);
  const CacheDomain& domain = rooms.domain;
  uint64_t block_bytes = 0;  // at the mean
  for (uint32_t g = 0; g < domain.groups.size(); ++g) {
    block_bytes += domain.index.runs().group(g).block_count * domain.groups[g]->block_bytes();
  }
  block_bytes /= std::max<uint64_t>(domain.index.runs().live_count(), 1);
  reply->session_count = domain.session_count;
  reply->lease_count = domain.leases.count();
  const uint64_t pinned_count = domain.index.runs().pinned_count();  // with those being written
  reply->leased_blocks = pinned_count - std::min<uint64_t>(pinned_count, domain.reserved_count);
  reply->leased_bytes = reply->leased_blocks * block_bytes;
  reply->reserved_blocks = domain.reserved_count;
  if (domain.persistent_tier != kLowerTiersMax) {
    const LowerTier& lower = domain.lower[domain.persistent_tier];
    const WriteBack& write_back = rooms.mover.write_back();
    reply->unwritten_blocks = lower.block_count - lower.persisted_block_count +
                              write_back.queued_count(domain.persistent_tier) +
                              write_back.without_group_count(domain.persistent_tier);
    reply->unwritten_bytes = reply->unwritten_blocks * block_bytes;
  }
  if (domain.options.shared.tier != nullptr) {
    reply->shared_bytes = rooms.shared_writer.stats().queued_bytes;
  }
  reply->requests_unserved = domain.counters.requests_unserved;
  // Of a tier that takes nothing the store waits for nothing; who ends the daemon loses it.
  reply->is_done = reply->lease_count == 0 && reply->reserved_blocks == 0 &&
                   reply->unwritten_blocks == 0 && rooms.is_settled() && rooms.is_shared_idle();
}

}  // namespace terrace
