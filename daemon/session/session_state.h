// What SessionTable keeps of one session: for its own sources alone.
//
// THREADING: store thread. OWNERSHIP: SessionTable's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/log/slow_log.h"
#include "daemon/session/frame_codec.h"
#include "daemon/session/peer_identity.h"
#include "daemon/session/request.h"
#include "daemon/session/session.h"
#include "daemon/session/transport.h"
#include "terrace/protocol.h"

namespace terrace {

struct SessionTable::Session {
  PeerIdentity peer;
  std::string client_name;
  RequestContext context;
  bool is_open = false;    // Hello was answered, the store knows it
  bool is_closed = false;  // the connection is gone
  bool is_gone = false;    // and nothing of it needs to be proven
  bool is_ready = false;   // its id is in ready_
  bool is_dirty = false;   // its id is in dirty_
  bool is_paused = false;  // the transport waits for ResumeInput

  FrameAssembler frames;
  std::vector<std::byte> backlog;  // input that a turn's budget left over
  std::unique_ptr<Request> request;
  uint64_t came_us = 0;        // when the input that is worked off was read
  SlowRequest timed;           // the request under way, or last answered
  bool is_awaited = false;     // it goes on, or has ended, as an Awaited
  bool is_replied = false;     // its answer is made, and not known to have left
  bool is_seeking = false;     // its request waits for OnSeekDone
  bool is_replying = false;    // its reply is being cut into pages
  bool is_last_reply = false;  // close after it

  struct Awaited {
    SlowRequest request;
    // What is coming, in prefix order: the block behind it, and the phase until then.
    std::vector<std::pair<uint32_t, RequestPhase>> spans;
  };
  // Requests that news will follow, and what the time of those that were answered goes to.
  struct Pending {
    uint64_t id = 0;
    std::unique_ptr<Awaited> awaited;
  };
  std::vector<Pending> pending;
  struct Erasing {
    uint64_t request_id = 0;
    protocol::Verb verb = protocol::Verb::kEvict;
    protocol::EvictReply evicted;
  };
  std::vector<Erasing> erasing;  // their answer is known, but not yet durable
  bool is_checking = false;      // an Fsck is under way

  std::vector<std::byte> output;
  std::vector<std::byte> held;  // news that waits for the reply under way
  Transport::Attach attach = Transport::Attach::kNothing;
  bool has_device = false;    // DeviceAttach was answered
  uint64_t unsent_bytes = 0;  // when it last sent
  size_t buffered_bytes = 0;  // what Account() last counted

  bool has_work() const { return request != nullptr || !backlog.empty(); }
  // The store is or will be asked for its request, which awaits nothing but its turn.
  bool is_working() const { return request != nullptr && !is_seeking && !is_replying; }
  bool may_work() const { return has_work() && !is_seeking; }
  bool is_pending(uint64_t id) const {
    return std::ranges::find(pending, id, &Pending::id) != pending.end();
  }
  // What it awaited, if it was answered before.
  std::unique_ptr<Awaited> EndPending(uint64_t id) {
    const auto found = std::ranges::find(pending, id, &Pending::id);
    if (found == pending.end()) return nullptr;
    std::swap(*found, pending.back());
    std::unique_ptr<Awaited> awaited = std::move(pending.back().awaited);
    pending.pop_back();
    return awaited;
  }
};

}  // namespace terrace
