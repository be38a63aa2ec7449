// ConditionWatch: looks at the domains in turn, and says in the log when a condition begins and
// when it ends: one line each. What it found last is there for who asks whether all is well.
//
// THREADING: store thread. LIMITS: kDomainsPerTurn domains a look; what it remembers is a line a
// condition, and one a drive.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/telemetry/conditions.h"

namespace terrace {

class ConditionWatch {
 public:
  struct Sources {
    std::function<void(uint32_t domain_index, DomainFigures* figures)> fill;
    std::function<std::optional<KvEventCounters>(uint32_t domain_index)> kv_events;
  };
  ConditionWatch(std::vector<std::string> domain_names, Sources sources);

  // Once a second.
  void Look();
  // "ok", or "degraded" and the conditions of each domain by name.
  std::string Summary() const;

 private:
  struct Told {
    Condition condition;
    uint32_t drive = 0;
    uint64_t off_count = 0;
    std::string path;
    friend bool operator==(const Told&, const Told&) = default;
  };
  struct Watched {
    std::string name;
    std::vector<Told> told;
  };
  void LookAt(uint32_t domain_index);

  const Sources from_;
  std::vector<Watched> domains_;
  DomainFigures figures_;  // keeps its memory
  uint32_t next_ = 0;
};

}  // namespace terrace
