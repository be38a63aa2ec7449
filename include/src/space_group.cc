// SpaceGroupSpec of terrace/space.h.
#include <algorithm>

#include "src/xxh3.h"
#include "terrace/space.h"

namespace terrace {
namespace {

Status Refuse(std::string* why, std::string reason) {
  *why = std::move(reason);
  return Status(StatusCode::kInvalid, "the space group is not valid");
}

template <typename Predicate>
uint64_t MaskOf(const std::vector<SpaceGroupMember>& members, Predicate is_set) {
  uint64_t mask = 0;
  for (size_t m = 0; m < std::min<size_t>(members.size(), kGroupMembersMax); ++m) {
    if (is_set(members[m])) mask |= uint64_t{1} << m;
  }
  return mask;
}

Status ValidateName(const std::string& name, std::string* why) {
  if (name.empty() || name.size() > kGroupNameBytesMax) {
    return Refuse(why, "the group's name has " + std::to_string(name.size()) +
                           " characters; it must have 1 to " + std::to_string(kGroupNameBytesMax) +
                           ": name the model instance, e.g. llama3-70b");
  }
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] >= 0x20 && name[i] <= 0x7e) continue;
    return Refuse(why, "the group's name has byte " +
                           std::to_string(static_cast<unsigned char>(name[i])) + " at position " +
                           std::to_string(i) + "; only printable ASCII (32 to 126) is allowed");
  }
  return Status::Ok();
}

}  // namespace

Status SpaceGroupSpec::Validate(std::string* why) const {
  TERRACE_RETURN_IF_ERROR(ValidateName(name, why));
  if (members.empty() || members.size() > kGroupMembersMax) {
    return Refuse(why, "group '" + name + "' has " + std::to_string(members.size()) +
                           " members; it must have 1 to " + std::to_string(kGroupMembersMax) +
                           ": declare one Space per rank and attention group");
  }
  for (size_t m = 0; m < members.size(); ++m) {
    const SpaceSpec& spec = members[m].spec;
    if (const Status status = spec.Validate(why); !status.ok()) {
      why->insert(0, "group '" + name + "', member " + std::to_string(m) + ": ");
      return status;
    }
    if (spec.block_tokens != block_tokens()) {
      return Refuse(why, "group '" + name + "', member " + std::to_string(m) +
                             ": block_tokens is " + std::to_string(spec.block_tokens) +
                             " but member 0 has " + std::to_string(block_tokens()) +
                             ": all members of a group share one block size");
    }
    for (size_t other = 0; other < m; ++other) {
      if (members[other].spec != spec) continue;
      return Refuse(why, "group '" + name + "': members " + std::to_string(other) + " and " +
                             std::to_string(m) +
                             " are the same Space: give each its tp_rank, pp_rank, cp_rank or "
                             "attention_group");
    }
  }
  if (full_member_mask() == 0) {
    return Refuse(why, "group '" + name + "' has " + std::to_string(members.size()) +
                           " windowed members and none without a window; it must have at least "
                           "one: declare the full-attention layers, too");
  }
  return Status::Ok();
}

GroupId SpaceGroupSpec::Id() const {
  XXH3_state_t state;
  xxh3::Start128(&state);
  for (const SpaceGroupMember& member : members) {
    const SpaceId id = member.spec.Id();
    xxh3::Append(&state, std::as_bytes(std::span(&id.low, 1)));
    xxh3::Append(&state, std::as_bytes(std::span(&id.high, 1)));
  }
  const XXH128_hash_t hash = xxh3::Finish128(state);
  return GroupId{.low = hash.low64, .high = hash.high64};
}

uint64_t SpaceGroupSpec::full_member_mask() const {
  return MaskOf(members, [](const SpaceGroupMember& m) { return !m.spec.is_windowed(); });
}

uint64_t SpaceGroupSpec::windowed_member_mask() const {
  return MaskOf(members, [](const SpaceGroupMember& m) { return m.spec.is_windowed(); });
}

uint64_t SpaceGroupSpec::local_member_mask() const {
  return MaskOf(members, [](const SpaceGroupMember& m) { return !m.is_remote; });
}

}  // namespace terrace
