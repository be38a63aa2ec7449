// terrace-chaos: one client process of a chaos check. The checks themselves are tests/long/*.py.
#include <signal.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "chaos/roles.h"

namespace terrace::chaos {

namespace {

volatile sig_atomic_t is_told = 0;
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the progress page is shared memory");

struct Role {
  const char* name;
  int (*run)(const Arguments&, Progress*);
};
constexpr Role kRoles[] = {
    {"worker", RunWorker},       {"bystander", RunBystander}, {"hang-up", RunHangUp},
    {"frozen", RunFrozen},       {"deadlines", RunDeadlines}, {"console", RunConsole},
    {"archivist", RunArchivist}, {"witness", RunWitness},     {"probe", RunProbe},
    {"judge", RunJudge},
};

int Run(int argc, char** argv) {
  for (const Role& role : kRoles) {
    if (argc < 2 || std::strcmp(argv[1], role.name) != 0) continue;
    const Arguments arguments(argc, argv, 2);
    Progress* progress = MapProgress(arguments.Text("progress", ""));
    return progress == nullptr ? kExitCannotStart : role.run(arguments, progress);
  }
  std::fprintf(stderr, "usage: terrace-chaos ROLE [--name value ...]; roles:");
  for (const Role& role : kRoles) std::fprintf(stderr, " %s", role.name);
  std::fprintf(stderr, "\n");
  return kExitCannotStart;
}

}  // namespace

bool IsTold() { return is_told != 0; }

void Say(const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
  std::fflush(stdout);
}

bool Listen(std::string* line) { return static_cast<bool>(std::getline(std::cin, *line)); }

}  // namespace terrace::chaos

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, [](int) { terrace::chaos::is_told = 1; });
  return terrace::chaos::Run(argc, argv);
}
