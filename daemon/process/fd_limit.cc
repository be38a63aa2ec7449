#include "daemon/process/fd_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "daemon/config/config_text.h"
#include "daemon/config/fd_needs.h"

namespace terrace {

Status RaiseFdLimit(const DaemonConfig& config, uint64_t* fds_max, std::string* why) {
  const FdNeeds needs = FdNeedsOf(config);
  const uint64_t slab_files_max =
      config.domains.size() * config.nvme.paths.size() * kSlabFilesOpenOfAPath;
  const uint64_t wanted =
      needs.without_slab_files() + needs.left + slab_files_max * kFdsPerSlabFile;
  rlimit limit{};
  *fds_max = UINT64_MAX;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return Status::Ok();
  *fds_max = limit.rlim_cur;
  if (limit.rlim_cur >= wanted) return Status::Ok();
  if (limit.rlim_max < needs.connections) {
    *why = "daemon.sessions_max is " + std::to_string(config.sessions_max) + ", which needs " +
           std::to_string(needs.connections) + " open files; the hard limit is " +
           std::to_string(limit.rlim_max) + ": raise it (LimitNOFILE=) or lower sessions_max";
    return Status(StatusCode::kNoSpace, "too few open files");
  }
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    *why = "cannot raise the limit of open files to " + std::to_string(limit.rlim_cur) +
           ": raise it (LimitNOFILE=) or lower daemon.sessions_max";
    return Status(StatusCode::kIo, "cannot raise the limit of open files", errno);
  }
  *fds_max = limit.rlim_cur;
  return Status::Ok();
}

Status CheckFileSizeLimit(const DaemonConfig& config, std::string* why) {
  if (!config.nvme.is_on()) return Status::Ok();
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= config.nvme.slab_bytes) {
    return Status::Ok();
  }
  *why = "nvme.slab_bytes is " + FormatBytes(config.nvme.slab_bytes) +
         "; this process's file size limit (RLIMIT_FSIZE) is " + FormatBytes(limit.rlim_cur) +
         ": raise it (LimitFSIZE=infinity, ulimit -f), or lower slab_bytes";
  return Status(StatusCode::kIo, "RLIMIT_FSIZE", EFBIG);
}

}  // namespace terrace
