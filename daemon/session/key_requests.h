// KeyRequests: the verbs about keys (Match, Acquire, Prefetch, Reserve, Query, Wait, Evict, Pin,
// and Touch of keys), worked off in steps of at most kBlocksPerTurnMax blocks.
//
// THREADING: the store thread. OWNERSHIP: of one Request; its reply's arrays point into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/log/trace_recorder.h"
#include "daemon/session/request_frame.h"
#include "daemon/store/store.h"

namespace terrace {

// A spare request keeps the memory of so many results.
inline constexpr size_t kResultsKept = 8192;

// A new result that keeps the memory of its vectors.
template <typename R, typename... Vectors>
void RestartResult(R* result, Vectors... vectors) {
  R fresh;
  ((fresh.*vectors = std::move(result->*vectors), (fresh.*vectors).clear()), ...);
  *result = std::move(fresh);
}

void AddAcquired(const AcquireResult& result, Reply* reply);
void AddReserved(const ReserveResult& result, Reply* reply);

class KeyRequests {
 public:
  explicit KeyRequests(RequestFrame& frame) : frame_(frame) {}

  // The KeysRequest begins at `offset_bytes` of the body.
  RequestOutcome Begin(const RequestContext& context, size_t offset_bytes);
  RequestOutcome Step(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  void Restart();
  // Without a step: see Request::AnswerMiss.
  RequestOutcome AnswerMiss(const RequestContext& context, std::string_view no_room);

  size_t result_bytes() const;
  bool is_small() const;
  // The spans that answer an Acquire or Prefetch.
  std::span<const protocol::BlockSpan> spans() const;
  // What a recording says of it. False for other verbs.
  bool Describe(const RequestContext& context, TracedRequest* traced) const;
  // Of an Evict: what it has counted, and whether that is all.
  const protocol::EvictReply& evicted() const { return evicted_; }
  bool is_through() const { return is_through_; }
  const protocol::KeysRequest& keys() const { return keys_; }

 private:
  Error CheckKeys(const RequestContext& context);
  Error CheckReplySize();
  uint32_t KeyCost(const RequestContext& context, Store& store) const;
  void Passed(uint32_t key_count);  // keys of the last NextQuery
  KeysQuery NextQuery(const RequestContext& context, uint32_t key_count);
  Result<Progress> CallKeys(Store& store, const KeysQuery& query);
  // The operation under way; `make` makes it at the first step.
  template <typename Operation, typename Make>
  Operation& OperationOf(Make make) {
    if (Operation* const known = std::get_if<Operation>(&operation_)) return *known;
    return operation_.template emplace<Operation>(make());
  }
  Status CallQuery(Store& store, const KeysQuery& query);
  Status CallPin(Store& store, const KeysQuery& query);
  RequestOutcome FinishErasing(const RequestContext& context, Store& store);
  RequestOutcome Finish(const RequestContext& context);

  RequestFrame& frame_;
  protocol::KeysRequest keys_;
  uint32_t group_index_ = kAllGroups;
  size_t keys_offset_bytes_ = 0;
  uint32_t next_ = 0;         // next key
  uint64_t seek_end_us_ = 0;  // of all its Seeks
  bool is_sought_ = false;    // the keys of this step
  bool stays_ = false;        // an Evict is not through with the keys of its last step
  bool wants_ready_ = false;  // an Acquire without slots that has not begun
  bool is_through_ = false;   // an Evict

  // Answers as they grow; the reply's arrays point into them.
  AcquireResult acquire_;
  PrefixMatch match_;
  ReserveResult reserve_;
  std::vector<protocol::QueriedBlock> queried_;
  protocol::EvictReply evicted_;
  protocol::PinReply pinned_;

  // Scratch of one step; its capacity stays.
  std::vector<BlockKey> step_keys_;
  std::vector<uint64_t> step_events_;

  // Under way; it fills in the answer of its verb, so it goes first.
  std::variant<std::monostate, MatchOperation, AcquireOperation, PrefetchOperation,
               ReserveOperation, WaitOperation, EvictOperation>
      operation_;
};

}  // namespace terrace
