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

}  // namespace terrace
