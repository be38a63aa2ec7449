#include "daemon/process/process_guard.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>

#include "terrace/units.h"

namespace terrace {
namespace {

// The exit status of `body` in a process of its own; −1 if a signal ended it.
template <typename Body>
int StatusOf(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// PROMISE: T39 core files
TEST(ProcessGuard, NeitherDumpsNorLetsOthersReadItsMemory) {
  EXPECT_EQ(StatusOf([] {
              if (prctl(PR_GET_DUMPABLE) != 1) return 77;
              ForbidCoreDumps();
              rlimit limit{.rlim_cur = 1, .rlim_max = 1};
              getrlimit(RLIMIT_CORE, &limit);
              return (prctl(PR_GET_DUMPABLE) == 0 ? 0 : 1) + (limit.rlim_cur == 0 ? 0 : 2) +
                     (limit.rlim_max == 0 ? 0 : 4);
            }),
            0);
}

TEST(ProcessGuard, SignalsEndItWithStatusZeroEvenIfTheyWereBlocked) {
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EQ(StatusOf([signal] {
                sigset_t all;
                sigfillset(&all);
                sigprocmask(SIG_BLOCK, &all, nullptr);
                raise(signal);
                EndAtOnceOnSignals();
                return 5;
              }),
              0);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // which have heaps of their own
// PROMISE: T45 what a freed buffer leaves behind
TEST(ProcessGuard, LargeBuffersAreNoPartOfAHeapHoweverLargeThoseBeforeWere) {
  EXPECT_EQ(StatusOf([] {
              KeepBuffersOutOfHeaps();
              const auto mapped = [] { return mallinfo2().hblks; };
              const size_t before = mapped();
              std::free(std::malloc(16 * kMiB));
              const std::unique_ptr<void, void (*)(void*)> later(std::malloc(1 * kMiB), std::free);
              return mapped() == before + 1 ? 0 : 1;
            }),
            0);
}
#endif

}  // namespace
}  // namespace terrace
