#include "daemon/session/request_frame.h"

#include <utility>

#include "daemon/session/verb_table.h"

namespace terrace {
namespace {

uint64_t MembersMask(uint32_t member_count) {
  return member_count >= 64 ? ~uint64_t{0} : (uint64_t{1} << member_count) - 1;
}

}  // namespace

Error RequestFrame::Invalid(std::string sentence) {
  return {Status(StatusCode::kInvalid, "the request is not valid"), std::move(sentence)};
}

void RequestFrame::Answer(const RequestContext& context, Status status, std::string answer) {
  text = std::move(answer);
  reply.Begin(verb, id, context.boot_id, status);
  if (status.ok()) {
    reply.AddArray(std::span<const char>(text));
  } else {
    reply.AddText(text.empty() ? std::string_view(status.what()) : text);
  }
}

RequestOutcome RequestFrame::Malformed(const RequestContext& context, const std::string& what) {
  Answer(context, Status(StatusCode::kInvalid),
         std::string(VerbName(verb)) + " of " + std::to_string(body.size_bytes()) +
             " bytes; that is not the size of " + what +
             ": the connection is closed, since its frames cannot be told apart any more");
  return RequestOutcome::kMalformed;
}

RequestOutcome RequestFrame::Fail(const RequestContext& context, const Error& error) {
  Answer(context, error.status(), error.sentence());
  return RequestOutcome::kReply;
}

Reply& RequestFrame::BeginReply(const RequestContext& context) {
  reply.Begin(verb, id, context.boot_id, Status::Ok());
  return reply;
}

Error RequestFrame::ResolveGroup(const RequestContext& context, bool may_mean_all,
                                 protocol::KeysRequest* keys, uint32_t* group_index) {
  if (keys->group_handle == 0 && may_mean_all) {
    keys->member_mask = 0;
    return {};
  }
  if (keys->group_handle == 0 || keys->group_handle > context.handles.size()) {
    return Invalid("group handle " + std::to_string(keys->group_handle) + "; this session has " +
                   std::to_string(context.handles.size()) + ": Open the group first");
  }
  const OpenedHandle& handle = context.handles[keys->group_handle - 1];
  if ((keys->member_mask & ~MembersMask(handle.member_count)) != 0) {
    return Invalid("member mask " + std::to_string(keys->member_mask) + "; the group has " +
                   std::to_string(handle.member_count) + " members");
  }
  if (handle.is_inexact && (keys->hints.flags & protocol::kHintExact) != 0) {
    return {Status(StatusCode::kUnsupported, "the group is inexact"),
            "the group keeps its blocks under a lossy codec, or as chunks, and the request asks "
            "for exact ones: open the Space without 'quantisation' and of another layout, or do "
            "not ask for exact"};
  }
  *group_index = handle.group_index;
  if (keys->member_mask == 0) keys->member_mask = handle.self_mask;
  return {};
}

}  // namespace terrace
