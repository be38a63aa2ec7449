#include "sim/sim/shrink.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#include "terrace/check.h"

namespace terrace::sim {
namespace {

constexpr unsigned kAttemptSecondsMax = 20;

// What a child leaves.
struct Page {
  Steps step;
  char why[1024];
};

Page* MapPage() {
  void* const page =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TERRACE_CHECK(page != MAP_FAILED, "there is a page for what a child says");
  return new (page) Page{};
}

[[noreturn]] void BeChild(const RunCase& run, const Case& of, unsigned seconds_max,
                          std::FILE* errors, Page* page) {
  std::signal(SIGABRT, SIG_DFL);
  alarm(seconds_max);
  dup2(fileno(errors), STDERR_FILENO);
  dup2(fileno(errors), STDOUT_FILENO);
  const std::string why = run(of, &page->step);
  std::strncpy(page->why, why.c_str(), sizeof(page->why) - 1);
  _exit(why.empty() ? 0 : 1);
}

// The line that a check that failed, or a sanitizer, left.
std::string ErrorIn(std::FILE* errors, int status) {
  std::rewind(errors);
  std::string first;
  for (char line[512]; std::fgets(line, sizeof(line), errors) != nullptr;) {
    const bool tells = std::strstr(line, "check failed") || std::strstr(line, "ERROR:") ||
                       std::strstr(line, "runtime error");
    if (tells) {
      first = line;
      break;
    }
  }
  while (!first.empty() && first.back() == '\n') first.pop_back();
  if (!first.empty()) return first;
  return WIFSIGNALED(status) ? std::string("ended by ") + strsignal(WTERMSIG(status))
                             : "ended with status " + std::to_string(WEXITSTATUS(status));
}

class Shrinker {
 public:
  Shrinker(const RunCase& run, const Case& first, double seconds_max)
      : run_(run),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(seconds_max))) {
    result_.smallest = first;
  }

  Shrunk Run() {
    if (!Takes(result_.smallest)) return result_;
    // It goes no further than the step it failed in.
    Case cut = result_.smallest;
    cut.steps = std::min(cut.steps, std::max(result_.verdict.step, 1u));
    if (cut.steps < result_.smallest.steps) Takes(cut);
    FewerSteps();
    FewerKinds();
    FewerSteps();
    FewerActs();
    FewerKinds();
    FewerSteps();
    return result_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_late() const { return Clock::now() >= end_; }

  // Whether the case fails; then it is the smallest.
  bool Takes(const Case& smaller) {
    ++result_.attempts;
    const Verdict verdict = Attempt(run_, smaller, kAttemptSecondsMax);
    if (!verdict.fails) return false;
    result_.smallest = smaller;
    result_.verdict = verdict;
    return true;
  }

  // Bisection: a seed's first steps are the same, however many follow.
  void FewerSteps() {
    uint32_t passes = 0;
    while (passes + 1 < result_.smallest.steps && !is_late()) {
      Case half = result_.smallest;
      half.steps = passes + (half.steps - passes) / 2;
      if (!Takes(half)) passes = half.steps;
    }
  }

  void FewerKinds() {
    const Swarm drawn(result_.smallest.seed);
    std::vector<uint32_t> kinds;
    for (uint32_t kind = 0; kind < kKindCount; ++kind) {
      const bool is_in = drawn.is_on(static_cast<Kind>(kind)) && !result_.smallest.without[kind];
      if (is_in) kinds.push_back(kind);
    }
    const Case before = result_.smallest;
    Fewer(kinds, [&](const std::vector<uint32_t>& left) {
      Case smaller = before;
      for (const uint32_t kind : kinds) smaller.without.set(kind);
      for (const uint32_t kind : left) smaller.without.reset(kind);
      return smaller;
    });
  }

  void FewerActs() {
    std::vector<uint32_t> steps(result_.smallest.steps);
    std::iota(steps.begin(), steps.end(), 1);
    std::erase_if(steps, [&](uint32_t step) { return !result_.smallest.acts.contains(step); });
    const Case before = result_.smallest;
    result_.acts_left = Fewer(steps, [&](const std::vector<uint32_t>& left) {
      Case smaller = before;
      smaller.acts = StepSet(left);
      return smaller;
    });
  }

  // Takes out chunks, each half as long as the last, while the case that `with` makes of what is
  // left fails. How many are left.
  template <typename With>
  uint32_t Fewer(std::vector<uint32_t> items, With with) {
    for (size_t chunk = items.size(); chunk > 0; chunk /= 2) {
      for (size_t at = 0; at < items.size() && !is_late();) {
        std::vector<uint32_t> left(items.begin(), items.begin() + static_cast<long>(at));
        const size_t behind = std::min(items.size(), at + chunk);
        left.insert(left.end(), items.begin() + static_cast<long>(behind), items.end());
        if (Takes(with(left))) {
          items = std::move(left);
        } else {
          at = behind;
        }
      }
    }
    return static_cast<uint32_t>(items.size());
  }

  const RunCase& run_;
  const Clock::time_point end_;
  Shrunk result_;
};

}  // namespace

std::string Case::Environment() const {
  std::string text = "TERRACE_SIM_FIRST_SEED=" + std::to_string(seed) +
                     " TERRACE_SIM_SEEDS=1 TERRACE_SIM_STEPS=" + std::to_string(steps);
  if (without.any()) text += " TERRACE_SIM_WITHOUT=" + KindsText(without);
  if (!acts.is_all()) text += " TERRACE_SIM_ACTS=" + acts.Text();
  return text;
}

Verdict Attempt(const RunCase& run, const Case& of, unsigned seconds_max) {
  std::FILE* const errors = std::tmpfile();
  TERRACE_CHECK(errors != nullptr, "there is a file for what a child says");
  Page* const page = MapPage();
  std::fflush(nullptr);
  const pid_t child = fork();
  TERRACE_CHECK(child >= 0, "an attempt gets a process");
  if (child == 0) BeChild(run, of, seconds_max, errors, page);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  Verdict verdict{.step = page->step};
  const bool is_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const bool is_too_long = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
  verdict.fails = !is_well && !is_too_long;
  if (verdict.fails) verdict.why = page->why[0] != 0 ? page->why : ErrorIn(errors, status);
  munmap(page, sizeof(Page));
  std::fclose(errors);
  return verdict;
}

Shrunk Shrink(const RunCase& run, const Case& first, double seconds_max) {
  return Shrinker(run, first, seconds_max).Run();
}

}  // namespace terrace::sim
