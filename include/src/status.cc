#include "terrace/status.h"

namespace terrace {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kExists:
      return "exists";
    case StatusCode::kNoSpace:
      return "no space";
    case StatusCode::kBusy:
      return "busy";
    case StatusCode::kInvalid:
      return "invalid";
    case StatusCode::kCorrupt:
      return "corrupt";
    case StatusCode::kIo:
      return "i/o error";
    case StatusCode::kGone:
      return "gone";
    case StatusCode::kUnsupported:
      return "unsupported";
  }
  return "unknown status";
}

}  // namespace terrace
