#include "daemon/shell/condition_watch.h"

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/telemetry/metrics.h"

namespace terrace {
namespace {

struct Events {
  const char* begins;
  const char* ends;
};
// By Condition. Without: somebody else tells.
constexpr std::array kEvents = {
    Events{nullptr, nullptr},  // bypassed, draining: who asked for it is told
    Events{nullptr, nullptr},
    Events{"arena cannot grow", "arena is no longer short"},
    Events{"a drive is off", "a drive is on again"},
    Events{"a drive is full", "a drive has room again"},
    Events{"a drive is not mounted", nullptr},  // until the next start
    Events{"a drive loses places", "a drive keeps its places"},
    Events{nullptr, nullptr},  // slabs_left_alone: the start's notes name them
    Events{"a tier is above its limit", "a tier is within its limit again"},
    Events{"blocks fit no slab file", nullptr},  // until the next start
    Events{"a tier has no more files", "a tier may make files again"},
    Events{"files of groups cannot be written", "files of groups are written again"},
    Events{"keys of groups cannot be erased", "keys of groups are erased"},
    Events{nullptr, "the catalog is on again"},  // catalog_off: Catalog, with the cause
    Events{nullptr, nullptr},                    // redis_away: DomainRedis
    Events{"redis takes no writes", "redis takes writes again"},
    Events{"fenced memory is at its limit", "fenced memory is below its limit"},
    Events{"clients commit wrong checksums", "no client commits wrong checksums any more"},
    Events{nullptr, nullptr},  // kv_events_off: their thread, with the cause
};
static_assert(kEvents.size() == kConditionCount, "each condition has its events");

const Events& EventsOf(Condition condition) { return kEvents[static_cast<size_t>(condition)]; }

void LogBegin(const std::string& domain, const Trouble& trouble) {
  const char* const event = EventsOf(trouble.condition).begins;
  const DriveTrouble& drive = trouble.drive;
  if (event == nullptr) return;
  if (*drive.operation == '\0') {
    return Log(LogLevel::kWarn, event, {{"domain", domain}, {"why", trouble.sentence}});
  }
  Log(LogLevel::kWarn, event,
      {{"domain", domain},
       {"path", drive.path},
       {"operation", drive.operation},
       {"error", drive.error == 0 ? "no answer" : ErrorText(drive.error)},
       {"failures_in_row", drive.failures_in_row},
       {"why", trouble.sentence}});
}

void LogEnd(const std::string& domain, Condition condition, const std::string& path) {
  const char* const event = EventsOf(condition).ends;
  if (event == nullptr) return;
  if (path.empty()) return Log(LogLevel::kInfo, event, {{"domain", domain}});
  Log(LogLevel::kInfo, event, {{"domain", domain}, {"path", path}});
}

template <typename One>
bool Has(const std::vector<One>& all, const One& one) {
  return std::ranges::find(all, one) != all.end();
}

}  // namespace

ConditionWatch::ConditionWatch(std::vector<std::string> domain_names, Sources sources)
    : from_(std::move(sources)) {
  for (std::string& name : domain_names) domains_.push_back({.name = std::move(name), .told = {}});
}

void ConditionWatch::Look() {
  const auto count = static_cast<uint32_t>(domains_.size());
  for (uint32_t i = 0; i < std::min(kDomainsPerTurn, count); ++i) {
    LookAt(next_);
    next_ = (next_ + 1) % count;
  }
}

void ConditionWatch::LookAt(uint32_t domain_index) {
  Watched& domain = domains_[domain_index];
  from_.fill(domain_index, &figures_);
  const std::vector<Trouble> troubles = TroublesOf(figures_, from_.kv_events(domain_index));
  std::vector<Told> now;
  for (const Trouble& trouble : troubles) {
    const DriveTrouble& drive = trouble.drive;
    now.push_back({.condition = trouble.condition,
                   .drive = drive.drive,
                   .off_count = drive.is_off ? drive.off_count : 0,
                   .path = drive.path});
  }
  for (const Told& told : domain.told) {
    if (!Has(now, told)) LogEnd(domain.name, told.condition, told.path);
  }
  for (size_t i = 0; i < troubles.size(); ++i) {
    if (!Has(domain.told, now[i])) LogBegin(domain.name, troubles[i]);
  }
  domain.told = std::move(now);
}

std::string ConditionWatch::Summary() const {
  std::string text;
  for (const Watched& domain : domains_) {
    std::string names;
    for (const Told& told : domain.told) {
      const std::string name(NameOf(told.condition));
      if (names.find(name) == std::string::npos) names += " " + name;
    }
    if (!names.empty()) text += (text.empty() ? " " : "; ") + domain.name + ":" + names;
  }
  return text.empty() ? "ok" : "degraded:" + text;
}

}  // namespace terrace
