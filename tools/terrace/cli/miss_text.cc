#include "tools/terrace/cli/miss_text.h"

namespace terrace::tools {

std::string CauseText(protocol::MissCause cause) {
  switch (cause) {
    case protocol::MissCause::kCapacity:
      return "evicted to make room";
    case protocol::MissCause::kQuota:
      return "no room could be made for it, or its room went back to another domain";
    case protocol::MissCause::kAdmission:
      return "evicted from DRAM, and not thought worth writing below";
    case protocol::MissCause::kExpired:
      return "past its time to live";
    case protocol::MissCause::kCorrupt:
      return "its bytes were not those that were stored";
    case protocol::MissCause::kOperator:
      return "evicted by an operator";
    default:
      return "gone";
  }
}

}  // namespace terrace::tools
