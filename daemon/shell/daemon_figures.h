// DaemonFigures: gathers what the parts of the daemon have counted: for the Stats document of a
// session, and as snapshots for whoever asks over HTTP.
//
// THREADING: store thread.
#pragma once

#include <memory>
#include <string>

#include "daemon/arenas/inheritance.h"
#include "daemon/config/config.h"
#include "daemon/events/kv_event_publisher.h"
#include "daemon/metrics/metrics_endpoint.h"
#include "daemon/session/session.h"
#include "daemon/shell/condition_watch.h"
#include "daemon/shell/offload_pool.h"
#include "daemon/shell/system_seams.h"
#include "daemon/socket/socket_transport.h"
#include "daemon/store/store.h"
#include "daemon/telemetry/metrics.h"

namespace terrace {

class DaemonFigures {
 public:
  // All of them outlive it.
  struct Sources {
    const DaemonConfig& config;
    const SystemClock& clock;
    const ProcessMetrics& metrics;
    const Inheritance& inheritance;
    const SocketTransport& transport;
    const SessionTable& sessions;
    const OffloadPool& offload;
    Store& store;
    const KvEventPublisher* kv_events = nullptr;  // none: routers are told nothing
    const MetricsEndpoint* endpoint = nullptr;    // none: nobody may ask over HTTP
  };
  explicit DaemonFigures(const Sources& sources);

  // A turn's worth: FillDomains from `first_domain` on, with 0 also the process. Where to go on; 0:
  // all is there.
  uint32_t FillSome(Snapshot* snapshot, uint32_t first_domain) const;
  void FillPageOf(uint32_t domain_index, PageSnapshot* page) const;
  std::string StatsOf(uint32_t domain_index) const;
  ConditionWatch& watch() { return watch_; }
  // `post` has the store thread work.
  MetricsSource SourceOf(std::function<void(std::function<void()> work)> post) const;

 private:
  void FillProcess(ProcessSnapshot* process) const;
  std::optional<KvEventCounters> KvEventsOf(uint32_t domain_index) const;

  const Sources from_;
  ConditionWatch watch_;
};

}  // namespace terrace
