// How a Client's verb becomes a CallSpec: what the user passed is checked and put into a message,
// deadlines become absolute, and a lease's state is made for the answer to fill in.
//
// THREADING: any thread. Everything here may throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "client/core/calls.h"
#include "client/core/core.h"
#include "client/session/group.h"
#include "terrace/client.h"
#include "terrace/protocol.h"

namespace terrace::client {

// GroupRef::index for Evict and Pin: every group of the domain.
inline constexpr uint32_t kEveryGroup = 0xFFFFFFFF;

// Now and `relative_us`, on CLOCK_MONOTONIC; kNever at the latest.
uint64_t After(uint64_t relative_us);

// A request about keys while it is built: its message points into it and to the caller's keys.
struct KeysCall {
  CallSpec spec;
  protocol::TouchRequest touch;
  protocol::KeysRequest request;
  const Group* group = nullptr;
};

// The group of `ref`, and the handle by which the present connection names it. kInvalid if there is
// no such group; kGone while not connected. REQUIRES: the verb is in call->spec.asked.
Status SetGroup(Core& core, GroupRef ref, KeysCall* call);

// A verb about keys, of Acquire and Reserve with the lease they fill in. kInvalid for what the
// user passed, kGone while not connected.
Status FillKeys(Core& core, GroupRef ref, std::span<const BlockKey> keys,
                const RequestOptions& options, protocol::Verb verb, KeysCall* call);

// False in *must_send if there is nothing to say.
Status FillCommit(Core& core, const std::shared_ptr<LeaseState>& lease,
                  const RequestOptions& options, CallSpec* spec, bool* must_send);

// A Join, page by page where the lease is long. `kind`: which lease the user means.
Result<std::shared_ptr<LeaseState>> JoinLease(Core& core, GroupRef ref, LeaseState::Kind kind,
                                              const protocol::JoinRequest& request);

}  // namespace terrace::client
