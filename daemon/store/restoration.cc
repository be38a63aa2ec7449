#include "daemon/store/restoration.h"

#include <array>
#include <utility>

#include "daemon/block/keyed_group_files.h"
#include "daemon/store/group_places.h"
#include "daemon/store/store_rooms.h"
#include "terrace/check.h"

namespace terrace {
namespace {

// Who may have learned something: calls `visit(name, learner)` for each.
template <typename Visit>
void ForEachLearner(const StoreOptions& options, CacheDomain& domain, const Visit& visit) {
  visit("dram." + options.eviction_policy, domain.dram_policy.get());
  if (domain.persistent_tier == kLowerTiersMax) return;
  visit("below." + options.lower_eviction_policy,
        domain.lower[domain.persistent_tier].policy.get());
  visit("admission." + options.admission_policy, domain.admission.get());
}

}  // namespace

Status Restoration::RestoreGroup(uint32_t domain_index, const SpaceGroupSpec& spec) {
  CacheDomain& domain = store_.at(domain_index).domain;
  TERRACE_CHECK(domain.session_count == 0, "groups are restored before the first session");
  std::string why;
  TERRACE_RETURN_IF_ERROR(spec.Validate(&why));
  if (!domain.groups.PlacesOf(spec.name, spec.Id()).empty()) {
    return Status(StatusCode::kExists, "a group of that name or of these Spaces is restored");
  }
  // Restored groups look idle until their blocks come: none may take the place of another.
  if (domain.groups.size() >= domain.limits.groups_max) {
    return Status(StatusCode::kNoSpace, "groups_max groups are restored");
  }
  uint32_t place = kAllGroups;
  const Error added = AddGroup(domain, spec, kAllGroups, &place);
  if (!added.ok()) return added.status();
  const KeyedGroupFiles* const files = KeyedFilesOf(domain.limits.group_files);
  domain.groups[place]->has_file = files == nullptr || files->IsWhole(domain_index, spec.Id());
  if (domain.limits.group_files != nullptr) domain.limits.group_files->Inherit(domain_index, spec);
  store_.segments.Step();
  return Status::Ok();
}

uint32_t Restoration::RestoreCopy(uint32_t domain_index, uint32_t tier_index,
                                  const BlockRecord& record, const Extent& extent) {
  DomainRooms& rooms = store_.at(domain_index);
  TERRACE_CHECK(rooms.domain.session_count == 0, "blocks are restored before the first session");
  if (rooms.restorer == nullptr) {
    rooms.restorer = std::make_unique<Restorer>(rooms.domain, rooms.residency);
  }
  static_assert(kBlockNone == kOwnerNone);
  return rooms.restorer->Take(tier_index, record, extent);
}

void Restoration::PrefetchCopy(uint32_t domain_index, const BlockKey& key) const {
  const DomainRooms& rooms = store_.at(domain_index);
  if (rooms.restorer != nullptr) rooms.restorer->Prefetch(key);
}

RestoreSummary Restoration::FinishRestore(uint32_t domain_index) {
  DomainRooms& rooms = store_.at(domain_index);
  TERRACE_CHECK(rooms.domain.session_count == 0, "blocks are restored before the first session");
  if (rooms.restorer == nullptr) return {};
  const RestoreSummary summary = rooms.restorer->Finish();
  rooms.restorer.reset();
  return summary;
}

AdoptSummary Restoration::AdoptSlots(uint32_t domain_index, std::span<const SessionId> sessions) {
  DomainRooms& rooms = store_.at(domain_index);
  TERRACE_CHECK(rooms.domain.session_count == 0, "slots are adopted before the first session");
  const AdoptSummary summary = rooms.adoption.Begin(sessions);
  store_.segments.OnAdopted(domain_index);
  store_.Settle(rooms);
  return summary;
}

void Restoration::PredecessorSessionEnded(uint32_t domain_index, SessionId session) {
  DomainRooms& rooms = store_.at(domain_index);
  rooms.adoption.OnSessionEnd(session);
  store_.Settle(rooms);
}

std::vector<Learned> Restoration::WhatWasLearned(uint32_t domain_index) const {
  std::vector<Learned> all;
  ForEachLearner(store_.options, store_.at(domain_index).domain,
                 [&](std::string name, auto* learner) {
                   if (learner == nullptr) return;
                   std::vector<std::byte> state = learner->Learned();
                   if (!state.empty()) all.push_back({std::move(name), std::move(state)});
                 });
  return all;
}

bool Restoration::StartFrom(uint32_t domain_index, const Learned& learned) {
  bool has_started = false;
  ForEachLearner(store_.options, store_.at(domain_index).domain,
                 [&](const std::string& name, auto* learner) {
                   if (learner == nullptr || name != learned.name) return;
                   has_started = learner->StartFrom(learned.state);
                 });
  return has_started;
}

}  // namespace terrace
