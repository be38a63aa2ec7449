// A library to preload: one chosen call to the system, or for memory, fails.
//
//   TERRACE_FAULT=CALL:N:ERRNO[:COUNT]  the Nth CALL, and the COUNT - 1 behind it, fail with ERRNO
//   TERRACE_FAULT_OBJECTS=A,B           whose calls count: objects whose path has A or B in it
//                                       ("main": the program itself)
//   TERRACE_FAULT_BYTES_MIN=B           memory below this is always given
//   TERRACE_FAULT_PAGE=PATH             faults.h: counts, and whether it has struck
//   TERRACE_FAULT_TRACE=1               tells standard error who called what failed
//
// One process has one fault, so that what follows is its doing alone. Which calls are meant is told
// by who calls: an allocation of libterrace.so is one of its text, also through the C++ runtime
// that it brings along, and an engine's own are none. Calls count while the page says so: a program
// under test arms it for the steps that it wants to fail and disarms it to see that all works
// again. N grows from 1 until a run ends without having struck; counts are of all threads together,
// so the same N is not always the same line of code, and the page says which it was
// (addr2line -e OBJECT PLACE, or the trace).
//
// What fails does nothing else: no half sent message, no descriptor that leaks. Errors that a call
// may leave behind in part are other tests' matter (disks: tests/sim, tests/chaos/kill_point.cc).
// The shim itself takes no memory and calls nothing that it replaces.
//
// Calls that libc makes within itself are not seen (fopen's open is, as fopen). Of io_uring the
// functions of liburing fail that enter the kernel.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>

#include "faults/faults.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

using terrace::faults::Call;
using terrace::faults::FaultPage;

constexpr const char* kNames[] = {"malloc", "open",   "mmap",    "ftruncate", "fallocate",
                                  "memfd",  "socket", "connect", "accept",    "recv",
                                  "send",   "event",  "epoll",   "wait",      "thread",
                                  "ring",   "sync",   "rename",  "write",     "read"};
static_assert(sizeof(kNames) / sizeof(kNames[0]) == terrace::faults::kCallCount);
constexpr int kObjectsMax = 8;

struct Object {
  uintptr_t base = 0, begin = 0, end = 0;  // of what is loaded of it
};

// All of it is constant once the constructor has run; before that nothing counts.
FaultPage* page = nullptr;
Object objects[kObjectsMax];
int object_count = 0;
bool is_call_chosen = false;
Call chosen_call{};
uint64_t first = 0, count = 1;
int chosen_errno = 0;
size_t bytes_min = 0;
bool is_traced = false;

bool IsMeant(const char* path, bool is_main, char* names) {
  char copy[512];
  snprintf(copy, sizeof(copy), "%s", names);
  char* rest = nullptr;
  for (char* name = strtok_r(copy, ",", &rest); name; name = strtok_r(nullptr, ",", &rest)) {
    if (std::strcmp(name, "main") == 0 ? is_main : std::strstr(path, name) != nullptr) return true;
  }
  return false;
}

int OnObject(dl_phdr_info* object, size_t /*info_bytes*/, void* names) {
  static bool is_main = true;  // the first
  const bool is_meant = IsMeant(object->dlpi_name, is_main, static_cast<char*>(names));
  is_main = false;
  if (!is_meant || object_count == kObjectsMax) return 0;
  Object& meant = objects[object_count++];
  meant.base = object->dlpi_addr;
  meant.begin = UINTPTR_MAX;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    if (begin < meant.begin) meant.begin = begin;
    if (begin + part.p_memsz > meant.end) meant.end = begin + part.p_memsz;
  }
  return 0;
}

__attribute__((constructor)) void ReadChoice() {
  if (const char* const text = std::getenv("TERRACE_FAULT")) {
    char name[16];
    unsigned long long from = 0, how_many = 1;
    if (sscanf(text, "%15[^:]:%llu:%d:%llu", name, &from, &chosen_errno, &how_many) < 3) abort();
    for (uint32_t call = 0; call < terrace::faults::kCallCount; ++call) {
      if (std::strcmp(name, kNames[call]) != 0) continue;
      chosen_call = static_cast<Call>(call);
      is_call_chosen = true;
    }
    if (!is_call_chosen) abort();
    first = from;
    count = how_many;
  }
  if (const char* const text = std::getenv("TERRACE_FAULT_BYTES_MIN")) {
    bytes_min = std::strtoull(text, nullptr, 10);
  }
  is_traced = std::getenv("TERRACE_FAULT_TRACE") != nullptr;
  char* const names = std::getenv("TERRACE_FAULT_OBJECTS");
  if (names == nullptr) return;
  dl_iterate_phdr(OnObject, names);
  page = terrace::faults::MapFaultPage();
}

// By then nothing more is struck, and what it takes itself is given.
void Trace() {
  void* callers[24];
  const int caller_count = backtrace(callers, 24);
  backtrace_symbols_fd(callers + 2, caller_count - 2, STDERR_FILENO);
}

// Whether this call is the one. errno is set if it is.
bool Strikes(Call call, const void* caller, bool counts = true) {
  FaultPage* const told = page;
  if (told == nullptr || !counts || told->is_armed == 0) return false;
  const auto at = reinterpret_cast<uintptr_t>(caller);
  const Object* from = nullptr;
  for (int i = 0; i < object_count && from == nullptr; ++i) {
    if (at >= objects[i].begin && at < objects[i].end) from = &objects[i];
  }
  if (from == nullptr) return false;
  const uint64_t number = told->counts[static_cast<uint32_t>(call)].fetch_add(1) + 1;
  if (!is_call_chosen || call != chosen_call || number < first || number >= first + count) {
    return false;
  }
  if (told->is_struck.exchange(1) == 0) told->place = at - from->base;
  if (is_traced) Trace();
  errno = chosen_errno;
  return true;
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define CALLER __builtin_return_address(0)
#define EXPORTED extern "C" __attribute__((visibility("default")))

// ---- memory -------------------------------------------------------------------------------------

EXPORTED void* malloc(size_t bytes) {
  if (Strikes(Call::kMalloc, CALLER, bytes >= bytes_min)) return nullptr;
  return __libc_malloc(bytes);
}
EXPORTED void* calloc(size_t n, size_t bytes) {
  if (Strikes(Call::kMalloc, CALLER, n * bytes >= bytes_min)) return nullptr;
  return __libc_calloc(n, bytes);
}
EXPORTED void* realloc(void* from, size_t bytes) {
  if (Strikes(Call::kMalloc, CALLER, bytes >= bytes_min)) return nullptr;
  return __libc_realloc(from, bytes);
}
EXPORTED void* aligned_alloc(size_t alignment, size_t bytes) {
  if (Strikes(Call::kMalloc, CALLER, bytes >= bytes_min)) return nullptr;
  return __libc_memalign(alignment, bytes);
}
EXPORTED int posix_memalign(void** to, size_t alignment, size_t bytes) {
  if (Strikes(Call::kMalloc, CALLER, bytes >= bytes_min)) return ENOMEM;
  void* const made = __libc_memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *to = made;
  return 0;
}

// ---- system calls -------------------------------------------------------------------------------

// Of a call that answers −1 and errno.
#define FAILS_WITH_ERRNO(RETURNS, NAME, CALL, TAKES, GIVES) \
  EXPORTED RETURNS NAME TAKES {                             \
    static const auto next = Next<RETURNS(*) TAKES>(#NAME); \
    if (Strikes(Call::CALL, CALLER)) return -1;             \
    return next GIVES;                                      \
  }
// Of a call that answers a negative errno.
#define FAILS_WITH_RESULT(NAME, TAKES, GIVES)               \
  EXPORTED int NAME TAKES {                                 \
    static const auto next = Next<int(*) TAKES>(#NAME);     \
    if (Strikes(Call::kRing, CALLER)) return -chosen_errno; \
    return next GIVES;                                      \
  }
// Of a call that opens a path, with a mode where it makes the file.
#define OPENS(NAME, TAKES, ...)                         \
  EXPORTED int NAME TAKES {                             \
    static const auto next = Next<int(*) TAKES>(#NAME); \
    va_list rest;                                       \
    va_start(rest, flags);                              \
    const mode_t mode = va_arg(rest, mode_t);           \
    va_end(rest);                                       \
    if (Strikes(Call::kOpen, CALLER)) return -1;        \
    return next(__VA_ARGS__, flags, mode);              \
  }

OPENS(open, (const char* path, int flags, ...), path)
OPENS(open64, (const char* path, int flags, ...), path)
OPENS(openat, (int directory, const char* path, int flags, ...), directory, path)
OPENS(openat64, (int directory, const char* path, int flags, ...), directory, path)

EXPORTED FILE* fopen(const char* path, const char* mode) {
  static const auto next = Next<FILE* (*)(const char*, const char*)>("fopen");
  if (Strikes(Call::kOpen, CALLER)) return nullptr;
  return next(path, mode);
}
EXPORTED FILE* fopen64(const char* path, const char* mode) {
  static const auto next = Next<FILE* (*)(const char*, const char*)>("fopen64");
  if (Strikes(Call::kOpen, CALLER)) return nullptr;
  return next(path, mode);
}
EXPORTED void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  static const auto next = Next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  if (Strikes(Call::kMmap, CALLER)) return MAP_FAILED;
  return next(at, bytes, protection, flags, fd, offset);
}
EXPORTED void* mmap64(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  static const auto next = Next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap64");
  if (Strikes(Call::kMmap, CALLER)) return MAP_FAILED;
  return next(at, bytes, protection, flags, fd, offset);
}
EXPORTED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                            void* (*run)(void*), void* argument) {
  static const auto next =
      Next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  if (Strikes(Call::kThread, CALLER)) return chosen_errno;
  return next(thread, attributes, run, argument);
}

FAILS_WITH_ERRNO(int, madvise, kMmap, (void* at, size_t bytes, int advice), (at, bytes, advice))
FAILS_WITH_ERRNO(int, ftruncate, kFtruncate, (int fd, off_t bytes), (fd, bytes))
FAILS_WITH_ERRNO(int, ftruncate64, kFtruncate, (int fd, off_t bytes), (fd, bytes))
FAILS_WITH_ERRNO(int, fallocate, kFallocate, (int fd, int mode, off_t offset, off_t bytes),
                 (fd, mode, offset, bytes))
FAILS_WITH_ERRNO(int, fallocate64, kFallocate, (int fd, int mode, off_t offset, off_t bytes),
                 (fd, mode, offset, bytes))
FAILS_WITH_ERRNO(int, memfd_create, kMemfd, (const char* name, unsigned flags), (name, flags))
FAILS_WITH_ERRNO(int, socket, kSocket, (int domain, int type, int protocol),
                 (domain, type, protocol))
FAILS_WITH_ERRNO(int, socketpair, kSocket, (int domain, int type, int protocol, int* ends),
                 (domain, type, protocol, ends))
FAILS_WITH_ERRNO(int, connect, kConnect, (int fd, const sockaddr* to, socklen_t bytes),
                 (fd, to, bytes))
FAILS_WITH_ERRNO(int, accept, kAccept, (int fd, sockaddr* from, socklen_t* bytes),
                 (fd, from, bytes))
FAILS_WITH_ERRNO(int, accept4, kAccept, (int fd, sockaddr* from, socklen_t* bytes, int flags),
                 (fd, from, bytes, flags))
FAILS_WITH_ERRNO(ssize_t, recvmsg, kReceive, (int fd, msghdr* message, int flags),
                 (fd, message, flags))
FAILS_WITH_ERRNO(ssize_t, recv, kReceive, (int fd, void* into, size_t bytes, int flags),
                 (fd, into, bytes, flags))
FAILS_WITH_ERRNO(ssize_t, sendmsg, kSend, (int fd, const msghdr* message, int flags),
                 (fd, message, flags))
FAILS_WITH_ERRNO(ssize_t, send, kSend, (int fd, const void* from, size_t bytes, int flags),
                 (fd, from, bytes, flags))
FAILS_WITH_ERRNO(int, eventfd, kEvent, (unsigned value, int flags), (value, flags))
FAILS_WITH_ERRNO(int, timerfd_create, kEvent, (int clock, int flags), (clock, flags))
FAILS_WITH_ERRNO(int, epoll_create1, kEpoll, (int flags), (flags))
FAILS_WITH_ERRNO(int, epoll_ctl, kEpoll, (int epoll, int what, int fd, epoll_event* event),
                 (epoll, what, fd, event))
FAILS_WITH_ERRNO(int, epoll_wait, kWait, (int epoll, epoll_event* events, int most, int wait_ms),
                 (epoll, events, most, wait_ms))
FAILS_WITH_ERRNO(int, fsync, kSync, (int fd), (fd))
FAILS_WITH_ERRNO(int, fdatasync, kSync, (int fd), (fd))
FAILS_WITH_ERRNO(int, rename, kRename, (const char* from, const char* to), (from, to))
FAILS_WITH_ERRNO(ssize_t, write, kWrite, (int fd, const void* from, size_t bytes),
                 (fd, from, bytes))
FAILS_WITH_ERRNO(ssize_t, pwrite, kWrite, (int fd, const void* from, size_t bytes, off_t at),
                 (fd, from, bytes, at))
FAILS_WITH_ERRNO(ssize_t, pwrite64, kWrite, (int fd, const void* from, size_t bytes, off_t at),
                 (fd, from, bytes, at))
FAILS_WITH_ERRNO(ssize_t, read, kRead, (int fd, void* into, size_t bytes), (fd, into, bytes))
FAILS_WITH_ERRNO(ssize_t, pread, kRead, (int fd, void* into, size_t bytes, off_t at),
                 (fd, into, bytes, at))
FAILS_WITH_ERRNO(ssize_t, pread64, kRead, (int fd, void* into, size_t bytes, off_t at),
                 (fd, into, bytes, at))

struct io_uring;
struct io_uring_params;
struct io_uring_cqe;
FAILS_WITH_RESULT(io_uring_queue_init_params,
                  (unsigned entries, io_uring* ring, io_uring_params* params),
                  (entries, ring, params))
FAILS_WITH_RESULT(io_uring_submit, (io_uring * ring), (ring))
FAILS_WITH_RESULT(io_uring_submit_and_wait, (io_uring * ring, unsigned wait), (ring, wait))
FAILS_WITH_RESULT(io_uring_submit_and_wait_timeout,
                  (io_uring * ring, io_uring_cqe** first_cqe, unsigned wait, void* limit,
                   sigset_t* mask),
                  (ring, first_cqe, wait, limit, mask))
FAILS_WITH_RESULT(io_uring_submit_and_get_events, (io_uring * ring), (ring))
FAILS_WITH_RESULT(io_uring_get_events, (io_uring * ring), (ring))
