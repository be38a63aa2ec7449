// What a scrape costs the store thread: turns that copy the figures of some domains each, at the
// documented limits: a full store, groups that were all asked for, sessions that reported their
// copies, tiers below. Processor time, so that other processes do not count.
//
//   metrics_bench [GROUPS [SESSIONS [BLOCKS [ROUNDS]]]]      defaults: 256 1024 262144 2001
//
// GROUPS of each of kDomains domains; SESSIONS and BLOCKS of all of them. Told: the middle one of
// all turns and the longest, and what a whole scrape takes. Exits with 1 if the middle one is above
// 200 microseconds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <span>
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
constexpr uint32_t kDomains = 16;
constexpr uint64_t kSlotBytes = 4096;
constexpr uint32_t kMissedBlocks = 64;   // asked for behind each group's own
constexpr uint32_t kSegmentsSpare = 16;  // beside one a group, whose extents are its own

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

struct Size {
  uint32_t group_count = 0;      // of each domain
  uint32_t session_count = 0;    // of each domain
  uint32_t blocks_of_group = 0;  // each
  uint32_t round_count = 0;

  uint32_t segments() const {
    const uint64_t slot_count = uint64_t{group_count} * blocks_of_group;
    return static_cast<uint32_t>(slot_count * kSlotBytes * 17 / 16 / kSegmentBytes) + group_count +
           kSegmentsSpare;
  }
};

class World {
 public:
  explicit World(const Size& size) : arenas_(kDomains) {
    StoreOptions options;
    options.segments_total = size.segments() * kDomains;
    options.groups_max = 65'536;
    options.fenced_bytes_max = kGiB;
    options.sessions = {
        .sessions_max = 65'536, .sessions_per_uid_max = 65'536, .sessions_per_process_max = 65'536};
    for (uint32_t d = 0; d < kDomains; ++d) {
      slot_tables_.emplace_back(SlotTableBytes(kSegmentBytes, size.segments()));
      tiers_.push_back(std::make_unique<sim::MemoryTier>(sim::MemoryTier::Options{}));
      options.domains.push_back({.name = std::to_string(d),
                                 .segment_bytes = kSegmentBytes,
                                 .segments_max = size.segments(),
                                 .arena = &arenas_[d],
                                 .slot_table = slot_tables_[d],
                                 .lower_tiers = {tiers_[d].get()}});
    }
    store_ = std::make_unique<Store>(options, clock_, random_, offload_, listener_);
    for (uint32_t d = 0; d < kDomains; ++d) Fill(d, size);
  }
  const Store& store() const { return *store_; }

 private:
  // Each session has its device's report; each group has blocks, and was asked for them and more.
  void Fill(uint32_t domain, const Size& size) {
    const SessionId first = SessionId{domain} * size.session_count + 1;
    for (uint32_t s = 0; s < size.session_count; ++s) {
      Check(store_->sessions().Open({.id = first + s, .domain_index = domain, .uid = 1}).ok(),
            "a session");
      Check(store_->devices().Report(first + s, {.pinned_bytes = 1}).ok(), "a report");
    }
    for (uint32_t g = 0; g < size.group_count; ++g) {
      const SessionId session = first + g % size.session_count;
      SpaceGroupSpec group = OneMember(kSlotBytes);
      group.name = std::string(100, 'g') + std::to_string(g);
      group.members[0].spec.model = group.name;
      OpenedGroup opened;
      const Error error = store_->sessions().OpenGroup(session, group, &opened);
      Check(error.ok(), "a group: " + error.sentence());
      std::vector<BlockKey> keys;
      for (uint64_t i = 0; i < size.blocks_of_group; ++i) {
        keys.push_back({.low = i + 1, .high = g + 1});
      }
      Put(domain, session, opened.group_index, keys);
      for (uint64_t i = 0; i < kMissedBlocks; ++i) keys.push_back({.low = i + 1, .high = ~0ULL});
      Ask(session, opened.group_index, keys);
    }
  }
  void Populate(uint32_t domain) {
    while (!arenas_[domain].wanted.empty()) {
      const uint32_t segment = arenas_[domain].wanted.back();
      arenas_[domain].wanted.pop_back();
      store_->events().OnSegmentPopulated(domain, segment, Status::Ok());
    }
  }
  void Put(uint32_t domain, SessionId session, uint32_t group_index,
           const std::vector<BlockKey>& keys) {
    ReserveResult reserved;
    ReserveOperation reserve = store_->storing().Reserve(&reserved);
    KeysQuery query{.session = session,
                    .request_id = ++last_request_,
                    .group_index = group_index,
                    .member_mask = 1,
                    .keys = keys,
                    .key_count_of_request = static_cast<uint32_t>(keys.size())};
    query.hints.by_verb = 1;  // waits for memory
    while (!query.keys.empty()) {
      Check(reserve.Step(query).ok() && !reserved.is_out_of_space, "a slot of each block");
      query.parent = reserved.last_key;
      query.first_position = static_cast<uint32_t>(reserved.keys.size());
      query.keys = std::span(keys).subspan(reserved.keys.size());
      Populate(domain);
    }
    std::vector<protocol::CommitEntry> entries;
    for (uint32_t i = 0; i < reserved.slots.size(); ++i) {
      entries.push_back({.key_index = i,
                         .flags = protocol::kCommitHasChecksums,
                         .part_count = 1,
                         .row = reserved.slots[i].row,
                         .segment = reserved.slots[i].address.segment,
                         .generation = reserved.slots[i].generation});
    }
    const std::vector<Checksum> roots(entries.size(), Checksum{1, 2});
    const protocol::CommitRequest request{.token = reserved.reply.token,
                                          .entry_count = static_cast<uint32_t>(entries.size()),
                                          .flags = protocol::kCommitRelease};
    CommitResult result;
    Check(store_->storing().Commit(session, request, entries, roots, &result).ok(), "a commit");
  }
  void Ask(SessionId session, uint32_t group_index, const std::vector<BlockKey>& keys) {
    const KeysQuery query{.session = session,
                          .request_id = ++last_request_,
                          .group_index = group_index,
                          .member_mask = 1,
                          .keys = keys,
                          .key_count_of_request = static_cast<uint32_t>(keys.size())};
    AcquireResult answer;
    Check(store_->prefixes().Acquire(&answer).Step(query).ok(), "an answer");
  }

  StepClock clock_;
  NoRandom random_;
  NoOffload offload_;
  NoListener listener_;
  std::vector<QueuedArena> arenas_;
  std::vector<std::vector<std::byte>> slot_tables_;
  std::vector<std::unique_ptr<sim::MemoryTier>> tiers_;
  std::unique_ptr<Store> store_;
  uint64_t last_request_ = 0;
};

void CheckFigures(const Snapshot& snapshot, const Size& size) {
  for (const DomainSnapshot& domain : snapshot.domains) {
    const uint64_t stored = uint64_t{size.group_count} * size.blocks_of_group;
    Check(domain.stats.block_count == stored, "the blocks are not those that were stored");
    Check(domain.stats.hits.blocks_asked == stored + uint64_t{size.group_count} * kMissedBlocks,
          "the figures are not those of what was asked");
  }
}

int Main(const Size& size) {
  const World world(size);
  std::vector<double> turns_us, scrapes_us;
  Snapshot snapshot;
  snapshot.domains.resize(kDomains);
  for (uint32_t round = 0; round < size.round_count; ++round) {
    double scrape_us = 0;
    for (uint32_t first = 0; first < kDomains; first += DaemonFigures::kDomainsPerTurn) {
      const double began_us = ProcessorUs();
      const uint32_t end = std::min(first + DaemonFigures::kDomainsPerTurn, kDomains);
      for (uint32_t d = first; d < end; ++d) {
        FillDomain(world.store(), d, &snapshot.domains[d]);
      }
      turns_us.push_back(ProcessorUs() - began_us);
      scrape_us += turns_us.back();
    }
    scrapes_us.push_back(scrape_us);
  }
  CheckFigures(snapshot, size);
  std::ranges::sort(turns_us);
  std::ranges::sort(scrapes_us);
  const double middle_us = turns_us[turns_us.size() / 2];
  std::printf(
      "%u domains of %u groups and %u sessions, %u blocks; %u domains a turn: a turn %.1f us "
      "(middle of %zu), p99 %.1f, longest %.1f; a scrape %.1f us in all\n",
      kDomains, size.group_count, size.session_count,
      kDomains * size.group_count * size.blocks_of_group, DaemonFigures::kDomainsPerTurn, middle_us,
      turns_us.size(), turns_us[turns_us.size() * 99 / 100], turns_us.back(),
      scrapes_us[scrapes_us.size() / 2]);
  return middle_us <= kTurnUsMax ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const auto argument = [&](int i, uint32_t otherwise) {
    return std::max(argc > i ? static_cast<uint32_t>(std::atoi(argv[i])) : otherwise, 1u);
  };
  const uint32_t group_count = argument(1, 256);
  return terrace::Main({.group_count = group_count,
                        .session_count = std::max(argument(2, 1024) / terrace::kDomains, 1u),
                        .blocks_of_group = argument(3, 262'144) / terrace::kDomains / group_count,
                        .round_count = argument(4, 2001)});
}
