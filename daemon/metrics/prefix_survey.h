// PrefixSurvey: walks a domain's groups and blocks for the page, some a turn of the store thread
// and at a pace, so that engines do not feel it. Whoever asks within kKeptFor of the last one is
// shown that.
//
// THREADING: the thread that runs `loop`. LIMITS: one walk at a time; those of PrefixRuns.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/metrics/prefix_runs.h"
#include "daemon/metrics/shared_question.h"
#include "daemon/telemetry/metrics.h"
#include "terrace/status.h"

namespace terrace {

class PrefixSurvey {
 public:
  static constexpr std::chrono::milliseconds kStepPace{4};
  static constexpr std::chrono::seconds kKeptFor{10};
  static constexpr uint32_t kGroupsPerTurn = 64;
  // Null: the store thread does not answer, or the blocks change faster than they are looked at.
  using Told = std::function<void(const std::string* document)>;
  using Groups = std::vector<DomainStats::GroupStats>;
  using Post = std::function<void(std::function<void()> work)>;
  // On the store thread: kGroupsPerTurn more groups of a domain from `first` on. Where to go on; 0:
  // those were the last.
  using AddGroups = std::function<uint32_t(uint32_t domain_index, uint32_t first, Groups* groups)>;
  // On the store thread: the next entries of a domain, as OperatorVerbs::ListAll.
  using Walk = std::function<Status(uint32_t domain_index, uint64_t* cursor,
                                    std::vector<protocol::ListEntry>* entries)>;

  PrefixSurvey(asio::io_context& loop, std::chrono::milliseconds patience)
      : loop_(loop), question_(loop, kStepPace, patience) {}

  void Begin(Post post, AddGroups add_groups, Walk walk);
  void Ask(uint32_t domain_index, Told told);

 private:
  // What the store thread and this one hand to each other; never touched by both.
  struct Step {
    uint32_t domain_index = 0;
    bool has_groups = false;  // all of them: blocks follow
    uint32_t next_group = 0;
    Groups groups;
    uint64_t cursor = 0;
    Status status;
    std::vector<protocol::ListEntry> entries;
  };
  struct Asked {
    uint32_t domain_index = 0;
    Told told;
  };

  void BeginNext();
  void GoOn();
  void OnStep(bool is_answered);
  void End(bool is_found, bool is_cut);

  asio::io_context& loop_;
  SharedQuestion question_;
  std::shared_ptr<Step> step_;
  std::optional<PrefixRuns> runs_;  // of the walk under way, once groups are known
  std::vector<Asked> asked_;        // the first domain's is under way
  struct Kept {
    uint32_t domain_index = 0;
    std::chrono::steady_clock::time_point at;
    std::string document;
  };
  std::vector<Kept> kept_;  // one a domain
};

}  // namespace terrace
