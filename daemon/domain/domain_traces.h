// DomainTraces: the recorders of all domains, as the configuration wants them.
//
// THREADING: store thread.
#pragma once

#include <memory>
#include <vector>

#include "daemon/block/seams.h"
#include "daemon/config/config.h"
#include "daemon/log/trace_recorder.h"
#include "daemon/session/session.h"

namespace terrace {

class DomainTraces {
 public:
  // `clock` outlives it.
  DomainTraces(const DaemonConfig& config, const Clock& clock);
  // None where nothing may be recorded. They are not to be called once this is gone.
  SessionTable::TraceHooks Hooks();

 private:
  const Clock& clock_;
  std::vector<std::unique_ptr<TraceRecorder>> recorders_;  // one a domain, or none at all
};

}  // namespace terrace
