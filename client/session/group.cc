#include "client/session/group.h"

#include "client/link/frames.h"
#include "terrace/protocol.h"

namespace terrace::client {
namespace {

void Append(std::span<const std::byte> bytes, std::vector<std::byte>* to) {
  to->insert(to->end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> BytesOfText(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

Result<std::unique_ptr<Group>> Group::Create(const SpaceGroupSpec& spec, uint64_t self_mask,
                                             std::string* why) {
  TERRACE_RETURN_IF_ERROR(spec.Validate(why));
  std::unique_ptr<Group> group(new Group());
  group->name_ = spec.name;
  group->id_ = spec.Id();
  group->self_mask_ = self_mask;
  group->block_tokens_ = spec.block_tokens();
  protocol::OpenRequest request;
  request.name_bytes = static_cast<uint32_t>(spec.name.size());
  request.member_count = static_cast<uint32_t>(spec.members.size());
  request.self_mask = self_mask;
  Append(BytesOf(request), &group->open_body_);
  Append(BytesOfText(spec.name), &group->open_body_);
  for (const SpaceGroupMember& member : spec.members) {
    const std::string text = member.spec.CanonicalText();
    protocol::OpenMember header;
    header.text_bytes = static_cast<uint32_t>(text.size());
    header.is_remote = member.is_remote ? 1 : 0;
    Append(BytesOf(header), &group->open_body_);
    Append(BytesOfText(text), &group->open_body_);
    GroupMember& layout = group->members_.emplace_back();
    layout.space = member.spec.Id();
    layout.slot_bytes = member.spec.slot_bytes();
    layout.is_windowed = member.spec.is_windowed();
    layout.part_bytes = member.spec.part_bytes;
    TERRACE_RETURN_IF_ERROR(SpaceCodec::Of(member.spec, &layout.codec, why));
    layout.engine_part_bytes =
        layout.codec.is_lossy() ? layout.codec.RawPartBytes() : layout.part_bytes;
    for (uint32_t part = 0; part < layout.part_count(); ++part) {
      layout.part_offset_bytes.push_back(member.spec.part_offset_bytes(part));
    }
  }
  for (const GroupMember& member : group->members_) {
    if (member.codec.has_chunk_header == group->is_of_chunks()) continue;
    *why = "SpaceGroup " + spec.name + " has Spaces of layout '" + std::string(kChunkLayout) +
           "' and others: keys of chunks are not those of prefixes, so declare two groups";
    return Status(StatusCode::kInvalid, "a SpaceGroup is of chunks, or of prefixes");
  }
  if (!group->has_members(self_mask)) {
    *why = "self_mask names members that SpaceGroup " + spec.name + " has not; it has " +
           std::to_string(spec.members.size()) + ": set bits below that only";
    return Status(StatusCode::kInvalid, "self_mask names members the SpaceGroup has not");
  }
  return group;
}

bool Group::has_members(uint64_t mask) const {
  return members_.size() >= 64 || mask >> members_.size() == 0;
}

Result<uint32_t> Group::DecodeOpenReply(std::span<const std::byte> body, std::string* why) const {
  BodyReader reader(body);
  protocol::OpenReply reply;
  const Status wrong(StatusCode::kInvalid, "the answer to Open cannot be right");
  const std::string remedy = ": update libterrace or terraced so that both are of one release";
  if (!reader.Read(&reply) || reply.member_count != members_.size() || reply.group_handle == 0) {
    *why = "the daemon's answer to Open of SpaceGroup " + name_ + " names " +
           std::to_string(reply.member_count) + " members, handle " +
           std::to_string(reply.group_handle) + "; " + std::to_string(members_.size()) +
           " members were declared" + remedy;
    return wrong;
  }
  if (reply.group != id_) {
    *why = "the daemon calls SpaceGroup " + name_ + " " + ToHex(reply.group) + "; here it is " +
           ToHex(id_) + remedy;
    return wrong;
  }
  for (const GroupMember& member : members_) {
    protocol::OpenedMember opened;
    if (!reader.Read(&opened) || opened.space != member.space ||
        opened.slot_bytes < member.slot_bytes) {
      *why = "the daemon's answer to Open of SpaceGroup " + name_ + " says a slot of " +
             std::to_string(opened.slot_bytes) + " bytes for Space " + ToHex(opened.space) +
             "; here it is " + std::to_string(member.slot_bytes) + " for " + ToHex(member.space) +
             remedy;
      return wrong;
    }
  }
  return reply.group_handle;
}

uint32_t Group::handle(uint32_t connection) const {
  const uint64_t binding = binding_.load(std::memory_order_acquire);
  return binding >> 32 == connection ? static_cast<uint32_t>(binding) : 0;
}

void Group::Bind(uint32_t connection, uint32_t handle) {
  binding_.store(uint64_t{connection} << 32 | handle, std::memory_order_release);
}

Group* GroupTable::At(uint32_t index) const {
  return index < count() ? groups_[index].get() : nullptr;
}

Result<uint32_t> GroupTable::Add(std::unique_ptr<Group> group) {
  LockGuard guard(lock_);
  const uint32_t group_count = count();
  for (uint32_t index = 0; index < group_count; ++index) {
    const Group& known = *groups_[index];
    if (known.name() == group->name() && known.id() == group->id() &&
        known.self_mask() == group->self_mask()) {
      return index;
    }
  }
  if (group_count == kGroupsMax) {
    return Status(StatusCode::kNoSpace, "256 SpaceGroups are open in this Client, the limit");
  }
  groups_[group_count] = std::move(group);
  count_.store(group_count + 1, std::memory_order_release);
  return group_count;
}

}  // namespace terrace::client
