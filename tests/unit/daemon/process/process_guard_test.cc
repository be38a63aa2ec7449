#include "daemon/process/process_guard.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

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

}  // namespace
}  // namespace terrace
