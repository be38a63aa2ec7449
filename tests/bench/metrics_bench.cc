// What a scrape, and the page, cost the store thread, at the documented limits: a full store,
// groups that were all asked for, sessions that reported their copies, tiers below. Processor time,
// so that other processes count only for what they take from caches.
//
//   metrics_bench [DOMAINS [GROUPS [SESSIONS [BLOCKS [ROUNDS]]]]]
//                                             defaults: 16 256 1024 262144 501
//
// GROUPS of each domain; SESSIONS and BLOCKS of all of them. Exits with 1 if the middle one of all
// scrapes with emptied caches, all its turns together, is above 200 microseconds, or that of the
// page's figures.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/no_seams.h"
#include "daemon/metrics/prefix_survey.h"
#include "daemon/store/store.h"
#include "daemon/telemetry/metrics.h"
#include "sim/memory_tier.h"
#include "tiers/arena/slot_table.h"

namespace terrace {
namespace {

constexpr double kUsMax = 200;
constexpr uint64_t kSegmentBytes = 2 * kMiB;
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
  uint32_t domain_count = 0;
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
  explicit World(const Size& size) : arenas_(size.domain_count) {
    StoreOptions options;
    options.segments_total = size.segments() * size.domain_count;
    options.groups_max = 65'536;
    options.fenced_bytes_max = kGiB;
    options.sessions = {
        .sessions_max = 65'536, .sessions_per_uid_max = 65'536, .sessions_per_process_max = 65'536};
    for (uint32_t d = 0; d < size.domain_count; ++d) {
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
    for (uint32_t d = 0; d < size.domain_count; ++d) Fill(d, size);
  }
  const Store& store() const { return *store_; }
  OperatorVerbs& operators() { return store_->operators(); }

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
    Check(domain.figures.block_count == stored, "the blocks are not those that were stored");
    Check(domain.figures.hits.blocks_asked == stored + uint64_t{size.group_count} * kMissedBlocks,
          "the figures are not those of what was asked");
  }
}

// Whoever scrapes comes every few seconds: what the figures lie in has left the caches by then.
class Caches {
 public:
  void Empty() {
    for (size_t i = 0; i < bytes_.size(); i += 64) ++bytes_[i];
  }

 private:
  std::vector<unsigned char> bytes_ = std::vector<unsigned char>(256 * kMiB);
};

class Turns {
 public:
  template <typename Work>
  void Do(const Work& work) {
    const double began_us = ProcessorUs();
    work();
    all_us_.push_back(ProcessorUs() - began_us);
    whole_us_ += all_us_.back();
  }
  void EndWhole() { wholes_us_.push_back(std::exchange(whole_us_, 0)); }
  // The middle one of all wholes.
  double Tell(const char* name) {
    std::ranges::sort(all_us_);
    std::ranges::sort(wholes_us_);
    const auto at = [](const std::vector<double>& us, size_t percent) {
      return us[std::min(us.size() - 1, us.size() * percent / 100)];
    };
    std::printf(
        "%-28s a turn %7.1f us (p99 %.1f, longest %.1f, of %zu); in all %7.1f us (p99 %.1f, "
        "most %.1f)\n",
        name, at(all_us_, 50), at(all_us_, 99), all_us_.back(), all_us_.size(), at(wholes_us_, 50),
        at(wholes_us_, 99), wholes_us_.back());
    return at(wholes_us_, 50);
  }

 private:
  std::vector<double> all_us_, wholes_us_;
  double whole_us_ = 0;
};

enum class Scrape { kInCaches, kCachesEmptied, kFirst };

// The first one copies the names of groups, too, as does one after groups have changed.
double ScrapeUs(const char* name, Scrape scrape, const World& world, const Size& size,
                Caches& caches) {
  Turns turns;
  Snapshot snapshot;
  snapshot.domains.resize(size.domain_count);
  for (uint32_t round = 0; round < size.round_count; ++round) {
    if (scrape == Scrape::kFirst) snapshot.domains.assign(size.domain_count, {});
    if (scrape != Scrape::kInCaches) caches.Empty();
    uint32_t next = 0;
    do {
      turns.Do([&] { next = FillDomains(world.store(), next, &snapshot); });
    } while (next != 0);
    turns.EndWhole();
  }
  CheckFigures(snapshot, size);
  return turns.Tell(name);
}

// What the page asks of one domain: its figures, its groups, and all its blocks.
double PageUs(const char* name, World& world, const Size& size, Caches& caches) {
  Turns pages, groups, walks;
  for (uint32_t round = 0; round < size.round_count; ++round) {
    caches.Empty();
    PageSnapshot page;
    pages.Do([&] { FillPage(world.store(), 0, &page); });
    pages.EndWhole();
    std::vector<DomainStats::GroupStats> all;
    uint32_t next = 0;
    do {
      groups.Do([&] {
        next = world.store().statistics().AddGroups(0, next, PrefixSurvey::kGroupsPerTurn, &all);
      });
    } while (next != 0);
    groups.EndWhole();
  }
  uint64_t cursor = 0;
  std::vector<protocol::ListEntry> entries;
  do {
    walks.Do([&] { Check(world.operators().ListAll(0, &cursor, &entries).ok(), "a walk"); });
  } while (cursor != 0);
  walks.EndWhole();
  const double page_us = pages.Tell(name);
  groups.Tell("  groups for its prefixes");
  walks.Tell("  blocks for its prefixes");
  return page_us;
}

int Main(const Size& size) {
  World world(size);
  Caches caches;
  std::printf("%u domains of %u groups and %u sessions each, %u blocks in all; processor time\n",
              size.domain_count, size.group_count, size.session_count,
              size.domain_count * size.group_count * size.blocks_of_group);
  ScrapeUs("a scrape, in caches", Scrape::kInCaches, world, size, caches);
  const double scrape_us =
      ScrapeUs("a scrape, caches emptied", Scrape::kCachesEmptied, world, size, caches);
  ScrapeUs("the first scrape, likewise", Scrape::kFirst, world, size, caches);
  const double page_us = PageUs("a page, caches emptied", world, size, caches);
  return scrape_us <= kUsMax && page_us <= kUsMax ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const auto argument = [&](int i, uint32_t otherwise) {
    return std::max(argc > i ? static_cast<uint32_t>(std::atoi(argv[i])) : otherwise, 1u);
  };
  const uint32_t domain_count = argument(1, 16), group_count = argument(2, 256);
  return terrace::Main(
      {.domain_count = domain_count,
       .group_count = group_count,
       .session_count = std::max(argument(3, 1024) / domain_count, 1u),
       .blocks_of_group = std::max(argument(4, 262'144) / domain_count / group_count, 1u),
       .round_count = argument(5, 501)});
}
