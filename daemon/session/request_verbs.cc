// The verbs that are not about key lists.
#include <algorithm>
#include <bit>

#include "daemon/session/hint_table.h"
#include "daemon/session/request.h"
#include "terrace/codec.h"
#include "terrace/protocol_join.h"

namespace terrace {

using protocol::Verb;

Request::Outcome Request::StepOther(RequestContext& context, Store& store,
                                    uint32_t* budget_blocks) {
  if (verb_ == Verb::kJoin) return StepJoin(context, store, budget_blocks);
  if (verb_ == Verb::kCommit) return StepCommit(context, store, budget_blocks);
  if (verb_ == Verb::kAbort) return StepAbort(context, store, budget_blocks);
  if (verb_ == Verb::kReset) return StepReset(context, store, budget_blocks);
  if (verb_ == Verb::kList) return StepList(context, store, budget_blocks);
  if (verb_ == protocol::kVerbHitRate) return StepHitRate(context, store, budget_blocks);
  if (verb_ == protocol::kVerbExplain) return StepExplain(context, store, budget_blocks);
  bool is_malformed = false;
  const Status status = Act(context, store, &is_malformed);
  if (is_malformed) return Malformed(context, "such a request");
  return status.ok() ? Finish(context) : Fail(context, status);
}

Status Request::Act(RequestContext& context, Store& store, bool* is_malformed) {
  const auto malformed = [is_malformed] {
    *is_malformed = true;
    return Status(StatusCode::kInvalid);
  };
  if (verb_ == protocol::kVerbOrderDone) return OrderDone(context, store, is_malformed);
  if (verb_ == protocol::kVerbPinTurn) return PinTurn(context, store, is_malformed);
  if (verb_ == protocol::kVerbDeviceReport) {
    protocol::DeviceReport report;
    return ReadWhole(&report) ? store.devices().Report(context.session, report) : malformed();
  }
  switch (verb_) {
    case Verb::kOpen:
      return Open(context, store, is_malformed);
    case Verb::kRelease: {
      protocol::ReleaseRequest release;
      if (!ReadWhole(&release)) return malformed();
      TERRACE_RETURN_IF_ERROR(CheckHints(verb_, release.hints, &why_));
      return store.leases().Release(context.session, release);
    }
    case Verb::kCancel: {
      protocol::CancelRequest cancel;
      return ReadWhole(&cancel) ? store.leases().Cancel(context.session, cancel.request_id)
                                : malformed();
    }
    case Verb::kTouch: {
      protocol::TouchRequest touch;
      return ReadWhole(&touch) ? store.leases().Renew(context.session, touch.token) : malformed();
    }
    case Verb::kUnmapped: {
      protocol::UnmappedRequest unmapped;
      return ReadWhole(&unmapped) ? store.sessions().Unmapped(context.session, unmapped.segment)
                                  : malformed();
    }
    default:
      return Status(StatusCode::kUnsupported, "this verb is answered elsewhere");
  }
}

Status Request::OrderDone(const RequestContext& context, Store& store, bool* is_malformed) {
  protocol::OrderDoneRequest done;
  *is_malformed = true;
  if (!body_.Read(0, &done) || done.checksum_count > kPartsPerSpaceMax ||
      body_.size_bytes() != sizeof(done) + done.checksum_count * sizeof(Checksum)) {
    return Status(StatusCode::kInvalid);
  }
  *is_malformed = false;
  step_checksums_.resize(done.checksum_count);
  body_.ReadArray(sizeof(done), std::span(step_checksums_));
  return store.devices().OrderDone(context.session, done, step_checksums_);
}

Status Request::PinTurn(const RequestContext& context, Store& store, bool* is_malformed) {
  protocol::PinTurnRequest asked;
  *is_malformed = !ReadWhole(&asked);
  if (*is_malformed) return Status(StatusCode::kInvalid);
  switch (asked.action) {
    case protocol::PinTurnAction::kAsk:
      return store.devices().AskPinTurn(context.session, &turn_.emplace().ahead_count);
    case protocol::PinTurnAction::kEnd:
      return store.devices().EndPinTurn(context.session);
  }
  return Invalid("turn action " + std::to_string(static_cast<uint32_t>(asked.action)) +
                 "; there are 0 (ask) and 1 (end)");
}

Status Request::ReadGroup(SpaceGroupSpec* group, uint64_t* self_mask, bool* is_malformed) {
  const Status malformed(StatusCode::kInvalid);
  *is_malformed = true;
  protocol::OpenRequest open;
  if (!body_.Read(0, &open)) return malformed;
  if (open.name_bytes > kGroupNameBytesMax || open.member_count > kGroupMembersMax) {
    *is_malformed = false;
    return Invalid("a group with a name of " + std::to_string(open.name_bytes) + " bytes and " +
                   std::to_string(open.member_count) + " members; the limits are " +
                   std::to_string(kGroupNameBytesMax) + " and " + std::to_string(kGroupMembersMax));
  }
  size_t offset_bytes = sizeof(open);
  const auto read_text = [this, &offset_bytes](size_t text_bytes, std::string* text) {
    text->resize(text_bytes);
    if (!body_.ReadArray(offset_bytes, std::span(*text))) return false;
    offset_bytes += text_bytes;
    return true;
  };
  if (!read_text(open.name_bytes, &group->name)) return malformed;
  for (uint32_t i = 0; i < open.member_count; ++i) {
    protocol::OpenMember member;
    std::string text;
    if (!body_.Read(offset_bytes, &member) || member.text_bytes > kSpaceTextBytesMax) {
      return malformed;
    }
    offset_bytes += sizeof(member);
    if (!read_text(member.text_bytes, &text)) return malformed;
    std::string reason;
    group->members.push_back({.is_remote = member.is_remote != 0});
    if (!SpaceSpec::Parse(text, &group->members.back().spec, &reason).ok()) {
      *is_malformed = false;
      return Invalid("member " + std::to_string(i) + ": " + reason);
    }
  }
  *is_malformed = offset_bytes != body_.size_bytes();
  *self_mask = open.self_mask;
  return *is_malformed ? malformed : Status::Ok();
}

Status Request::Open(RequestContext& context, Store& store, bool* is_malformed) {
  SpaceGroupSpec group;
  uint64_t self_mask = 0;
  TERRACE_RETURN_IF_ERROR(ReadGroup(&group, &self_mask, is_malformed));
  std::string reason;
  if (!group.Validate(&reason).ok()) return Invalid(reason);
  const size_t members = group.members.size();
  if (members < 64 && (self_mask >> members) != 0) {
    return Invalid("self mask " + std::to_string(self_mask) + "; the group has " +
                   std::to_string(members) + " members: set bits below that");
  }
  const Result<OpenedGroup> opened = store.sessions().OpenGroup(context.session, group, &why_);
  if (!opened.ok()) return opened.status();
  // Opened again, a group keeps its handle, with the members of this Open.
  const OpenedHandle handle{
      .group_index = opened->group_index,
      .self_mask = self_mask,
      .member_count = static_cast<uint32_t>(members),
      .group = opened->id,
      .block_tokens = group.block_tokens(),
      .is_inexact = std::any_of(group.members.begin(), group.members.end(), [](const auto& member) {
        return IsLossy(member.spec) || IsOfChunks(member.spec);
      })};
  const auto known = std::find_if(
      context.handles.begin(), context.handles.end(),
      [&handle](const OpenedHandle& h) { return h.group_index == handle.group_index; });
  const auto index = static_cast<uint32_t>(known - context.handles.begin());
  if (known == context.handles.end()) {
    context.handles.push_back(handle);
  } else {
    *known = handle;
  }
  opened_members_ = opened->members;
  opened_ = {.group = opened->id,
             .group_handle = index + 1,
             .member_count = static_cast<uint32_t>(opened_members_.size())};
  return Status::Ok();
}

// Reads the request, and what it joins, before its first step.
Status Request::BeginJoin(const RequestContext& context, Store& store, bool* is_malformed) {
  protocol::JoinRequest& join = join_.emplace();
  protocol::JoinPage page;
  *is_malformed =
      !body_.Read(0, &join) ||
      (body_.size_bytes() != sizeof(join) &&
       (body_.size_bytes() != sizeof(join) + sizeof(page) || !body_.Read(sizeof(join), &page)));
  if (*is_malformed) return Status(StatusCode::kInvalid);
  constexpr uint32_t kFlags =
      protocol::kAcquireByParts | protocol::kAcquireDevice | protocol::kJoinPaged;
  if ((join.flags & ~kFlags) != 0) {
    return Invalid("flags " + std::to_string(join.flags) + "; Join allows " +
                   std::to_string(kFlags));
  }
  if (page.first_block > protocol::kKeysPerRequestMax) {
    return Invalid("a page from block " + std::to_string(page.first_block) +
                   "; a lease has at most " + std::to_string(protocol::kKeysPerRequestMax));
  }
  keys_.group_handle = join.group_handle;
  keys_.member_mask = join.member_mask;
  TERRACE_RETURN_IF_ERROR(ResolveGroup(context));
  join.member_mask = keys_.member_mask;
  join.group_handle = group_index_;
  const Result<LeaseShape> shape = store.leases().ShapeOf(context.session, join.token);
  if (!shape.ok()) return shape.status();
  is_write_lease_ = shape->is_write;
  const bool is_paged = (join.flags & protocol::kJoinPaged) != 0;
  const auto members = static_cast<size_t>(std::popcount(join.member_mask));
  if (page.first_block > 0) {
    acquire_.reply.token = reserve_.reply.token = join.token;
    acquire_.reply.block_count = reserve_.first_key = page.first_block;
  }
  if (is_write_lease_) {
    reserve_.key_count_max = protocol::JoinPageKeys(members);
    has_more_ = is_paged && shape->block_count > page.first_block + reserve_.key_count_max;
    return Status::Ok();
  }
  const uint32_t page_blocks = protocol::JoinPageBlocks(members);
  const bool fits = shape->block_count <= page_blocks;
  if (is_paged && (!fits || page.first_block > 0)) acquire_.join_walk = JoinWalk::kSlots;
  acquire_.block_count_max = page.first_block + page_blocks;
  has_more_ = is_paged && shape->block_count > acquire_.block_count_max;
  return Status::Ok();
}

Request::Outcome Request::StepJoin(const RequestContext& context, Store& store,
                                   uint32_t* budget_blocks) {
  if (!join_) {
    bool is_malformed = false;
    const Status begun = BeginJoin(context, store, &is_malformed);
    if (is_malformed) return Malformed(context, "such a request");
    if (!begun.ok()) return Fail(context, begun);
  }
  if (*budget_blocks == 0) return Outcome::kMore;
  *budget_blocks = 0;
  const Status status = is_write_lease_
                            ? store.leases().JoinWrite(context.session, *join_, &reserve_)
                            : store.leases().JoinRead(context.session, id_, *join_, &acquire_);
  if (!status.ok()) return Fail(context, status);
  if (is_write_lease_ ? !reserve_.is_finished : !acquire_.is_finished) return Outcome::kMore;
  if (has_more_) {
    (is_write_lease_ ? reserve_.reply.reserved : acquire_.reply.flags) |= protocol::kJoinHasMore;
  } else if (!is_write_lease_ && acquire_.join_walk == JoinWalk::kSlots) {
    // That was the last page of slots: what comes with it is about the whole lease.
    acquire_.join_walk = JoinWalk::kSpans;
    acquire_.block_count_max = acquire_.reply.block_count;
    acquire_.reply.block_count = 0;
    acquire_.is_finished = false;
    return Outcome::kMore;
  } else if (acquire_.join_walk == JoinWalk::kSpans) {
    // Blocks may have left while it was walked.
    const uint32_t first_block = reserve_.first_key;
    const uint32_t page_blocks =
        acquire_.reply.block_count - std::min(acquire_.reply.block_count, first_block);
    const auto members = static_cast<size_t>(std::popcount(acquire_.reply.member_mask));
    acquire_.slots.resize(std::min(acquire_.slots.size(), page_blocks * members));
    acquire_.reply.slot_count = static_cast<uint32_t>(acquire_.slots.size());
  }
  return Finish(context);
}

Request::Outcome Request::StepList(const RequestContext& context, Store& store,
                                   uint32_t* budget_blocks) {
  protocol::ListRequest list;
  if (!ReadWhole(&list)) return Malformed(context, "such a request");
  if (list.entry_count_max == 0) {
    return Fail(context, Invalid("List of 0 entries at most; ask for 1 to " +
                                 std::to_string(protocol::kBlocksPerTurnMax)));
  }
  const uint32_t entry_count_max = std::min(list.entry_count_max, protocol::kBlocksPerTurnMax);
  if (list.group_handle != 0) {
    keys_.group_handle = list.group_handle;
    if (const Status resolved = ResolveGroup(context); !resolved.ok()) {
      return Fail(context, resolved);
    }
  }
  list.group_handle = group_index_;
  if (*budget_blocks == 0) return Outcome::kMore;
  *budget_blocks = 0;
  if (next_ > 0) list.cursor = list_.cursor;
  list.entry_count_max = entry_count_max - static_cast<uint32_t>(list_entries_.size());
  std::vector<protocol::ListEntry> step;
  const Status status = store.operators().List(context.session, list, &list_, &step);
  if (!status.ok()) return Fail(context, status);
  list_entries_.insert(list_entries_.end(), step.begin(), step.end());
  list_.entry_count = static_cast<uint32_t>(list_entries_.size());
  next_ += kListBlocksMax;
  const bool is_more = list_.cursor != 0 && next_ < protocol::kBlocksPerTurnMax &&
                       list_.entry_count < entry_count_max;
  return is_more ? Outcome::kMore : Finish(context);
}

// Reads the next entries and the checksums that belong to them.
bool Request::ReadCommitStep(const protocol::CommitRequest& commit, uint32_t entry_count) {
  step_entries_.resize(entry_count);
  const size_t entries_bytes = size_t{commit.entry_count} * sizeof(protocol::CommitEntry);
  if (!body_.ReadArray(sizeof(commit) + next_ * sizeof(protocol::CommitEntry),
                       std::span(step_entries_))) {
    return false;
  }
  size_t checksum_count = 0;
  for (const protocol::CommitEntry& entry : step_entries_) {
    if ((entry.flags & protocol::kCommitHasChecksums) == 0) continue;
    if (entry.part_count > kPartsPerSpaceMax) return false;
    checksum_count += entry.part_count;
  }
  step_checksums_.resize(checksum_count);
  const size_t offset_bytes = sizeof(commit) + entries_bytes + checksums_read_ * sizeof(Checksum);
  if (!body_.ReadArray(offset_bytes, std::span(step_checksums_))) return false;
  const bool is_last = next_ + entry_count == commit.entry_count;
  return !is_last || offset_bytes + checksum_count * sizeof(Checksum) == body_.size_bytes();
}

// The first of the step's entries have been answered.
void Request::PassCommitted(uint32_t entry_count) {
  next_ += entry_count;
  for (const protocol::CommitEntry& entry : std::span(step_entries_).first(entry_count)) {
    if ((entry.flags & protocol::kCommitHasChecksums) != 0) checksums_read_ += entry.part_count;
  }
}

Request::Outcome Request::StepCommit(const RequestContext& context, Store& store,
                                     uint32_t* budget_blocks) {
  protocol::CommitRequest commit;
  if (!body_.Read(0, &commit)) return Malformed(context, "its head");
  if ((commit.flags & ~protocol::kCommitRelease) != 0) {
    return Fail(context, Invalid("commit flags " + std::to_string(commit.flags) +
                                 "; only 1 (release) is defined"));
  }
  if (const Status checked = CheckHints(verb_, commit.hints, &why_); !checked.ok()) {
    return Fail(context, checked);
  }
  const bool is_release = (commit.flags & protocol::kCommitRelease) != 0;
  do {
    if (*budget_blocks == 0) return Outcome::kMore;
    const uint32_t entry_count =
        std::min({commit.entry_count - next_, *budget_blocks, protocol::kBlocksPerTurnMax});
    if (!ReadCommitStep(commit, entry_count)) {
      return Malformed(context, std::to_string(commit.entry_count) + " entries and checksums");
    }
    const bool is_last = next_ + entry_count == commit.entry_count;
    protocol::CommitRequest part = commit;
    part.entry_count = entry_count;
    part.flags = is_last && is_release ? protocol::kCommitRelease : 0;
    if (next_ > 0) part.hints.by_verb = 0;  // counted with the first step
    const Status status =
        store.storing().Commit(context.session, part, step_entries_, step_checksums_, &commit_);
    if (!status.ok()) return Fail(context, status);
    const uint32_t passed_count = static_cast<uint32_t>(commit_.entries.size()) - next_;
    *budget_blocks -= std::min(*budget_blocks, std::max(passed_count, 1u));
    if (passed_count < entry_count) *budget_blocks = 0;
    PassCommitted(passed_count);
  } while (next_ < commit.entry_count);
  return Finish(context);
}

Request::Outcome Request::StepAbort(const RequestContext& context, Store& store,
                                    uint32_t* budget_blocks) {
  protocol::AbortRequest abort;
  if (!body_.Read(0, &abort) ||
      body_.size_bytes() != sizeof(abort) + size_t{abort.key_count} * sizeof(uint32_t)) {
    return Malformed(context, "its key indexes");
  }
  do {
    if (*budget_blocks == 0) return Outcome::kMore;
    const uint32_t index_count =
        std::min({abort.key_count - next_, *budget_blocks, protocol::kBlocksPerTurnMax});
    step_indexes_.resize(index_count);
    body_.ReadArray(sizeof(abort) + next_ * sizeof(uint32_t), std::span(step_indexes_));
    *budget_blocks -= std::max(index_count, 1u);
    const Status status = store.storing().Abort(context.session, abort.token, step_indexes_,
                                                next_ == 0 ? abort.parts_refused : 0);
    if (!status.ok()) return Fail(context, status);
    next_ += index_count;
  } while (next_ < abort.key_count);
  return Finish(context);
}

Request::Outcome Request::StepReset(const RequestContext& context, Store& store,
                                    uint32_t* budget_blocks) {
  protocol::ResetRequest reset;
  if (!ReadWhole(&reset)) return Malformed(context, "such a request");
  keys_.group_handle = reset.group_handle;
  if (const Status resolved = ResolveGroup(context); !resolved.ok()) {
    return Fail(context, resolved);
  }
  if (*budget_blocks == 0) return Outcome::kMore;
  *budget_blocks = 0;
  const Status status = store.operators().Reset(context.session, group_index_, &cursor_);
  if (!status.ok()) return Fail(context, status);
  has_reset_ = true;
  return cursor_ != 0 ? Outcome::kMore : FinishErasing(context, store);
}

Request::Outcome Request::FinishErasing(const RequestContext& context, Store& store) {
  is_through_ = true;
  const Status durable = store.operators().AwaitErasures(context.session, id_);
  if (durable.code() == StatusCode::kBusy) return Outcome::kErasing;
  return durable.ok() ? Finish(context) : Fail(context, durable);
}

}  // namespace terrace
