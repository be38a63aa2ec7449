// What the verbs answer, as it grows step by step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/store/prefix_walk.h"
#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_operator.h"
#include "terrace/status.h"

namespace terrace {

// The keys that an Acquire did not find.
struct AcquireMisses {
  uint32_t asked_count = 0;  // keys that were passed
  uint32_t cold_count = 0;   // of those, never seen
  bool is_rest_cold = false;
  std::optional<protocol::MissCause> cause;  // of the first that was not there
};

struct AcquireResult {
  protocol::AcquireReply reply;  // counts and token so far
  std::vector<protocol::BlockSpan> spans;
  std::vector<SlotAddress> slots;
  PrefixWalk walk;
  AcquireMisses misses;
  bool is_finished = false;  // the prefix ended: later keys cannot match
};
struct PrefixMatch {
  protocol::MatchReply reply;
  std::vector<protocol::BlockSpan> spans;
  PrefixWalk walk;
  bool is_finished = false;
};
struct ReserveResult {
  protocol::ReserveReply reply;
  std::vector<protocol::ReservedKey> keys;
  std::vector<SlotRef> slots;
  BlockKey last_key;  // parent of the next call's first key
  // The last new key found no room, and is one of a chain, or nothing may be evicted: no block is
  // made for the next one. Of a chain all later ones get none.
  bool is_out_of_space = false;
  bool is_passed_by = false;  // the policy had it pass by, and so all later ones of the chain
  // The next key has to wait for memory that is being populated: OnSeekDone follows, then the call
  // goes on with it. Until room_until_us at most; 0: the first call says when that is.
  bool awaits_room = false;
  uint64_t room_until_us = 0;
};
// One of the two is filled in, by the lease's kind.
struct JoinResult {
  bool is_write = false;
  AcquireResult read;
  ReserveResult write;
};
struct ExplainResult {
  protocol::ExplainReply reply;
  std::vector<protocol::ExplainNear> nears;
  std::vector<std::byte> members;  // as Open's body has them, if they were asked for
};
struct ListResult {
  protocol::ListReply reply;  // the cursor goes on behind the last entry
  std::vector<protocol::ListEntry> entries;
};
struct NamedPinResult {
  protocol::NamedPinReply reply;
  std::vector<protocol::NamedPinEntry> entries;
  uint32_t place = 0;            // of the pin that is set
  std::vector<uint32_t> blocks;  // of kList: the keys' so far
};
struct CommitResult {
  protocol::CommitReply reply;
  std::vector<StatusCode> entries;
};

}  // namespace terrace
