#include "daemon/session/hello.h"

#include <string>

namespace terrace {

Error ReadHello(const MessageBody& body, protocol::HelloRequest* hello) {
  if (body.size_bytes() != sizeof(*hello) || !body.Read(0, hello) ||
      hello->magic != protocol::kMagic) {
    return {StatusCode::kInvalid,
            "this is no Hello of the Terrace protocol: is another program talking to this socket?"};
  }
  if (hello->version_max < protocol::kVersionMin || hello->version_min > protocol::kVersion) {
    return {StatusCode::kUnsupported,
            "the client speaks frame versions " + std::to_string(hello->version_min) + " to " +
                std::to_string(hello->version_max) + ", this daemon " +
                std::to_string(protocol::kVersionMin) + " to " +
                std::to_string(protocol::kVersion) + ": upgrade the older one"};
  }
  return {};
}

Error CheckRole(const RequestContext& context, const protocol::HelloRequest& hello) {
  const bool is_served =
      context.role == SessionRole::kWriter || (hello.flags & protocol::kHelloReader) != 0;
  if (is_served) return {};
  return {
      StatusCode::kUnsupported,
      "uid " + std::to_string(context.uid) +
          " is a reader, as writer_uids of the domain does not name it, and this client is from "
          "before there were readers: update libterrace, or add the uid there"};
}

Transport::Attach AttachOf(SessionRole role, const protocol::HelloRequest& hello) {
  const bool has_notices = (hello.flags & protocol::kHelloNotices) != 0;
  if (role == SessionRole::kReader) {
    return has_notices ? Transport::Attach::kReadersArenaLifeAndNotices
                       : Transport::Attach::kReadersArenaAndLife;
  }
  return has_notices ? Transport::Attach::kArenaLifeAndNotices : Transport::Attach::kArenaAndLife;
}

}  // namespace terrace
