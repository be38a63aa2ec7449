// LeaseRequests: the verbs about a lease that its token names: Join, Commit, Abort, Release, Touch;
// and Cancel of a pending request.
//
// THREADING: the store thread. OWNERSHIP: of one Request; its reply's arrays point into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/log/trace_recorder.h"
#include "daemon/session/request_frame.h"
#include "daemon/store/store.h"

namespace terrace {

class LeaseRequests {
 public:
  explicit LeaseRequests(RequestFrame& frame) : frame_(frame) {}

  RequestOutcome Step(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  void Restart();

  size_t result_bytes() const;
  bool is_small() const;
  // The spans that answer a Join.
  std::span<const protocol::BlockSpan> spans() const { return joined_.read.spans; }
  // What a recording says of it. False for other verbs.
  bool Describe(TracedRequest* traced) const;

 private:
  Error Act(const RequestContext& context, Store& store);
  // *is_malformed: the body's size is wrong.
  Error BeginJoin(const RequestContext& context, Store& store, bool* is_malformed);
  RequestOutcome StepJoin(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  RequestOutcome StepCommit(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  bool ReadCommitStep(const protocol::CommitRequest& commit, uint32_t entry_count);
  void PassCommitted(uint32_t entry_count);
  RequestOutcome StepAbort(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  RequestOutcome Finish(const RequestContext& context);

  RequestFrame& frame_;
  uint32_t next_ = 0;          // commit entry or abort index
  size_t checksums_read_ = 0;  // of Commit

  // Answers as they grow; the reply's arrays point into them.
  JoinResult joined_;
  CommitResult commit_;

  // Scratch of one step; its capacity stays.
  std::vector<protocol::CommitEntry> step_entries_;
  std::vector<Checksum> step_checksums_;
  std::vector<uint32_t> step_indexes_;

  std::optional<JoinOperation> join_;  // under way; it fills in joined_, so it goes first
};

}  // namespace terrace
