// What outlived the last daemon.
#include "daemon/store/store_state.h"
#include "terrace/check.h"

namespace terrace {

Status Store::RestoreGroup(uint32_t domain_index, const SpaceGroupSpec& spec) {
  CacheDomain& domain = state_->domains[domain_index]->domain;
  TERRACE_CHECK(domain.session_count == 0, "groups are restored before the first session");
  std::string why;
  TERRACE_RETURN_IF_ERROR(spec.Validate(&why));
  for (const std::unique_ptr<Group>& group : domain.groups) {
    if (group->spec().name == spec.name || group->id() == spec.Id()) {
      return Status(StatusCode::kExists, "a group of that name or of these Spaces is restored");
    }
  }
  // Restored groups look idle until their blocks come: none may take the place of another.
  if (domain.groups.size() >= domain.limits.groups_max) {
    return Status(StatusCode::kNoSpace, "groups_max groups are restored");
  }
  const Result<uint32_t> added = AddGroup(domain, spec, kAllGroups, &why);
  if (!added.ok()) return added.status();
  domain.groups[*added]->is_shelved = true;
  state_->ledger.Step();
  return Status::Ok();
}

uint32_t Store::RestoreCopy(uint32_t domain_index, uint32_t tier_index, const BlockRecord& record,
                            const Extent& extent) {
  DomainRooms& rooms = *state_->domains[domain_index];
  TERRACE_CHECK(rooms.domain.session_count == 0, "blocks are restored before the first session");
  if (rooms.restorer == nullptr) {
    rooms.restorer = std::make_unique<Restorer>(rooms.domain, rooms.residency);
  }
  static_assert(kBlockNone == kOwnerNone);
  return rooms.restorer->Take(tier_index, record, extent);
}

void Store::PrefetchCopy(uint32_t domain_index, const BlockKey& key) const {
  const DomainRooms& rooms = *state_->domains[domain_index];
  if (rooms.restorer != nullptr) rooms.restorer->Prefetch(key);
}

RestoreSummary Store::FinishRestore(uint32_t domain_index) {
  DomainRooms& rooms = *state_->domains[domain_index];
  TERRACE_CHECK(rooms.domain.session_count == 0, "blocks are restored before the first session");
  if (rooms.restorer == nullptr) return {};
  const RestoreSummary summary = rooms.restorer->Finish();
  rooms.restorer.reset();
  return summary;
}

}  // namespace terrace
