// A whole host under simulation: two domains on one Store behind real sessions, lower tiers that fail,
// and a handful of processes that store, load, stop, die and lie. One seed decides everything; the
// trace hash covers every event and every byte the daemon sent.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/session.h"
#include "daemon/store.h"
#include "sim/fault_tier.h"
#include "sim/memory_tier.h"
#include "sim/oracle.h"
#include "sim/sim_process.h"
#include "sim/sim_seams.h"

namespace terrace::sim {

struct WorldOptions {
  uint64_t seed = 0;
  uint32_t events = 2000;
  uint32_t processes = 6;
  bool has_lower_tiers = true;
};

class World final : public SimHost {
 public:
  explicit World(const WorldOptions& options);
  ~World() override;

  // Runs every event, then lets everybody go and checks that nothing is left. Empty if all was well,
  // else the first thing that was not.
  std::string Run();
  uint64_t trace_hash() const { return trace_hash_; }
  uint64_t parts_judged() const { return oracle_.parts_judged(); }
  struct Coverage {
    uint64_t blocks_sealed = 0, blocks_evicted = 0, promotions = 0, leases_revoked = 0;
    uint64_t acquire_hits = 0, commits_gone = 0;
  };
  Coverage coverage() const;
};

}  // namespace terrace::sim
