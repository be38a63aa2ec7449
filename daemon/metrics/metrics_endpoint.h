// MetricsEndpoint: what supervisors and people ask of the daemon over HTTP: figures for Prometheus,
// health, readiness, and a page. A thread of its own listens and answers. Of the store thread it
// asks one question of each kind at a time, at a pace; figures come as a snapshot that is filled
// there and told here, those of the page, which are dearer, as one of their own. Nothing that goes
// wrong here stops the daemon, or holds it up.
//
// THREADING: Serve and EndServing on the store thread, Trouble anywhere; the rest where it is made.
// LIMITS: HttpLimits; a Snapshot each kSnapshotPace, a PageSnapshot of each domain each kPagePace.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/metrics/prefix_survey.h"
#include "daemon/telemetry/metrics.h"

namespace terrace {

// What the store thread answers.
struct MetricsSource {
  // Has the store thread do this in a turn of its own; from any thread.
  std::function<void(std::function<void()> work)> post;
  std::vector<std::string> domain_names;
  // The following are called in such turns.
  // Fills some of it from a step on, which is 0 at first; the next step, or 0: it is whole.
  std::function<uint32_t(Snapshot* snapshot, uint32_t step)> fill;
  std::function<void(uint32_t domain_index, PageSnapshot* page)> fill_page;
  std::function<bool()> is_ready;
  std::function<std::string()> health;  // "ok", or which conditions of which domains hold
  PrefixSurvey::AddGroups add_groups;
  PrefixSurvey::Walk walk;
};

class MetricsEndpoint {
 public:
  // Where figures are asked for; a socket that listens already takes the place of an address.
  struct Options {
    MetricsConfig config;
    int passed_fd = -1;
  };
  static constexpr std::chrono::milliseconds kSnapshotPace{100};
  static constexpr std::chrono::milliseconds kPagePace{250};
  // The store thread answers within microseconds; after this it does not answer.
  static constexpr std::chrono::milliseconds kStorePatience{1'000};

  // Begins to listen. An address that cannot be had is logged, and tried again.
  explicit MetricsEndpoint(Options options);
  // REQUIRES: the store thread runs no more turns.
  ~MetricsEndpoint();

  // From now on the store thread can be asked; before, the daemon is starting.
  void Serve(MetricsSource source);
  // The daemon is stopping.
  void EndServing();
  // Why nobody can ask now, and where; empty: it listens. From any thread.
  std::string Trouble() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
