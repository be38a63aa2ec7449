#include "daemon/session/lease_requests.h"

#include <algorithm>
#include <utility>

#include "daemon/session/hint_table.h"
#include "daemon/session/key_requests.h"
#include "terrace/check.h"
#include "terrace/protocol_join.h"

namespace terrace {

using protocol::Verb;

RequestOutcome LeaseRequests::Step(const RequestContext& context, Store& store,
                                   uint32_t* budget_blocks) {
  switch (frame_.verb) {
    case Verb::kJoin:
      return StepJoin(context, store, budget_blocks);
    case Verb::kCommit:
      return StepCommit(context, store, budget_blocks);
    case Verb::kAbort:
      return StepAbort(context, store, budget_blocks);
    default:
      break;
  }
  if (frame_.verb == Verb::kTouch && frame_.body.size_bytes() != sizeof(protocol::TouchRequest)) {
    return frame_.Malformed(context, "such a request");
  }
  const Error error = Act(context, store);
  return error.ok() ? Finish(context) : frame_.Fail(context, error);
}

Error LeaseRequests::Act(const RequestContext& context, Store& store) {
  if (frame_.verb == Verb::kRelease) {
    const auto release = frame_.Head<protocol::ReleaseRequest>();
    TERRACE_RETURN_IF_REFUSED(CheckHints(frame_.verb, release.hints));
    return store.leases().Release(context.session, release);
  }
  if (frame_.verb == Verb::kCancel) {
    const uint64_t request_id = frame_.Head<protocol::CancelRequest>().request_id;
    return store.leases().Cancel(context.session, request_id);
  }
  return store.leases().Renew(context.session, frame_.Head<protocol::TouchRequest>().token);
}

RequestOutcome LeaseRequests::Finish(const RequestContext& context) {
  Reply& reply = frame_.BeginReply(context);
  if (frame_.verb == Verb::kJoin) {
    joined_.is_write ? AddReserved(joined_.write, &reply) : AddAcquired(joined_.read, &reply);
  } else if (frame_.verb == Verb::kCommit) {
    reply.AddHead(commit_.reply);
    reply.AddArray(std::span<const StatusCode>(commit_.entries));
  }
  return RequestOutcome::kReply;
}

void LeaseRequests::Restart() {
  join_.reset();
  next_ = 0;
  checksums_read_ = 0;
  RestartResult(&joined_.read, &AcquireResult::spans, &AcquireResult::slots);
  RestartResult(&joined_.write, &ReserveResult::keys, &ReserveResult::slots);
  RestartResult(&commit_, &CommitResult::entries);
}

size_t LeaseRequests::result_bytes() const {
  const auto bytes_of = [](const auto&... vectors) {
    return ((vectors.capacity() * sizeof(vectors[0])) + ...);
  };
  return bytes_of(joined_.read.slots, joined_.read.spans, joined_.write.keys, joined_.write.slots,
                  commit_.entries);
}

bool LeaseRequests::is_small() const {
  return std::max({joined_.read.slots.capacity(), joined_.write.slots.capacity(),
                   commit_.entries.capacity()}) <= kResultsKept;
}

// Reads the request, and what it joins, before its first step.
Error LeaseRequests::BeginJoin(const RequestContext& context, Store& store, bool* is_malformed) {
  auto join = frame_.Head<protocol::JoinRequest>();
  protocol::JoinPage page;
  const size_t tail_bytes = frame_.body.size_bytes() - sizeof(join);
  *is_malformed =
      tail_bytes != 0 && (tail_bytes != sizeof(page) || !frame_.body.Read(sizeof(join), &page));
  if (*is_malformed) return Status(StatusCode::kInvalid);
  constexpr uint32_t kFlags =
      protocol::kAcquireByParts | protocol::kAcquireDevice | protocol::kJoinPaged;
  if ((join.flags & ~kFlags) != 0) {
    return frame_.Invalid("flags " + std::to_string(join.flags) + "; Join allows " +
                          std::to_string(kFlags));
  }
  if (page.first_block > protocol::kKeysPerRequestMax) {
    return frame_.Invalid("a page from block " + std::to_string(page.first_block) +
                          "; a lease has at most " + std::to_string(protocol::kKeysPerRequestMax));
  }
  protocol::KeysRequest asked{.group_handle = join.group_handle, .member_mask = join.member_mask};
  TERRACE_RETURN_IF_REFUSED(frame_.ResolveGroup(context, false, &asked, &join.group_handle));
  join.member_mask = asked.member_mask;
  Result<JoinOperation> begun = store.leases().Join({.session = context.session,
                                                     .request_id = frame_.id,
                                                     .request = join,
                                                     .first_block = page.first_block},
                                                    &joined_);
  if (!begun.ok()) return begun.status();
  if (joined_.is_write && context.role == SessionRole::kReader) {
    return {StatusCode::kUnsupported, RefusalOfReader("Join of a write lease", context.uid)};
  }
  join_.emplace(std::move(*begun));
  return {};
}

RequestOutcome LeaseRequests::StepJoin(const RequestContext& context, Store& store,
                                       uint32_t* budget_blocks) {
  if (!join_) {
    bool is_malformed = false;
    const Error begun = BeginJoin(context, store, &is_malformed);
    if (is_malformed) return frame_.Malformed(context, "such a request");
    if (!begun.ok()) return frame_.Fail(context, begun);
  }
  if (*budget_blocks == 0) return RequestOutcome::kMore;
  *budget_blocks = 0;
  const Result<Progress> stepped = join_->Step();
  if (!stepped.ok()) return frame_.Fail(context, stepped.status());
  return *stepped == Progress::kDone ? Finish(context) : RequestOutcome::kMore;
}

// Reads the next entries and the checksums that belong to them.
bool LeaseRequests::ReadCommitStep(const protocol::CommitRequest& commit, uint32_t entry_count) {
  step_entries_.resize(entry_count);
  const size_t entries_bytes = size_t{commit.entry_count} * sizeof(protocol::CommitEntry);
  if (!frame_.body.ReadArray(sizeof(commit) + next_ * sizeof(protocol::CommitEntry),
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
  if (!frame_.body.ReadArray(offset_bytes, std::span(step_checksums_))) return false;
  const bool is_last = next_ + entry_count == commit.entry_count;
  return !is_last || offset_bytes + checksum_count * sizeof(Checksum) == frame_.body.size_bytes();
}

// The first of the step's entries have been answered.
void LeaseRequests::PassCommitted(uint32_t entry_count) {
  TERRACE_CHECK(entry_count <= step_entries_.size(), "no more entries pass than were given");
  next_ += entry_count;
  for (const protocol::CommitEntry& entry : std::span(step_entries_).first(entry_count)) {
    if ((entry.flags & protocol::kCommitHasChecksums) != 0) checksums_read_ += entry.part_count;
  }
}

RequestOutcome LeaseRequests::StepCommit(const RequestContext& context, Store& store,
                                         uint32_t* budget_blocks) {
  const auto commit = frame_.Head<protocol::CommitRequest>();
  if ((commit.flags & ~protocol::kCommitRelease) != 0) {
    return frame_.Fail(context, frame_.Invalid("commit flags " + std::to_string(commit.flags) +
                                               "; only 1 (release) is defined"));
  }
  if (const Error checked = CheckHints(frame_.verb, commit.hints); !checked.ok()) {
    return frame_.Fail(context, checked);
  }
  const bool is_release = (commit.flags & protocol::kCommitRelease) != 0;
  do {
    if (*budget_blocks == 0) return RequestOutcome::kMore;
    const uint32_t entry_count =
        std::min({commit.entry_count - next_, *budget_blocks, protocol::kBlocksPerTurnMax});
    if (!ReadCommitStep(commit, entry_count)) {
      return frame_.Malformed(context,
                              std::to_string(commit.entry_count) + " entries and checksums");
    }
    const bool is_last = next_ + entry_count == commit.entry_count;
    protocol::CommitRequest part = commit;
    part.hints = frame_.Allowed(commit.hints);
    part.entry_count = entry_count;
    part.flags = is_last && is_release ? protocol::kCommitRelease : 0;
    if (next_ > 0) part.hints.by_verb = 0;  // counted with the first step
    const Status status =
        store.storing().Commit(context.session, part, step_entries_, step_checksums_, &commit_);
    if (!status.ok()) return frame_.Fail(context, status);
    const uint32_t passed_count = static_cast<uint32_t>(commit_.entries.size()) - next_;
    *budget_blocks -= std::min(*budget_blocks, std::max(passed_count, 1u));
    if (passed_count < entry_count) *budget_blocks = 0;
    PassCommitted(passed_count);
  } while (next_ < commit.entry_count);
  return Finish(context);
}

RequestOutcome LeaseRequests::StepAbort(const RequestContext& context, Store& store,
                                        uint32_t* budget_blocks) {
  const auto abort = frame_.Head<protocol::AbortRequest>();
  if (frame_.body.size_bytes() != sizeof(abort) + size_t{abort.key_count} * sizeof(uint32_t)) {
    return frame_.Malformed(context, "its key indexes");
  }
  do {
    if (*budget_blocks == 0) return RequestOutcome::kMore;
    const uint32_t index_count =
        std::min({abort.key_count - next_, *budget_blocks, protocol::kBlocksPerTurnMax});
    step_indexes_.resize(index_count);
    const bool has_indexes =
        frame_.body.ReadArray(sizeof(abort) + next_ * sizeof(uint32_t), std::span(step_indexes_));
    TERRACE_CHECK(has_indexes, "the body was compared with its count: no index is a step's before");
    *budget_blocks -= std::max(index_count, 1u);
    const Status status = store.storing().Abort(context.session, abort.token, step_indexes_,
                                                next_ == 0 ? abort.parts_refused : 0);
    if (!status.ok()) return frame_.Fail(context, status);
    next_ += index_count;
  } while (next_ < abort.key_count);
  return Finish(context);
}

bool LeaseRequests::Describe(TracedRequest* traced) const {
  if (frame_.verb == Verb::kRelease) {
    const auto release = frame_.Head<protocol::ReleaseRequest>();
    traced->lease = release.token;
    traced->hints = release.hints;
    return true;
  }
  if (frame_.verb == Verb::kCommit) {
    const auto commit = frame_.Head<protocol::CommitRequest>();
    traced->lease = commit.token;
    traced->key_count = commit.entry_count;
    traced->good_count = commit_.reply.sealed_count;
    return true;
  }
  return false;
}

}  // namespace terrace
