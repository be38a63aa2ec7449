#include "sim/swarm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kPlainSeeds = 8;  // one seed in so many is plain
constexpr uint64_t kPlainUse = 0xF1A1;
constexpr uint32_t kMillion = 1'000'000;

// kBasic verbs are never off, or nothing would be stored or read.
enum class Sort : uint8_t { kBasic, kVerb, kHappening, kSetting };
struct Row {
  const char* name;
  Sort sort;
  uint32_t often = 0;  // of verbs: in ten thousand choices of a plain world
  std::array<uint64_t, Swarm::kValues> values = {};  // of settings; the first is plain
};
constexpr Row Verb(const char* name, uint32_t often) { return {name, Sort::kVerb, often, {}}; }
constexpr Row Happening(const char* name) { return {name, Sort::kHappening, 0, {}}; }
constexpr Row Setting(const char* name, std::array<uint64_t, Swarm::kValues> values) {
  return {name, Sort::kSetting, 0, values};
}

constexpr Row kRows[] = {
    {"acquire", Sort::kBasic, 1'400, {}},
    {"reserve", Sort::kBasic, 1'400, {}},
    {"lease_work", Sort::kBasic, 6'000, {}},
    Verb("join", 400),
    Verb("match", 90),
    Verb("prefetch", 90),
    Verb("touch", 90),
    Verb("query", 90),
    Verb("evict", 90),
    Verb("pin", 90),
    Verb("cancel", 90),
    Verb("list", 90),
    Verb("reset", 9),
    Happening("by_parts"),
    Happening("follow"),
    Happening("flat_keys"),
    Happening("by_verb"),
    Happening("min_tokens"),
    Happening("ttl"),
    Happening("priority"),
    Happening("checksums"),
    Happening("absences"),
    Happening("aborts"),
    Happening("wrong_checksums"),
    Happening("stale_commits"),
    Happening("wrong_absences"),
    Happening("kills"),
    Happening("stops"),
    Happening("stray_writes"),
    Happening("wrong_copies"),
    Happening("wrong_orders"),
    Happening("forgotten_orders"),
    Happening("late_orders"),
    Happening("refused_orders"),
    Happening("wrong_sums"),
    Happening("double_answers"),
    Happening("time_leaps"),
    Happening("stalls"),
    Happening("wall_jumps"),
    Happening("reloads"),
    Happening("deaf_routers"),
    Happening("daemon_ends"),
    Happening("drive_resizes"),
    Happening("server_away"),
    Happening("server_full"),
    Happening("server_loses"),
    Happening("tier_read_fails"),
    Happening("tier_write_fails"),
    Happening("tier_read_short"),
    Happening("tier_write_short"),
    Happening("tier_read_flips_bit"),
    Happening("tier_read_misdirected"),
    Happening("tier_hangs"),
    Happening("tier_busy"),
    Happening("tier_no_space"),
    Happening("tier_makes_room"),
    Happening("tier_off"),
    Happening("drive_read_fails"),
    Happening("drive_write_fails"),
    Happening("drive_short"),
    Happening("drive_create_no_space"),
    Happening("drive_create_fails"),
    Happening("drive_create_vanishes"),
    Happening("drive_sync_fails"),
    Happening("drive_misdirected"),
    Happening("drive_stale_read"),
    Happening("drive_stuck"),
    Happening("drive_busy"),
    Setting("tier_below", {1, 0, 0, 1}),
    Setting("power_loss", {0, 1, 1, 1}),
    Setting("drive_fault_ppm", {0, 3'000, 750, 0}),
    Setting("processes", {6, 3, 4, 8}),
    Setting("burst", {1, 4, 16, 64}),
    Setting("chains", {12, 2, 4, 8}),
    Setting("chain_blocks", {7, 2, 4, 12}),
    Setting("part_percent", {100, 25, 50, 150}),
    Setting("window_tokens", {32, 16, 48, 128}),
    Setting("deadline_us", {200'000, 500, 20'000, 2'000'000}),
    Setting("quick_steps_percent", {80, 30, 60, 95}),
    Setting("eviction_policy", {0, 1, 2, 3}),
    Setting("lower_policy", {0, 1, 2, 3}),
    Setting("admission_policy", {0, 0, 1, 2}),
    Setting("segments_lent_halves", {0, 1, 2, 1}),
    Setting("drive_shares", {0, 1, 2, 3}),
    Setting("read_ahead_blocks", {3, 0, 1, 8}),
    Setting("part_read_bytes", {16 * kKiB, 4 * kKiB, 64 * kKiB, 1 * kMiB}),
    Setting("lease_ttl_ms", {1'500, 300, 600, 5'000}),
    Setting("session_leases", {16, 3, 6, 64}),
    Setting("session_pending", {16, 1, 4, 64}),
    Setting("fenced_bytes", {4 * kMiB, 256 * kKiB, 1 * kMiB, 16 * kMiB}),
    Setting("blocks_max", {4'096, 24, 64, 160}),
    Setting("ttl_default_s", {0, 1, 3, 30}),
    Setting("tier_bytes", {8 * kMiB, 1 * kMiB, 3 * kMiB, 32 * kMiB}),
    Setting("tier_queue", {8, 1, 3, 32}),
    Setting("tier_bytes_per_us", {500, 20, 100, 4'000}),
    Setting("scrub_bytes", {1 * kMiB, 0, 256 * kKiB, 8 * kMiB}),
    Setting("order_deadline_us", {800'000, 50'000, 300'000, 4'000'000}),
    Setting("device_hits", {1, 2, 3, 1}),
    Happening("messages_lost"),
    Happening("messages_doubled"),
    Happening("messages_overtaken"),
};
static_assert(std::size(kRows) == kKindCount);

const Row& RowOf(Kind kind) { return kRows[static_cast<size_t>(kind)]; }

uint32_t PlainLevel(Sort sort) { return sort == Sort::kSetting ? 0 : Swarm::kPlain; }

uint32_t DrawLevel(Sort sort, uint64_t word) {
  constexpr uint32_t kBasic[] = {2, 4, 4, 8};
  constexpr uint32_t kVerbs[] = {0, 0, 0, 1, 4, 4, 16, 64};
  constexpr uint32_t kHappenings[] = {0, 0, 0, 1, 4, 4, 4, 16};
  constexpr uint32_t kSettings[] = {0, 0, 0, 1, 2, 3};
  switch (sort) {
    case Sort::kBasic:
      return kBasic[word % std::size(kBasic)];
    case Sort::kVerb:
      return kVerbs[word % std::size(kVerbs)];
    case Sort::kHappening:
      return kHappenings[word % std::size(kHappenings)];
    case Sort::kSetting:
      return kSettings[word % std::size(kSettings)];
  }
  return 0;
}

void Append(const std::string& word, std::string* list) {
  *list += (list->empty() ? "" : ",") + word;
}

}  // namespace

const char* KindName(Kind kind) { return RowOf(kind).name; }

bool ParseKinds(const std::string& text, KindSet* kinds, std::string* wrong) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, end - at);
    const auto* const row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& each) {
      return std::strcmp(each.name, name.c_str()) == 0;
    });
    if (row == std::end(kRows)) {
      *wrong = name;
      return false;
    }
    kinds->set(static_cast<size_t>(row - kRows));
    at = end + 1;
  }
  return true;
}

std::string KindsText(const KindSet& kinds) {
  std::string text;
  for (size_t kind = 0; kind < kKindCount; ++kind) {
    if (kinds[kind]) Append(kRows[kind].name, &text);
  }
  return text;
}

Swarm::Swarm(uint64_t seed) {
  const bool is_plain = HashOf(seed, kPlainUse) % kPlainSeeds == 0;
  for (size_t kind = 0; kind < kKindCount; ++kind) {
    const Sort sort = kRows[kind].sort;
    drawn_[kind] = is_plain ? PlainLevel(sort) : DrawLevel(sort, HashOf(seed, kind, 1));
  }
  levels_ = drawn_;
}

uint64_t Swarm::value(Kind setting) const { return ValueIn(setting, level(setting)); }

uint64_t Swarm::ValueIn(Kind setting, uint64_t world) {
  TERRACE_CHECK(RowOf(setting).sort == Sort::kSetting, "only settings have values");
  return RowOf(setting).values[world];
}

uint32_t Swarm::Ppm(Kind kind, uint32_t plain_ppm) const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(kMillion, uint64_t{plain_ppm} * level(kind) / kPlain));
}

void Swarm::TakeOut(const KindSet& kinds) {
  for (size_t kind = 0; kind < kKindCount; ++kind) {
    if (kinds[kind]) levels_[kind] = 0;
  }
}

KindSet Swarm::taken_in() const {
  KindSet kinds;
  for (size_t kind = 0; kind < kKindCount; ++kind) kinds[kind] = levels_[kind] > 0;
  return kinds;
}

std::string Swarm::Describe() const {
  std::string off, weak, strong, settings;
  for (size_t kind = 0; kind < kKindCount; ++kind) {
    const Row& row = kRows[kind];
    const uint32_t level = levels_[kind];
    if (row.sort == Sort::kSetting) {
      if (level == 0) continue;
      Append(std::string(row.name) + "=" + std::to_string(row.values[level]), &settings);
    } else if (level == 0) {
      Append(row.name, &off);
    } else if (level < kPlain) {
      Append(row.name, &weak);
    } else if (level > kPlain) {
      Append(std::string(row.name) + "*" + std::to_string(level / kPlain), &strong);
    }
  }
  std::string text;
  const auto add = [&](const char* what, const std::string& list) {
    if (!list.empty()) text += (text.empty() ? "" : "; ") + std::string(what) + " " + list;
  };
  add("off", off);
  add("weak", weak);
  add("strong", strong);
  add("set", settings);
  return text.empty() ? "plain" : text;
}

// ---- steps ----

StepSet::StepSet(const std::vector<uint32_t>& steps) {
  for (const uint32_t step : steps) {
    if (!ranges_.empty() && ranges_.back().second + 1 == step) {
      ranges_.back().second = step;
    } else {
      ranges_.emplace_back(step, step);
    }
  }
  if (ranges_.empty()) ranges_.emplace_back(0, 0);  // steps begin with 1
}

bool StepSet::Parse(const std::string& text, StepSet* set) {
  set->ranges_.clear();
  const char* at = text.c_str();
  while (*at != 0) {
    char* end = nullptr;
    const auto first = static_cast<uint32_t>(std::strtoul(at, &end, 10));
    if (end == at) return false;
    uint32_t last = first;
    if (*end == '-') {
      at = end + 1;
      last = static_cast<uint32_t>(std::strtoul(at, &end, 10));
      if (end == at) return false;
    }
    if (last < first || (*end != ',' && *end != 0)) return false;
    set->ranges_.emplace_back(first, last);
    at = *end == ',' ? end + 1 : end;
  }
  return true;
}

std::string StepSet::Text() const {
  std::string text;
  for (const auto& [first, last] : ranges_) {
    const std::string range =
        first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
    Append(range, &text);
  }
  return text;
}

bool StepSet::contains(uint32_t step) const {
  if (ranges_.empty()) return true;
  const auto behind =
      std::upper_bound(ranges_.begin(), ranges_.end(), step,
                       [](uint32_t wanted, const auto& range) { return wanted < range.first; });
  return behind != ranges_.begin() && step <= (behind - 1)->second;
}

// ---- draws ----

void Dice::BeginStep(uint64_t step, bool is_live) {
  step_ = step;
  is_live_ = is_live;
  asked_ = {};
}

bool Dice::Happens(Kind kind, uint32_t plain_ppm) {
  const uint32_t ppm = swarm_.Ppm(kind, plain_ppm);
  if (!is_live_ || ppm == 0) return false;
  return Word(kind) % kMillion < ppm;
}

uint64_t Dice::Word(Kind kind) {
  const auto index = static_cast<uint64_t>(kind);
  return HashOf(seed_, kKindCount + index, step_, ++asked_[index]);
}

uint64_t Dice::SeedOf(uint64_t use) const { return HashOf(seed_, 2 * kKindCount + use, step_); }

Kind Dice::PickVerb(uint64_t word) const {
  uint64_t sum = 0;
  for (size_t kind = 0; kRows[kind].often > 0; ++kind) {
    sum += uint64_t{kRows[kind].often} * swarm_.weight(static_cast<Kind>(kind));
  }
  uint64_t at = word % sum;
  size_t kind = 0;
  for (;; ++kind) {
    const uint64_t weight = uint64_t{kRows[kind].often} * swarm_.weight(static_cast<Kind>(kind));
    if (at < weight) break;
    at -= weight;
  }
  return static_cast<Kind>(kind);
}

}  // namespace terrace::sim
