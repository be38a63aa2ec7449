// Store: the one owner of metadata, and the faces through which it is asked. Sessions ask in plain
// function calls; it answers at once from what it knows, and tells StoreListener what happens
// later. It is sans-I/O: bytes move in the tiers and in clients, time and randomness come through
// seams.h, so a seed replays exactly. Whoever needs one face takes that one.
//
// THREADING: the store thread only. No call does more than protocol::kBlocksPerTurnMax blocks;
// longer requests are continued step by step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/block/domain_options.h"
#include "daemon/block/domain_stats.h"
#include "daemon/block/seams.h"
#include "daemon/block/store_listener.h"
#include "daemon/store/copy_checks.h"
#include "daemon/store/device_verbs.h"
#include "daemon/store/introspection.h"
#include "daemon/store/invariants.h"
#include "daemon/store/lease_verbs.h"
#include "daemon/store/operator_verbs.h"
#include "daemon/store/prefix_verbs.h"
#include "daemon/store/restoration.h"
#include "daemon/store/session_verbs.h"
#include "daemon/store/statistics.h"
#include "daemon/store/store_events.h"
#include "daemon/store/storing_verbs.h"

namespace terrace {

class Store {
 public:
  Store(StoreOptions options, Clock& clock, Random& random, Offload& offload,
        StoreListener& listener);
  ~Store();

  Restoration& restoration() { return restoration_; }
  SessionVerbs& sessions() { return sessions_; }
  PrefixVerbs& prefixes() { return prefixes_; }
  StoringVerbs& storing() { return storing_; }
  LeaseVerbs& leases() { return leases_; }
  OperatorVerbs& operators() { return operators_; }
  Introspection& introspection() { return introspection_; }
  DeviceVerbs& devices() { return devices_; }
  CopyChecks& checks() { return checks_; }
  StoreEvents& events() { return events_; }

  // Work done so far, beside the blocks that requests pass: whoever bounds a turn looks at what is
  // added, in blocks. See StoreSeams::work.
  uint64_t work() const;
  // True once every domain has one populated segment (or cannot get any, with the reason logged).
  bool is_ready() const;
  // What can be tuned (CopyTunable) is from now on as these say; of as many domains.
  void Retune(const StoreOptions& tuned);
  // Before the end: no block at rest is verified any more.
  void StopScrub();
  // True if no block is being hashed or moved or waits for either, and what is below is persisted.
  bool is_settled() const;
  // True if nothing is on its way to a tier that hosts share, and nothing waits that could go.
  bool is_shared_idle() const;
  const Statistics& statistics() const { return statistics_; }
  // All that each domain says of itself.
  std::vector<DomainStats> Stats() const;
  // Aborts with the invariant's name if one of I1–I8 does not hold.
  void CheckInvariants(CheckScope scope) const;

 private:
  std::unique_ptr<StoreRooms> rooms_;
  Restoration restoration_;
  SessionVerbs sessions_;
  PrefixVerbs prefixes_;
  StoringVerbs storing_;
  LeaseVerbs leases_;
  OperatorVerbs operators_;
  Introspection introspection_;
  DeviceVerbs devices_;
  CopyChecks checks_;
  StoreEvents events_;
  Statistics statistics_;
};

}  // namespace terrace
