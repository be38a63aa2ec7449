#include "daemon/session/client_requests.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "terrace/codec.h"

namespace terrace {

using protocol::Verb;

RequestOutcome ClientRequests::Step(RequestContext& context, Store& store) {
  bool is_malformed = false;
  const Error error = Act(context, store, &is_malformed);
  if (is_malformed) return frame_.Malformed(context, "such a request");
  if (!error.ok()) return frame_.Fail(context, error);
  Reply& reply = frame_.BeginReply(context);
  if (frame_.verb == Verb::kOpen) {
    reply.AddHead(opened_);
    reply.AddArray(std::span<const protocol::OpenedMember>(opened_members_));
  }
  if (turn_) reply.AddHead(*turn_);
  return RequestOutcome::kReply;
}

Error ClientRequests::Act(RequestContext& context, Store& store, bool* is_malformed) {
  if (frame_.verb == Verb::kOpen) return Open(context, store, is_malformed);
  if (frame_.verb == protocol::kVerbOrderDone) return OrderDone(context, store, is_malformed);
  if (frame_.verb == protocol::kVerbPinTurn) return PinTurn(context, store);
  if (frame_.verb == protocol::kVerbDeviceReport) {
    return store.devices().Report(context.session, frame_.Head<protocol::DeviceReport>());
  }
  const uint32_t segment = frame_.Head<protocol::UnmappedRequest>().segment;
  return store.sessions().Unmapped(context.session, segment);
}

Error ClientRequests::OrderDone(const RequestContext& context, Store& store, bool* is_malformed) {
  const auto done = frame_.Head<protocol::OrderDoneRequest>();
  *is_malformed = done.checksum_count > kPartsPerSpaceMax ||
                  frame_.body.size_bytes() != sizeof(done) + done.checksum_count * sizeof(Checksum);
  if (*is_malformed) return Status(StatusCode::kInvalid);
  step_checksums_.resize(done.checksum_count);
  frame_.body.ReadArray(sizeof(done), std::span(step_checksums_));
  return store.devices().OrderDone(context.session, done, step_checksums_);
}

Error ClientRequests::PinTurn(const RequestContext& context, Store& store) {
  const auto asked = frame_.Head<protocol::PinTurnRequest>();
  switch (asked.action) {
    case protocol::PinTurnAction::kAsk:
      return store.devices().AskPinTurn(context.session, &turn_.emplace().ahead_count);
    case protocol::PinTurnAction::kEnd:
      return store.devices().EndPinTurn(context.session);
  }
  return frame_.Invalid("turn action " + std::to_string(static_cast<uint32_t>(asked.action)) +
                        "; there are 0 (ask) and 1 (end)");
}

Error ClientRequests::ReadGroup(SpaceGroupSpec* group, uint64_t* self_mask, bool* is_malformed) {
  const Status malformed(StatusCode::kInvalid);
  *is_malformed = true;
  const auto open = frame_.Head<protocol::OpenRequest>();
  if (open.name_bytes > kGroupNameBytesMax || open.member_count > kGroupMembersMax) {
    *is_malformed = false;
    return frame_.Invalid("a group with a name of " + std::to_string(open.name_bytes) +
                          " bytes and " + std::to_string(open.member_count) +
                          " members; the limits are " + std::to_string(kGroupNameBytesMax) +
                          " and " + std::to_string(kGroupMembersMax));
  }
  size_t offset_bytes = sizeof(open);
  const auto read_text = [this, &offset_bytes](size_t text_bytes, std::string* text) {
    text->resize(text_bytes);
    if (!frame_.body.ReadArray(offset_bytes, std::span(*text))) return false;
    offset_bytes += text_bytes;
    return true;
  };
  if (!read_text(open.name_bytes, &group->name)) return malformed;
  for (uint32_t i = 0; i < open.member_count; ++i) {
    protocol::OpenMember member;
    std::string text;
    if (!frame_.body.Read(offset_bytes, &member) || member.text_bytes > kSpaceTextBytesMax) {
      return malformed;
    }
    offset_bytes += sizeof(member);
    if (!read_text(member.text_bytes, &text)) return malformed;
    std::string reason;
    group->members.push_back({.is_remote = member.is_remote != 0});
    if (!SpaceSpec::Parse(text, &group->members.back().spec, &reason).ok()) {
      *is_malformed = false;
      return frame_.Invalid("member " + std::to_string(i) + ": " + reason);
    }
  }
  *is_malformed = offset_bytes != frame_.body.size_bytes();
  *self_mask = open.self_mask;
  if (*is_malformed) return malformed;
  return {};
}

Error ClientRequests::Open(RequestContext& context, Store& store, bool* is_malformed) {
  SpaceGroupSpec group;
  uint64_t self_mask = 0;
  TERRACE_RETURN_IF_REFUSED(ReadGroup(&group, &self_mask, is_malformed));
  std::string reason;
  if (!group.Validate(&reason).ok()) return frame_.Invalid(reason);
  const size_t members = group.members.size();
  if (members < 64 && (self_mask >> members) != 0) {
    return frame_.Invalid("self mask " + std::to_string(self_mask) + "; the group has " +
                          std::to_string(members) + " members: set bits below that");
  }
  uint32_t part_count = 0;
  for (const auto& member : group.members) {
    part_count += static_cast<uint32_t>(member.spec.part_bytes.size());
  }
  OpenedGroup opened;
  TERRACE_RETURN_IF_REFUSED(store.sessions().OpenGroup(context.session, group, &opened));
  // Opened again, a group keeps its handle, with the members of this Open.
  const OpenedHandle handle{
      .group_index = opened.group_index,
      .self_mask = self_mask,
      .member_count = static_cast<uint32_t>(members),
      .part_count = part_count,
      .group = opened.id,
      .block_tokens = group.block_tokens(),
      .block_bytes =
          std::accumulate(opened.members.begin(), opened.members.end(), uint64_t{0},
                          [](uint64_t sum, const auto& member) { return sum + member.slot_bytes; }),
      .is_inexact = std::any_of(group.members.begin(), group.members.end(), [](const auto& member) {
        return IsLossy(member.spec) || IsOfChunks(member.spec);
      })};
  const auto known = std::find_if(
      context.handles.begin(), context.handles.end(),
      [&handle](const OpenedHandle& h) { return h.group_index == handle.group_index; });
  const auto index = static_cast<uint32_t>(known - context.handles.begin());
  if (known == context.handles.end()) {
    context.handles.push_back(handle);
  } else {
    *known = handle;
  }
  opened_members_ = std::move(opened.members);
  opened_ = {.group = opened.id,
             .group_handle = index + 1,
             .member_count = static_cast<uint32_t>(opened_members_.size())};
  return {};
}

}  // namespace terrace
