// SessionVerbs: sessions as the store knows them: they open groups, hold memory mapped, hang up,
// and end once their process is proven dead.
//
//   Open ─► OpenGroup … ─► HangUp (leases revoked, slots fenced) ─► ProofOfDeath (fences fall)
//
// THREADING: the store thread. LIMITS: those of SessionQuota.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/block/domain_options.h"
#include "daemon/block/store_listener.h"
#include "terrace/error.h"
#include "terrace/protocol.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

struct OpenedGroup {
  uint32_t group_index = 0;  // within the domain
  GroupId id;
  std::vector<protocol::OpenedMember> members;
};

class SessionVerbs {
 public:
  explicit SessionVerbs(StoreRooms& store) : store_(store) {}

  // kNoSpace above a limit of SessionQuota.
  Error Open(const SessionOptions& session);
  // The control connection ended: its leases are revoked, their slots fenced. False if it never was
  // told of a slot: then there is nothing to prove, and it is gone; else ProofOfDeath is to follow.
  bool HangUp(SessionId session);
  // The process cannot touch memory any more: its fences fall. Implies HangUp.
  void ProofOfDeath(SessionId session);
  // Any frame from the session: renews its leases' time to live.
  void SignOfLife(SessionId session);

  // kInvalid: the spec is, or the group is open with another; kNoSpace: groups_max are in use.
  Error OpenGroup(SessionId session, const SpaceGroupSpec& spec, OpenedGroup* opened);
  // The session has unmapped a segment that another domain wants.
  Status Unmapped(SessionId session, uint32_t segment);
  // Segments that another domain wants and this session has not unmapped.
  uint32_t SegmentsOwedBy(SessionId session) const;
  // Leases that it holds though they were revoked: it was silent, or hung up.
  uint32_t RevokedLeasesOf(SessionId session) const;

 private:
  StoreRooms& store_;
};

}  // namespace terrace
