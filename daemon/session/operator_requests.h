// OperatorRequests: the verbs with which a person looks at the cache and rules over it, beside
// those about keys: List, Reset, HitRate, Explain, EvictWhere, NamedPin.
//
// THREADING: the store thread. OWNERSHIP: of one Request; its reply's arrays point into it.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "daemon/session/request_frame.h"
#include "daemon/store/store.h"

namespace terrace {

class OperatorRequests {
 public:
  explicit OperatorRequests(RequestFrame& frame) : frame_(frame) {}

  RequestOutcome Step(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  void Restart();

  // Of an EvictWhere, or as far as blocks go of a Reset: what has left so far.
  const protocol::EvictReply& evicted() const { return evicted_; }
  // Of a NamedPin, once it is answered.
  const NamedPinResult& pinned() const { return pinned_; }
  // Of a Reset: it has erased something; that was all, of an EvictWhere too; of which group.
  bool has_reset() const { return has_reset_; }
  bool has_filtered() const { return has_filtered_; }  // an EvictWhere that was not refused
  bool is_through() const { return is_through_; }
  uint32_t group_handle() const { return group_handle_; }

 private:
  Error BeginList(const RequestContext& context, Store& store, protocol::ListRequest list);
  RequestOutcome StepList(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  RequestOutcome StepReset(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  RequestOutcome StepHitRate(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  RequestOutcome StepExplain(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  RequestOutcome StepEvictWhere(const RequestContext& context, Store& store,
                                uint32_t* budget_blocks);
  RequestOutcome StepNamedPin(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  RequestOutcome FinishErasing(const RequestContext& context, Store& store, ErasureReach reach);
  RequestOutcome Finish(const RequestContext& context);

  RequestFrame& frame_;
  uint32_t group_index_ = kAllGroups;
  uint32_t group_handle_ = 0;
  uint32_t next_ = 0;  // next key
  bool has_reset_ = false;
  bool has_filtered_ = false;
  bool is_through_ = false;
  bool has_ended_ = false;  // of Explain: the chain, before its last key

  // Answers as they grow; the reply's arrays point into them.
  ListResult list_;
  std::vector<protocol::HitRateRow> hit_rate_rows_;
  ExplainResult explained_;
  protocol::EvictReply evicted_;
  NamedPinResult pinned_;
  std::vector<BlockKey> step_keys_;  // scratch of one step

  // Under way; it fills in the answer of its verb, so it goes first.
  std::variant<std::monostate, ListOperation, ResetOperation, ExplainOperation, EvictWhereOperation>
      operation_;
};

}  // namespace terrace
