#include "daemon/session/request_frame.h"

#include <utility>

#include "daemon/session/verb_table.h"

namespace terrace {
namespace {

uint64_t MembersMask(uint32_t member_count) {
  return member_count >= 64 ? ~uint64_t{0} : (uint64_t{1} << member_count) - 1;
}

}  // namespace

Status RequestFrame::Invalid(std::string sentence) {
  why = std::move(sentence);
  return Status(StatusCode::kInvalid, "the request is not valid");
}

void RequestFrame::Answer(const RequestContext& context, Status status, std::string text) {
  why = std::move(text);
  reply.Begin(verb, id, context.boot_id, status);
  if (status.ok()) {
    reply.AddArray(std::span<const char>(why));
  } else {
    reply.AddText(why.empty() ? std::string_view(status.what()) : why);
  }
}

RequestOutcome RequestFrame::Malformed(const RequestContext& context, const std::string& what) {
  Answer(context, Status(StatusCode::kInvalid),
         std::string(VerbName(verb)) + " of " + std::to_string(body.size_bytes()) +
             " bytes; that is not the size of " + what +
             ": the connection is closed, since its frames cannot be told apart any more");
  return RequestOutcome::kMalformed;
}

RequestOutcome RequestFrame::Fail(const RequestContext& context, Status status) {
  Answer(context, status, std::move(why));
  return RequestOutcome::kReply;
}

Reply& RequestFrame::BeginReply(const RequestContext& context) {
  reply.Begin(verb, id, context.boot_id, Status::Ok());
  return reply;
}

Status RequestFrame::ResolveGroup(const RequestContext& context, bool may_mean_all,
                                  protocol::KeysRequest* keys, uint32_t* group_index) {
  if (keys->group_handle == 0 && may_mean_all) {
    keys->member_mask = 0;
    return Status::Ok();
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
    why =
        "the group keeps its blocks under a lossy codec, or as chunks, and the request asks for "
        "exact ones: open the Space without 'quantisation' and of another layout, or do not ask "
        "for exact";
    return Status(StatusCode::kUnsupported, "the group is inexact");
  }
  *group_index = handle.group_index;
  if (keys->member_mask == 0) keys->member_mask = handle.self_mask;
  return Status::Ok();
}

}  // namespace terrace
