// A library to preload into terraced: it kills the process at one chosen system call on the files
// of the NVMe tier, so that every step of writing, publishing, evicting and recovering can be the
// last one.
//
// TERRACE_KILL_POINT=CALL:FILE:SIDE:N, such as pwrite:slab:after:3: SIGKILL before or after the
// Nth CALL on a FILE. Calls: open, pwrite, write, pread, fallocate, sync, rename, unlink. Files:
// see KindOf. With TERRACE_KILL_POINT_LOG=PATH every call on such a file is counted there instead,
// one "CALL:FILE" a line, for a list of the points there are.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

struct Point {
  std::string name;  // "pwrite:slab"
  bool is_after = false;
  uint64_t number = 0;
};

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// nullptr: no point is chosen.
const Point* ChosenPoint() {
  static const Point* const point = []() -> const Point* {
    const char* text = std::getenv("TERRACE_KILL_POINT");
    if (text == nullptr) return nullptr;
    char call[16], file[16], side[16];
    unsigned long long number = 0;
    if (sscanf(text, "%15[^:]:%15[^:]:%15[^:]:%llu", call, file, side, &number) != 4) abort();
    return new Point{std::string(call) + ":" + file, std::string_view(side) == "after", number};
  }();
  return point;
}

// What a path holds; empty for files of no interest.
std::string_view KindOf(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1: all of it
  if (name.starts_with("slab-")) return "slab";
  if (path.find("/nvme/") == path.npos) return {};
  if (path.find("/groups") != path.npos) return "group";
  if (path.find("/catalog") == path.npos) return "other";
  if (name.ends_with(".log")) return "wal";
  if (name.ends_with(".sst")) return "sst";
  if (name.starts_with("MANIFEST")) return "manifest";
  if (name.starts_with("CURRENT")) return "current";
  return "catalog";
}

std::string_view KindOfFd(int fd, char* path, size_t path_bytes) {
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, path_bytes);
  return length <= 0 ? std::string_view() : KindOf({path, static_cast<size_t>(length)});
}

class Step {
 public:
  Step(const char* call, std::string_view kind) {
    if (kind.empty()) return;
    snprintf(name_, sizeof(name_), "%s:%.*s", call, static_cast<int>(kind.size()), kind.data());
    Log();
    const Point* point = ChosenPoint();
    is_chosen_ = point != nullptr && point->name == name_ && ++seen == point->number;
    if (is_chosen_ && !point->is_after) Die();
  }
  static Step OnFd(const char* call, int fd) {
    char path[512];
    return Step(call, KindOfFd(fd, path, sizeof(path)));
  }
  void Done() const {
    if (is_chosen_) Die();
  }

 private:
  [[noreturn]] static void Die() {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  void Log() const {
    static const char* const log = std::getenv("TERRACE_KILL_POINT_LOG");
    if (log == nullptr) return;
    static const int fd =
        Next<int (*)(const char*, int, ...)>("open")(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    char line[64];
    const int length = snprintf(line, sizeof(line), "%s\n", name_);
    (void)!Next<ssize_t (*)(int, const void*, size_t)>("write")(fd, line,
                                                                static_cast<size_t>(length));
  }

  static inline std::atomic<uint64_t> seen = 0;
  char name_[40] = {};
  bool is_chosen_ = false;
};

template <typename Function, typename... Arguments>
auto OnFd(const char* symbol, const char* call, int fd, Arguments... arguments) {
  static const auto next = Next<Function>(symbol);
  const Step step = Step::OnFd(call, fd);
  const auto result = next(fd, arguments...);
  step.Done();
  return result;
}

template <typename Function, typename... Arguments>
auto OnPath(const char* symbol, const char* call, const char* path, Arguments... arguments) {
  static const auto next = Next<Function>(symbol);
  const Step step(call, KindOf(path));
  const auto result = next(path, arguments...);
  step.Done();
  return result;
}

using Write = ssize_t (*)(int, const void*, size_t);
using Pwrite = ssize_t (*)(int, const void*, size_t, off_t);
using Pread = ssize_t (*)(int, void*, size_t, off_t);
using OnlyFd = int (*)(int);

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED ssize_t write(int fd, const void* from, size_t length) {
  return OnFd<Write>("write", "write", fd, from, length);
}
EXPORTED ssize_t pwrite(int fd, const void* from, size_t length, off_t offset) {
  return OnFd<Pwrite>("pwrite", "pwrite", fd, from, length, offset);
}
EXPORTED ssize_t pwrite64(int fd, const void* from, size_t length, off_t offset) {
  return OnFd<Pwrite>("pwrite64", "pwrite", fd, from, length, offset);
}
EXPORTED ssize_t pread(int fd, void* into, size_t length, off_t offset) {
  return OnFd<Pread>("pread", "pread", fd, into, length, offset);
}
EXPORTED ssize_t pread64(int fd, void* into, size_t length, off_t offset) {
  return OnFd<Pread>("pread64", "pread", fd, into, length, offset);
}
EXPORTED int fdatasync(int fd) { return OnFd<OnlyFd>("fdatasync", "sync", fd); }
EXPORTED int fsync(int fd) { return OnFd<OnlyFd>("fsync", "sync", fd); }
EXPORTED int fallocate(int fd, int mode, off_t offset, off_t length) {
  return OnFd<int (*)(int, int, off_t, off_t)>("fallocate", "fallocate", fd, mode, offset, length);
}
EXPORTED int fallocate64(int fd, int mode, off_t offset, off_t length) {
  return OnFd<int (*)(int, int, off_t, off_t)>("fallocate64", "fallocate", fd, mode, offset,
                                               length);
}
EXPORTED int rename(const char* from, const char* to) {
  static const auto next = Next<int (*)(const char*, const char*)>("rename");
  const Step step("rename", KindOf(to));
  const int result = next(from, to);
  step.Done();
  return result;
}
EXPORTED int unlink(const char* path) {
  return OnPath<int (*)(const char*)>("unlink", "unlink", path);
}
EXPORTED int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return OnPath<int (*)(const char*, int, ...)>("open", "open", path, flags, mode);
}
EXPORTED int openat(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  static const auto next = Next<int (*)(int, const char*, int, ...)>("openat");
  const Step step("open", KindOf(path));
  const int result = next(directory, path, flags, mode);
  step.Done();
  return result;
}
EXPORTED int unlinkat(int directory, const char* path, int flags) {
  static const auto next = Next<int (*)(int, const char*, int)>("unlinkat");
  const Step step("unlink", KindOf(path));
  const int result = next(directory, path, flags);
  step.Done();
  return result;
}
EXPORTED int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return OnPath<int (*)(const char*, int, ...)>("open64", "open", path, flags, mode);
}
