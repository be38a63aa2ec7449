// What a scrape costs the store thread: a turn that copies a domain's figures, at the documented
// limits: groups that were asked all the time, sessions that reported their copies, tiers below.
// Processor time, so that other processes do not count.
//
//   metrics_bench [GROUPS [SESSIONS [ROUNDS]]]      defaults: 256 1024 2001
//
// Told: the middle one of the rounds and the longest. Exits with 1 if the middle one of a turn of
// kDomainsPerTurn domains, of which the first has it all, is above 200 microseconds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "bench/no_seams.h"
#include "daemon/shell/daemon_figures.h"
#include "daemon/store/store.h"
#include "daemon/telemetry/metrics.h"
#include "sim/memory_tier.h"
#include "tiers/arena/slot_table.h"

namespace terrace {
namespace {

constexpr double kTurnUsMax = 200;
constexpr uint64_t kSegmentBytes = 2 * kMiB;
constexpr uint32_t kSegments = 8;
constexpr uint32_t kAskedBlocks = 64;

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "metrics_bench: %s\n", what.c_str());
  std::exit(2);
}

double ProcessorUs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

class World {
 public:
  explicit World(uint32_t domain_count) : arenas_(domain_count) {
    StoreOptions options;
    options.segments_total = kSegments * domain_count;
    options.groups_max = 65'536;
    options.fenced_bytes_max = kGiB;
    options.sessions = {
        .sessions_max = 65'536, .sessions_per_uid_max = 65'536, .sessions_per_process_max = 65'536};
    for (uint32_t d = 0; d < domain_count; ++d) {
      slot_tables_.emplace_back(SlotTableBytes(kSegmentBytes, kSegments));
      tiers_.push_back(std::make_unique<sim::MemoryTier>(sim::MemoryTier::Options{}));
      options.domains.push_back({.name = std::to_string(d),
                                 .segment_bytes = kSegmentBytes,
                                 .segments_max = kSegments,
                                 .arena = &arenas_[d],
                                 .slot_table = slot_tables_[d],
                                 .lower_tiers = {tiers_[d].get()}});
    }
    store_ = std::make_unique<Store>(options, clock_, random_, offload_, listener_);
  }

  // Each session has its device's report, and asks for blocks of one of the groups.
  void Fill(uint32_t group_count, uint32_t session_count) {
    for (uint32_t s = 0; s < session_count; ++s) {
      const SessionId id = s + 1;
      Check(store_->sessions().Open({.id = id, .domain_index = 0, .uid = 1}).ok(), "a session");
      Check(store_->devices().Report(id, {.pinned_bytes = 1}).ok(), "a report");
    }
    for (uint32_t g = 0; g < group_count; ++g) {
      SpaceGroupSpec group = OneMember(4096);
      group.name = std::string(100, 'g') + std::to_string(g);
      group.members[0].spec.model = group.name;
      Ask(1 + g % session_count, group);
    }
  }
  const Store& store() const { return *store_; }

 private:
  void Ask(SessionId session, const SpaceGroupSpec& group) {
    OpenedGroup opened;
    const Error error = store_->sessions().OpenGroup(session, group, &opened);
    Check(error.ok(), "a group: " + error.sentence());
    std::vector<BlockKey> keys;
    for (uint64_t i = 0; i < kAskedBlocks; ++i) keys.push_back({.low = i + 1, .high = session});
    KeysQuery query{.session = session, .group_index = opened.group_index, .keys = keys};
    query.request_id = ++last_request_;
    query.key_count_of_request = kAskedBlocks;
    AcquireResult answer;
    AcquireOperation operation = store_->prefixes().Acquire(&answer);
    Check(operation.Step(query).ok(), "an answer");
  }

  StepClock clock_;
  NoRandom random_;
  NoOffload offload_;
  NoListener listener_;
  std::vector<NoArena> arenas_;
  std::vector<std::vector<std::byte>> slot_tables_;
  std::vector<std::unique_ptr<sim::MemoryTier>> tiers_;
  std::unique_ptr<Store> store_;
  uint64_t last_request_ = 0;
};

int Main(uint32_t group_count, uint32_t session_count, uint32_t round_count) {
  World world(DaemonFigures::kDomainsPerTurn);
  world.Fill(group_count, session_count);
  std::vector<double> took_us;
  Snapshot snapshot;
  snapshot.domains.resize(DaemonFigures::kDomainsPerTurn);
  for (uint32_t round = 0; round < round_count; ++round) {
    const double began_us = ProcessorUs();
    for (uint32_t d = 0; d < snapshot.domains.size(); ++d) {
      FillDomain(world.store(), d, &snapshot.domains[d]);
    }
    took_us.push_back(ProcessorUs() - began_us);
  }
  Check(snapshot.domains[0].stats.hits.blocks_asked == uint64_t{group_count} * kAskedBlocks,
        "the figures are not those of what was asked");
  std::ranges::sort(took_us);
  const double middle_us = took_us[took_us.size() / 2];
  std::printf(
      "%u groups, %u sessions, %zu domains: %.1f us a scrape (middle of %u), longest %.1f\n",
      group_count, session_count, snapshot.domains.size(), middle_us, round_count, took_us.back());
  return middle_us <= kTurnUsMax ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const auto argument = [&](int i, uint32_t otherwise) {
    return argc > i ? static_cast<uint32_t>(std::atoi(argv[i])) : otherwise;
  };
  return terrace::Main(argument(1, 256), argument(2, 1024), argument(3, 2001));
}
