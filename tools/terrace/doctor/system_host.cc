#include "tools/terrace/doctor/system_host.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cuda/host/device_loader.h"
#include "cuda/kernels/codec.h"
#include "tiers/disk/uring_ring.h"
#include "tools/terrace/doctor/redis_probe.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace terrace::tools {
namespace {

constexpr uint64_t kStatBlockBytes = 512;  // of st_blocks, whatever the file system's are

// Errno of a call that answered a descriptor or -1; the descriptor is closed.
int ErrorOf(int fd) {
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

}  // namespace

std::string SystemHost::WhyNoRing(std::string* description) const {
  UringRing ring;
  std::string why;
  if (!ring.Open({.entries = 8, .files_max = 8, .buffers_max = 8}, &why).ok()) return why;
  *description = ring.description();
  return "";
}

int SystemHost::MemfdError() const { return ErrorOf(memfd_create("terrace-doctor", MFD_CLOEXEC)); }

int SystemHost::PeerPidfdError() const {
  int pair[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  int pidfd = -1;
  socklen_t size_bytes = sizeof(pidfd);
  int error = 0;
  if (getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size_bytes) != 0) error = errno;
  if (pidfd >= 0) close(pidfd);
  close(pair[0]);
  close(pair[1]);
  return error;
}

std::optional<FileFacts> SystemHost::Stat(const std::string& path, int* error) const {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    *error = errno;
    return std::nullopt;
  }
  std::error_code no_path;
  return FileFacts{.mode = info.st_mode,
                   .uid = info.st_uid,
                   .gid = info.st_gid,
                   .held_bytes = static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes,
                   .real_path = std::filesystem::canonical(path, no_path)};
}

std::optional<VolumeFacts> SystemHost::Volume(const std::string& path) const {
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) != 0) return std::nullopt;
  return VolumeFacts{.total_bytes = info.f_blocks * info.f_frsize,
                     .free_bytes = info.f_bavail * info.f_frsize};
}

DirectIo SystemHost::TryDirectIo(const std::string& directory) const {
  constexpr int kFlags = O_TMPFILE | O_RDWR | O_CLOEXEC;
  if (ErrorOf(open(directory.c_str(), kFlags | O_DIRECT, 0600)) == 0) return DirectIo::kWorks;
  const int error = ErrorOf(open(directory.c_str(), kFlags, 0600));
  return error == 0 ? DirectIo::kRefused : DirectIo::kUnseen;
}

std::string SystemHost::WhyNoRedis(const std::string& endpoint, uint32_t timeout_ms,
                                   bool is_tls) const {
  return ProbeRedis(endpoint, timeout_ms, is_tls);
}

std::string SystemHost::WhyNoPlugin(const std::string& path, std::string* description) const {
  std::string why;
  const Result<ChosenBackend> chosen = ChooseBackend(DeviceBackend::kCuda, path, &why);
  if (!chosen.ok()) return why;
  uint32_t device_count = 0;
  (void)chosen->ops->count_devices(&device_count);  // ChooseBackend has counted them
  *description = fmt::format("{} device{}", device_count, device_count == 1 ? "" : "s");
  return "";
}

std::string SystemHost::VectorUnits() const {
  switch (BestSimdLevel()) {
    case SimdLevel::kAvx512:
      return "AVX-512";
    case SimdLevel::kAvx2:
      return "AVX2";
    case SimdLevel::kPortable:
      break;
  }
  return "";
}

}  // namespace terrace::tools
