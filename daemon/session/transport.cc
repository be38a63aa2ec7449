#include "daemon/session/transport.h"

namespace terrace {

const char* CloseReasonName(CloseReason reason) {
  switch (reason) {
    case CloseReason::kClientLeft:
      return "the client left";
    case CloseReason::kMalformed:
      return "malformed frame";
    case CloseReason::kDescriptors:
      return "the client sent file descriptors";
    case CloseReason::kRefused:
      return "refused at Hello";
    case CloseReason::kSlowReader:
      return "the client does not read";
    case CloseReason::kNoBuffers:
      return "all sessions together buffer too much";
    case CloseReason::kNoHello:
      return "it had not said Hello in time, or others wanted its place";
  }
  return "unknown";
}

}  // namespace terrace
