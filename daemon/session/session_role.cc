#include "daemon/session/session_role.h"

namespace terrace {

std::string RefusalOfReader(std::string_view what, uint32_t uid) {
  return std::string(what) + " is for writers, and uid " + std::to_string(uid) +
         " is a reader: writer_uids of the domain names who may store; add the uid there, then "
         "connect again";
}

}  // namespace terrace
