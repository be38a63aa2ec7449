// LeaseVerbs: what sessions do with leases and blocks they know: Join, Release, Cancel, Touch,
// Renew.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>

#include "daemon/block/keys_query.h"
#include "daemon/store/verb_results.h"
#include "terrace/protocol.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

class LeaseVerbs {
 public:
  explicit LeaseVerbs(StoreRooms& store) : store_(store) {}

  // Call with the same result until is_finished. The joiner of blocks still coming gets completions
  // under its own request_id.
  Status JoinRead(SessionId session, uint64_t request_id, const protocol::JoinRequest& request,
                  AcquireResult* result);
  Status JoinWrite(SessionId session, const protocol::JoinRequest& request, ReserveResult* result);
  // Of a lease of the session's domain; kNotFound if the token names nothing.
  Result<LeaseShape> ShapeOf(SessionId session, const LeaseToken& token) const;
  Status Release(SessionId session, const protocol::ReleaseRequest& request);
  Status Cancel(SessionId session, uint64_t request_id);
  Status Touch(const KeysQuery& query);
  Status Renew(SessionId session, const LeaseToken& token);

 private:
  StoreRooms& store_;
};

}  // namespace terrace
