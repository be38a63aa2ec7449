#include "daemon/store/session_verbs.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/store/group_places.h"
#include "daemon/store/store_rooms.h"

namespace terrace {
namespace {

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

constexpr size_t kModelsOfGroupMax = 4;  // a draft's beside its model's; each costs a look

// The same name with another spec, or the same Spaces on other hosts, is refused in words.
Error RefuseOther(const SpaceGroupSpec& known, const SpaceGroupSpec& asked) {
  std::string why = "group " + Quoted(known.name) + " is open with ";
  std::string_view between;
  if (known.members.size() != asked.members.size()) {
    why += std::to_string(known.members.size()) + " members, not " +
           std::to_string(asked.members.size());
    between = "; ";
  }
  for (size_t m = 0; m < std::min(known.members.size(), asked.members.size()); ++m) {
    const SpaceDifference difference =
        FirstDifference(known.members[m].spec, asked.members[m].spec);
    if (!difference.field.empty()) {
      why.append(between);
      why += "member " + std::to_string(m) + "'s " + difference.field + " " +
             Quoted(difference.left) + ", not " + Quoted(difference.right);
      break;
    }
    if (known.members[m].is_remote != asked.members[m].is_remote) {
      why.append(between);
      why += "member " + std::to_string(m) +
             (known.members[m].is_remote ? " on another host" : " on this host");
      break;
    }
  }
  why += ": open another name, or the same spec";
  return {Status(StatusCode::kInvalid, "the group exists with another spec"), std::move(why)};
}

// `*` stands for any characters, `?` for one. Where a piece does not follow, the last `*` takes one
// more: never more steps than both lengths' product, which fnmatch does not promise.
bool MatchesPattern(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0;
  size_t after_star = std::string_view::npos, taken_to = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      taken_to = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      t = ++taken_to;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

// Whether an administrator lets this domain serve what the group is of.
Error CheckModels(const DomainOptions& options, const SpaceGroupSpec& spec) {
  if (options.allow_models.empty()) return {};
  std::set<std::string_view> models;
  for (const SpaceGroupMember& member : spec.members) models.insert(member.spec.model);
  if (models.size() > kModelsOfGroupMax) {
    return {Status(StatusCode::kInvalid, "the group is of too many models"),
            "group " + Quoted(spec.name) + " is of " + std::to_string(models.size()) +
                " models; where allow_models is set, it is of " +
                std::to_string(kModelsOfGroupMax) + " at most: open a group for each"};
  }
  for (const std::string_view model : models) {
    const bool is_allowed = std::ranges::any_of(
        options.allow_models,
        [&model](const std::string& pattern) { return MatchesPattern(pattern, model); });
    if (is_allowed) continue;
    return {Status(StatusCode::kInvalid, "the domain does not serve this model"),
            "model " + Quoted(std::string(model)) + " of group " + Quoted(spec.name) +
                " is none of the " + std::to_string(options.allow_models.size()) + " that domain " +
                Quoted(options.name) +
                " serves: add it to the domain's allow_models, or open it in another domain"};
  }
  return {};
}

}  // namespace

Error SessionVerbs::Open(const SessionOptions& session) {
  if (session.domain_index >= store_.domains.size()) {
    return Status(StatusCode::kInvalid, "there is no such domain");
  }
  if (store_.sessions.Find(session.id) != kSessionNone) {
    return Status(StatusCode::kInvalid, "a session of that id is open");
  }
  SessionIndex index = kSessionNone;
  TERRACE_RETURN_IF_REFUSED(store_.sessions.Open(session, &index));
  SessionRecord& record = store_.sessions.at(index);
  record.last_sign_us = store_.clock.NowUs();
  ++store_.domains[session.domain_index]->domain.session_count.of_owner();
  return {};
}

bool SessionVerbs::HangUp(SessionId session) {
  const SessionIndex index = store_.sessions.Find(session);
  if (index == kSessionNone) return false;
  SessionRecord& record = store_.sessions.at(index);
  if (record.is_hung_up) return !record.is_dead;
  DomainRooms& rooms = *store_.domains[record.domain_index];
  record.is_hung_up = true;
  record.is_dead = !record.has_slots;  // what it never was told of it cannot touch
  const bool is_dead = record.is_dead;
  if (record.deadline != kHandleNone) {
    store_.deadlines.Remove(record.deadline);
    record.deadline = kHandleNone;
  }
  for (const uint32_t group : record.groups) --rooms.domain.groups[group]->session_count;
  record.groups.clear();
  --rooms.domain.session_count.of_owner();
  rooms.waiters.DropAll(session, kLeaseNone);
  rooms.lease_manager.OnHangUp(index);
  if (record.has_device) rooms.domain.options.device.tier->HangUp(session);
  if (store_.turns.End(session)) store_.StepTurns();
  store_.Settle(rooms);  // the record may be gone after this
  return !is_dead;
}

void SessionVerbs::ProofOfDeath(SessionId session) {
  HangUp(session);
  const SessionIndex index = store_.sessions.Find(session);
  if (index == kSessionNone || store_.sessions.at(index).is_dead) return;
  SessionRecord& record = store_.sessions.at(index);
  record.is_dead = true;
  DomainRooms& rooms = *store_.domains[record.domain_index];
  store_.segments.OnUnmapped(index, kSegmentNone);
  rooms.lease_manager.OnHangUp(index);
  if (record.has_device) rooms.domain.options.device.tier->ProofOfDeath(session);
  store_.Settle(rooms);
}

void SessionVerbs::SignOfLife(SessionId session) {
  const SessionIndex index = store_.sessions.Find(session);
  if (index != kSessionNone) store_.SignOfLife(store_.sessions.at(index));
}

Status SessionVerbs::Unmapped(SessionId session, uint32_t segment) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  if (segment >= caller.domain().options.segments_max) {
    return Status(StatusCode::kInvalid, "the arena has no such segment");
  }
  store_.segments.OnUnmapped(caller.session, segment);
  return Status::Ok();
}

uint32_t SessionVerbs::SegmentsOwedBy(SessionId session) const {
  const SessionIndex index = store_.sessions.Find(session);
  return index == kSessionNone ? 0 : store_.segments.OwedBy(index);
}

uint32_t SessionVerbs::RevokedLeasesOf(SessionId session) const {
  const SessionIndex index = store_.sessions.Find(session);
  return index == kSessionNone ? 0 : store_.sessions.at(index).revoked_leases;
}

Error SessionVerbs::OpenGroup(SessionId session, const SpaceGroupSpec& spec, OpenedGroup* opened) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  std::string why;
  if (const Status valid = spec.Validate(&why); !valid.ok()) return {valid, std::move(why)};
  CacheDomain& domain = caller.domain();
  TERRACE_RETURN_IF_REFUSED(CheckModels(domain.options, spec));
  uint32_t place = kAllGroups;
  uint32_t idle = kAllGroups;
  const GroupId id = spec.Id();
  for (const uint32_t g : domain.groups.PlacesOf(spec.name, id)) {
    const Group& group = *domain.groups[g];
    if (group.spec().members == spec.members) {
      place = g;
    } else if (domain.groups.IsIdle(g)) {
      idle = g;
    } else {
      return RefuseOther(group.spec(), spec);
    }
  }
  if (place == kAllGroups) {
    TERRACE_RETURN_IF_REFUSED(AddGroup(domain, spec, idle, &place));
    store_.segments.Step();
  }
  Group& group = *domain.groups[place];
  group.was_opened = true;
  caller.rooms->adoption.OnGroup(place);
  GroupFiles* const files = store_.options.group_files;
  if (files != nullptr && files->StateOf(domain.domain_index, id) == GroupFiles::State::kFailed) {
    files->Keep(domain.domain_index, spec);
  }
  SessionRecord& record = store_.sessions.at(caller.session);
  if (std::find(record.groups.begin(), record.groups.end(), place) == record.groups.end()) {
    record.groups.push_back(place);
    ++group.session_count;
  }
  *opened = {.group_index = place, .id = id};
  for (const SpaceGroupMember& member : spec.members) {
    opened->members.push_back({.space = member.spec.Id(), .slot_bytes = member.spec.slot_bytes()});
  }
  return {};
}

}  // namespace terrace
