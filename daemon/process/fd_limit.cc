#include "daemon/process/fd_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "daemon/config/fd_needs.h"

namespace terrace {
namespace {

// What a predecessor left of each of its sessions, where the limit allows.
constexpr uint64_t kFdsPerSessionLeft = 2;

}  // namespace

Status RaiseFdLimit(uint32_t sessions_max, uint64_t others, std::string* why) {
  rlimit limit;
  const uint64_t needed = FdsNeeded(sessions_max, others);
  const uint64_t wanted = needed + sessions_max * kFdsPerSessionLeft;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return Status::Ok();
  if (limit.rlim_max < needed) {
    *why = "daemon.sessions_max is " + std::to_string(sessions_max) + ", which needs " +
           std::to_string(needed) + " open files; the hard limit is " +
           std::to_string(limit.rlim_max) + ": raise it (LimitNOFILE=) or lower sessions_max";
    return Status(StatusCode::kNoSpace, "too few open files");
  }
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    *why = "cannot raise the limit of open files to " + std::to_string(limit.rlim_cur) +
           ": raise it (LimitNOFILE=) or lower daemon.sessions_max";
    return Status(StatusCode::kIo, "cannot raise the limit of open files", errno);
  }
  return Status::Ok();
}

}  // namespace terrace
