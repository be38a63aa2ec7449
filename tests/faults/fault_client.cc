// The client process of tests/long/faults.py.
//
//   terrace-fault-client SOCKET strict [PROMPT]    its own library's calls fail (fault_shim.cc)
//   terrace-fault-client SOCKET lenient [PROMPT]   terraced's do: every answer is allowed
//   terrace-fault-client SOCKET recall PROMPT      what of that prompt is there is right
//
// strict: while the shim is armed a client is created, runs the script and, where nothing was
// struck so far, is destroyed. Then all must work again, without a word of complaint: on the same
// client where there is one, and on a new one, which also finds what had been committed. No
// descriptor and no thread is left behind.
//
// Prints what was met, a line each. Exit status: 0, the contract holds; 1, it does not, and the
// lines say where.
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "faults/faults.h"
#include "faults/script.h"

namespace terrace::faults {
namespace {

constexpr uint64_t kBackAgainUs = 15'000'000;

uint32_t EntriesOf(const char* directory) {
  DIR* const opened = opendir(directory);
  if (opened == nullptr) return 0;
  uint32_t count = 0;
  while (readdir(opened) != nullptr) ++count;
  closedir(opened);
  return count;
}

// Prints; whether the contract holds, and with `is_clean` whether every call was answered "ok".
bool Tell(const char* when, const Answers& answers, bool is_clean) {
  printf("%s: %u calls, %u not ok%s%s\n", when, answers.calls, answers.failed,
         answers.failed > 0 ? ", first " : "", answers.first_failed.c_str());
  for (const std::string& breach : answers.breaches) {
    printf("BREACH %s: %s\n", when, breach.c_str());
  }
  const bool is_unclean = is_clean && answers.failed > 0;
  if (is_unclean) printf("BREACH %s: not all is well again\n", when);
  return answers.breaches.empty() && !is_unclean;
}

bool HasLeftNothing(uint32_t fds_before) {
  constexpr int kTries = 200;
  for (int i = 0; i < kTries; ++i) {
    if (EntriesOf("/proc/self/fd") == fds_before && EntriesOf("/proc/self/task") == 3) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  printf("BREACH at the end: %u descriptors instead of %u, %u threads\n",
         EntriesOf("/proc/self/fd"), fds_before, EntriesOf("/proc/self/task") - 2);
  return false;
}

int RunStrict(const char* socket_path, uint32_t prompt) {
  FaultPage* const page = MapFaultPage();
  const auto arm = [&](bool is_armed) {
    if (page != nullptr) page->is_armed = is_armed;
  };
  const auto is_struck = [&] { return page != nullptr && page->is_struck != 0; };
  const uint32_t fds_before = EntriesOf("/proc/self/fd");
  bool holds = true;
  bool is_committed = false;
  {
    Script script(socket_path);
    arm(true);
    script.Connect(kDeadlineUs);
    script.Run(prompt, Drives::kAwait);
    is_committed = script.is_committed();
    holds &= Tell("first", script.TakeAnswers(), !is_struck());
    if (is_struck()) {
      script.Connect(kBackAgainUs);
      (void)script.TakeAnswers();  // the connection may have been on its way back
      script.Run(prompt + 1, Drives::kLeave);
      holds &= Tell("same client", script.TakeAnswers(), true);
    }
    script.Destroy();
    arm(false);
  }
  {
    Script script(socket_path);
    script.Connect(kBackAgainUs);
    const uint32_t found = script.Recall(prompt);
    if (is_committed && found != kBlocks) {
      printf("BREACH new client: %u of %u committed blocks are there\n", found, kBlocks);
      holds = false;
    }
    script.Run(prompt + 2, Drives::kLeave);
    script.EraseAll(prompt);
    holds &= Tell("new client", script.TakeAnswers(), true);
  }
  return HasLeftNothing(fds_before) && holds ? 0 : 1;
}

int RunLenient(const char* socket_path, uint32_t prompt) {
  Script script(socket_path);
  script.Connect(kDeadlineUs);
  script.Run(prompt, Drives::kAwait);
  return Tell("lenient", script.TakeAnswers(), false) ? 0 : 1;
}

int RunRecall(const char* socket_path, uint32_t prompt) {
  Script script(socket_path);
  script.Connect(kBackAgainUs);
  const uint32_t found = script.Recall(prompt);
  printf("found %u\n", found);
  return Tell("recall", script.TakeAnswers(), true) ? 0 : 1;
}

}  // namespace
}  // namespace terrace::faults

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s SOCKET strict|lenient|recall [PROMPT]\n", argv[0]);
    return 2;
  }
  const auto prompt = static_cast<uint32_t>(argc > 3 ? std::atoi(argv[3]) : 1);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  using namespace terrace::faults;
  if (std::strcmp(argv[2], "strict") == 0) return RunStrict(argv[1], prompt);
  if (std::strcmp(argv[2], "lenient") == 0) return RunLenient(argv[1], prompt);
  return RunRecall(argv[1], prompt);
}
