// RequestFrame: one message and its reply, as every verb sees them.
//
// A body that does not have the size its own counts claim is malformed: the connection cannot be
// believed any further. A count, handle or flag out of range is a bad argument: the session lives.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/block/keys_query.h"
#include "daemon/session/frame_codec.h"
#include "daemon/session/session_role.h"
#include "terrace/check.h"
#include "terrace/error.h"
#include "terrace/protocol.h"

namespace terrace {

// A SpaceGroup as one session opened it; group_handle h is entry h − 1.
struct OpenedHandle {
  uint32_t group_index = 0;
  uint64_t self_mask = 0;
  uint32_t member_count = 0;
  uint32_t part_count = 0;  // of all members together
  GroupId group;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;  // of all members
  bool is_inexact = false;   // a member's Space names a lossy codec, or is of chunks
};

// A request's view of its session.
struct RequestContext {
  SessionId session = 0;
  uint64_t boot_id = 0;
  uint32_t uid = 0;
  SessionRole role = SessionRole::kWriter;  // from Hello on
  std::vector<OpenedHandle> handles;        // grows with Open; bounded by the domain's groups_max
};

enum class RequestOutcome {
  kMore,       // step it again, in a later turn if the budget is spent
  kReply,      // the reply is ready to be cut into pages
  kSeeking,    // something is awaited elsewhere: step it when OnSeekDone has come
  kWaiting,    // a Wait that OnWaitDone will end
  kErasing,    // an Evict or Reset that has done its work; OnWaitDone says when it is durable
  kMalformed,  // the reply says why; close the connection after it
};

struct RequestFrame {
  // Refuses an argument.
  static Error Invalid(std::string sentence);
  // Answers without asking the store: a refusal, or kOk and a document.
  void Answer(const RequestContext& context, Status status, std::string text);
  RequestOutcome Malformed(const RequestContext& context, const std::string& what);
  RequestOutcome Fail(const RequestContext& context, const Error& error);
  // Begins a reply of kOk; its arrays follow.
  Reply& BeginReply(const RequestContext& context);
  // The group that `keys` are about, and whose members: its handle is looked up, a mask of 0 means
  // the session's own. Handle 0 means all groups where `may_mean_all`.
  Error ResolveGroup(const RequestContext& context, bool may_mean_all, protocol::KeysRequest* keys,
                     uint32_t* group_index);
  // What the body begins with. REQUIRES: T is the verb's head, so that its size has been checked.
  template <typename T>
  T Head() const {
    T head;
    TERRACE_CHECK(body.Read(0, &head), "the table of verbs says how long a body's head is");
    return head;
  }

  // Those of this message, as far as its session may have them.
  protocol::Hints Allowed(protocol::Hints hints) const {
    if (is_pin_dropped) hints.flags &= static_cast<uint8_t>(~protocol::kHintPin);
    return hints;
  }

  protocol::Verb verb = protocol::Verb::kHello;
  uint64_t id = 0;
  bool is_pin_dropped = false;  // its hints pin without an end, and who asks is no admin
  MessageBody body;
  Reply reply;
  std::string text;  // a refusal's sentence, or the document of Stats
};

}  // namespace terrace
