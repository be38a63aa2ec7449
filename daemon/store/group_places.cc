#include "daemon/store/group_places.h"

#include <algorithm>
#include <memory>

namespace terrace {
namespace {

constexpr uint32_t kForgottenPerTickMax = 16;

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

// A place for another group: `idle` if there is one, a new one, or that of any idle group.
uint32_t PlaceFor(const CacheDomain& domain, uint32_t idle) {
  if (idle != kAllGroups) return idle;
  if (domain.groups.size() < domain.limits.groups_max) {
    return static_cast<uint32_t>(domain.groups.size());
  }
  for (uint32_t g = 0; g < domain.groups.size(); ++g) {
    if (domain.groups.IsIdle(g)) return g;
  }
  return kAllGroups;
}

void DropFirst(CacheDomain& domain) {
  const GroupId id = domain.groups.first_forgotten().id;
  domain.limits.group_files->Drop(domain.domain_index, id);
  domain.groups.RemoveForgotten(id);
}

void Forget(CacheDomain& domain, const GroupId& id) {
  if (domain.limits.group_files == nullptr) return;
  domain.groups.RemoveForgotten(id);
  if (domain.groups.is_forgotten_full()) DropFirst(domain);
  domain.groups.AddForgotten(id, domain.MarkErasures());
}

}  // namespace

void DropForgotten(CacheDomain& domain) {
  for (uint32_t i = 0; i < kForgottenPerTickMax && domain.groups.has_forgotten(); ++i) {
    DomainGroups::Forgotten& next = domain.groups.first_forgotten();
    if (domain.groups.Holds(next.id)) {
      domain.groups.RemoveForgotten(GroupId(next.id));
    } else if (domain.IsErased(&next.erased)) {
      DropFirst(domain);
    } else {
      return;  // nor have those behind it ended
    }
  }
}

Error AddGroup(CacheDomain& domain, const SpaceGroupSpec& spec, uint32_t idle, uint32_t* place) {
  *place = PlaceFor(domain, idle);
  if (*place == kAllGroups) {
    return {Status(StatusCode::kNoSpace, "groups_max groups are in use"),
            "domain " + Quoted(domain.options.name) + " has " +
                std::to_string(domain.groups.size()) +
                " groups in use, the limit is groups_max = " +
                std::to_string(domain.limits.groups_max) +
                ": close sessions, Reset a group that is not needed, or raise groups_max"};
  }
  auto group = std::make_unique<Group>();
  const Status opened = group->Open(spec, *place, &domain.slots, &domain.slot_classes);
  if (!opened.ok()) {
    uint64_t slot_bytes = 0;
    for (const SpaceGroupMember& member : spec.members) {
      slot_bytes = std::max(slot_bytes, member.spec.slot_bytes());
    }
    return {opened, "group " + Quoted(spec.name) + " needs slots of up to " +
                        std::to_string(slot_bytes) + " bytes in segments of " +
                        std::to_string(domain.options.segment_bytes) + ": " + opened.what()};
  }
  group->PlanPartReads(domain.limits.part_read_bytes_min);
  KvEventSink* const kv_events = domain.options.kv_events;
  if (*place < domain.groups.size()) {
    if (kv_events != nullptr) kv_events->EndStream(domain.groups[*place]->kv_event_stream);
    Forget(domain, domain.groups[*place]->id());
    domain.meter.ForgetGroup(*place);
  }
  if (kv_events != nullptr) {
    group->kv_event_stream = kv_events->StreamOf(domain.domain_index, spec);
  }
  domain.groups.Put(*place, std::move(group));
  DropForgotten(domain);  // before the new one wants room on disk
  return {};
}

}  // namespace terrace
