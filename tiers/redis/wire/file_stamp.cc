#include "tiers/redis/wire/file_stamp.h"

#include <sys/stat.h>
#include <time.h>

namespace terrace {
namespace {

// The coarsest of what file systems count in.
constexpr int64_t kTickNs = 2'000'000'000;

int64_t NanosecondsOf(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

}  // namespace

FileStamp StampOf(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return {};
  return {.device = about.st_dev,
          .inode = about.st_ino,
          .size_bytes = static_cast<uint64_t>(about.st_size),
          .changed_ns = NanosecondsOf(about.st_ctim)};
}

bool IsSettled(const FileStamp& stamp) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return stamp.changed_ns + kTickNs < NanosecondsOf(now);
}

}  // namespace terrace
