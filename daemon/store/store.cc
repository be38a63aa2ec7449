#include "daemon/store/store.h"

#include <algorithm>
#include <utility>

#include "daemon/store/store_rooms.h"

namespace terrace {

Store::Store(StoreOptions options, Clock& clock, Random& random, Offload& offload,
             StoreListener& listener)
    : rooms_(std::make_unique<StoreRooms>(std::move(options), clock, random, offload, listener)),
      restoration_(*rooms_),
      sessions_(*rooms_),
      prefixes_(*rooms_),
      storing_(*rooms_),
      leases_(*rooms_),
      operators_(*rooms_),
      introspection_(*rooms_),
      devices_(*rooms_),
      checks_(*rooms_),
      events_(*rooms_),
      statistics_(*rooms_) {
  rooms_->segments.Step();
}
Store::~Store() = default;

uint64_t Store::work() const { return rooms_->work; }

bool Store::is_ready() const { return rooms_->segments.is_ready(); }

void Store::Retune(const StoreOptions& tuned) { rooms_->Retune(tuned); }

void Store::StopScrub() {
  for (const auto& rooms : rooms_->domains) {
    rooms->scrubber.Stop();
    rooms->checker.Stop();
    rooms->relocations.Stop();
  }
}

bool Store::is_settled() const {
  return std::ranges::all_of(rooms_->domains,
                             [](const auto& rooms) { return rooms->is_settled(); });
}

bool Store::is_shared_idle() const {
  return std::ranges::all_of(rooms_->domains,
                             [](const auto& rooms) { return rooms->is_shared_idle(); });
}

std::vector<DomainStats> Store::Stats() const {
  std::vector<DomainStats> all;
  for (uint32_t i = 0; i < rooms_->domains.size(); ++i) all.push_back(statistics_.Of(i));
  return all;
}

void Store::CheckInvariants(CheckScope scope) const {
  for (const auto& rooms : rooms_->domains) terrace::CheckInvariants(*rooms, scope);
}

}  // namespace terrace
