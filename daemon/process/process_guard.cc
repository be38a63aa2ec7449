#include "daemon/process/process_guard.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <iterator>

namespace terrace {
namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGINT};

// Calls what a signal handler may call only.
void EndAtOnce(int) {
  constexpr char kSaid[] = "terraced: told to stop before it served\n";
  (void)!write(STDERR_FILENO, kSaid, std::size(kSaid) - 1);
  _exit(0);
}

}  // namespace

void EndAtOnceOnSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kStopSignals) {
    struct sigaction action {};
    action.sa_handler = EndAtOnce;
    sigaction(signal, &action, nullptr);
    sigaddset(&signals, signal);
  }
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

void HoldHangUps(bool is_held) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(is_held ? SIG_BLOCK : SIG_UNBLOCK, &signals, nullptr);
}

void ForbidCoreDumps() {
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  (void)setrlimit(RLIMIT_CORE, &none);  // what can only be lowered cannot fail
  (void)prctl(PR_SET_DUMPABLE, 0);
}

}  // namespace terrace
