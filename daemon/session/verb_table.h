// The one table of verbs: number, name, what a request's body and its answer begin with, who may
// want it and who works it off. Frames are checked, requests dispatched, names told and fuzzed by
// it; a test holds docs/PROTOCOL.md to it. What daemons send unasked is not in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "daemon/block/domain_stats.h"
#include "terrace/protocol.h"

namespace terrace {

enum class VerbRole : uint8_t {
  kEngine,    // what serving a prompt takes
  kOperator,  // looking at the cache, and ruling over it
};

// Who works a request off.
enum class VerbWorker : uint8_t {
  kTable,     // SessionTable itself
  kKeys,      // KeyRequests
  kLeases,    // LeaseRequests
  kClient,    // ClientRequests
  kOperator,  // OperatorRequests
};

struct VerbRow {
  protocol::Verb verb = protocol::Verb::kHello;
  std::string_view name;
  VerbRole role = VerbRole::kEngine;
  VerbWorker worker = VerbWorker::kTable;
  size_t head_bytes = 0;  // what a request's body begins with
  bool has_tail = false;  // more may follow; else the head is all of it
  // What an answer of kOk begins with, behind ReplyPrefix; 0: arrays, text, nothing, or one of two.
  size_t reply_bytes = 0;
  // What a message costs a turn beside its keys, in blocks: bounds the messages of one turn.
  uint32_t message_blocks = 16;
  uint32_t key_flags = 0;             // that a request about keys may have
  bool has_news = false;              // news may follow the reply under the same request id
  std::optional<TimedVerb> timed_as;  // for metrics
};

// In the order of their numbers, which begin at 1; some are not given yet.
std::span<const VerbRow> VerbTable();
// Null: none that a client sends.
const VerbRow* FindVerb(protocol::Verb verb);
std::string_view VerbName(protocol::Verb verb);

}  // namespace terrace
