// RoomWaits: Reserves that wait for memory which is being populated, rather than have others'
// blocks evicted or store nothing while there is more to come. Each is told once, by OnSeekDone:
// memory came (or will not), or its time is over.
//
// THREADING: store thread. LIMITS: a session has one request under way, so one entry each.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/block/cache_domain.h"

namespace terrace {

class RoomWaits {
 public:
  explicit RoomWaits(CacheDomain& domain) : d_(domain) {}

  void Await(SessionId session, uint64_t request_id, uint64_t until_us);
  // A segment was populated, or could not be.
  void Wake();
  void OnDeadline(uint32_t id);

 private:
  struct Wait {
    SessionId session = 0;
    uint64_t request_id = 0;
    uint32_t id = 0;
    uint32_t deadline = kHandleNone;
  };

  CacheDomain& d_;
  std::vector<Wait> waits_;  // first come, first told
  uint32_t next_id_ = 0;
};

}  // namespace terrace
