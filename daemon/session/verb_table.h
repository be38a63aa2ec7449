// The one table of verbs: number, what a request's body and its answer begin with, who may want it
// and who works it off. Frames are checked, requests dispatched and fuzzed by it; a test holds
// docs/PROTOCOL.md to it. What daemons send unasked is not in it. Names: include/src/verb_names.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "daemon/block/domain_stats.h"
#include "daemon/session/message_body.h"
#include "terrace/protocol.h"

namespace terrace {

enum class VerbRole : uint8_t {
  kEngine,    // what serving a prompt takes
  kOperator,  // looking at the cache, and at single blocks
  kAdmin,     // ruling over what others have: for admins alone, as far as VerbRow::rules says
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
  VerbRole role = VerbRole::kEngine;
  VerbWorker worker = VerbWorker::kTable;
  // Of kAdmin: whether this request rules, or only looks, or concerns its own blocks. Null: any
  // does. REQUIRES: the body is as long as the row says.
  bool (*rules)(const MessageBody& body) = nullptr;
  // Of kAdmin: everybody may where the configuration names no admins, as before there were any.
  bool is_open_unless_named = false;
  bool stores = false;  // for writers alone
  // Whether this request says what becomes of blocks, others' too: not for readers, but for admins
  // among them. Null: none does. REQUIRES: as `rules`.
  bool (*decides)(const MessageBody& body) = nullptr;
  // Whether its hints pin without an end. Null: none does. REQUIRES: as `rules`.
  bool (*pins)(const MessageBody& body) = nullptr;
  size_t head_bytes = 0;  // what a request's body begins with
  bool has_tail = false;  // more may follow; else the head is all of it
  // What an answer of kOk begins with, behind ReplyPrefix; 0: arrays, text, nothing, or one of two.
  size_t reply_bytes = 0;
  // What a message costs a turn beside its keys, in blocks: bounds the messages of one turn.
  uint32_t message_blocks = 16;
  uint32_t key_flags = 0;             // that a request about keys may have
  bool has_news = false;              // news may follow the reply under the same request id
  bool takes_new = false;             // a domain that is drained or bypassed does not serve it
  std::optional<TimedVerb> timed_as;  // for metrics
};

// In the order of their numbers, which begin at 1.
std::span<const VerbRow> VerbTable();
// Null: none that a client sends.
const VerbRow* FindVerb(protocol::Verb verb);
// Whether the request is for admins alone. REQUIRES: as VerbRow::rules.
bool IsForAdmins(const VerbRow& row, const MessageBody& body);
// Whether the request is not for readers.
bool IsForWriters(const VerbRow& row, const MessageBody& body);
// Whether the request's hints pin blocks without an end.
bool PinsForGood(const VerbRow& row, const MessageBody& body);
std::string_view VerbName(protocol::Verb verb);

}  // namespace terrace
