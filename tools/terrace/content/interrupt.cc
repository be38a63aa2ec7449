#include "tools/terrace/content/interrupt.h"

#include <signal.h>

namespace terrace::tools {
namespace {

std::atomic<bool> is_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

void OnSignal(int) { is_interrupted = true; }

}  // namespace

const std::atomic<bool>& IsInterrupted() {
  static const bool is_installed = [] {
    struct sigaction action {};
    action.sa_handler = OnSignal;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    return true;
  }();
  (void)is_installed;
  return is_interrupted;
}

}  // namespace terrace::tools
