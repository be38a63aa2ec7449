// The room of leases by itself: a domain of one group without blocks, and everything else faked.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/deadline_heap.h"
#include "daemon/block/group.h"
#include "daemon/block/session_register.h"
#include "daemon/lease/erasure_waits.h"
#include "daemon/lease/lease_manager.h"
#include "daemon/lease/waiters.h"
#include "daemon/residency/residency.h"
#include "sim/fakes.h"
#include "tiers/arena/slot_table.h"

namespace terrace {

class LeaseWorld {
 public:
  explicit LeaseWorld(StoreOptions limits_of_test = {}) : limits(std::move(limits_of_test)) {
    residency.observers.waiting = &waiters;
    domain.groups.Put(0, std::make_unique<Group>());
  }

  SessionIndex Open(SessionId id) {
    SessionIndex index = kSessionNone;
    const Error opened = sessions.Open({.id = id, .uid = 1}, &index);
    EXPECT_TRUE(opened.ok()) << opened.sentence();
    sessions.at(index).last_sign_us = clock.NowUs();
    return index;
  }
  // What is left to do, to its end.
  void Run() {
    uint32_t budget = UINT32_MAX;
    EXPECT_FALSE(manager.Step(&budget));
    waiters.Step();
  }
  // The deadlines that are due go to the waiters; the last one's kind.
  DeadlineKind RunDeadlines() {
    Deadline due;
    while (deadlines.PopDue(clock.NowUs(), &due)) {
      if (due.kind == DeadlineKind::kPending) waiters.OnDeadline(due.id);
    }
    return due.kind;
  }

  StoreOptions limits;
  sim::VirtualClock clock;
  sim::SeededRandom random{1};
  sim::PlainOffload offload;
  sim::RecordingListener listener;
  DeadlineHeap deadlines;
  uint64_t work = 0;
  sim::PlainArena arena{kSegmentBytesMin, 1};
  std::vector<std::byte> slot_table = std::vector<std::byte>(SlotTableBytes(kSegmentBytesMin, 1));
  SessionRegister sessions{limits.sessions, 1};
  CacheDomain domain{0,
                     {.name = "a",
                      .segment_bytes = kSegmentBytesMin,
                      .segments_max = 1,
                      .arena = &arena,
                      .slot_table = slot_table},
                     limits,
                     {clock, random, offload, listener, deadlines, work}};
  Residency residency{domain};
  PendingRegister pending{domain};
  Waiters waiters{domain, residency, pending};
  ErasureWaits erasures{domain, pending, waiters};
  LeaseManager manager{domain, residency, waiters, sessions};
};

}  // namespace terrace
