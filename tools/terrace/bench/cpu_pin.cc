#include "tools/terrace/bench/cpu_pin.h"

#include <dirent.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace terrace::tools {
namespace {

bool PinTask(pid_t tid, int cpu, std::string* why) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  if (sched_setaffinity(tid, sizeof(set), &set) == 0) return true;
  // A thread that ended meanwhile needs no pin.
  if (tid != 0 && errno == ESRCH) return true;
  *why = fmt::format("cannot pin task {} to CPU {}: {}. This process may use CPUs {}", tid, cpu,
                     std::strerror(errno), fmt::join(AllowedCpus(), ","));
  return false;
}

bool ReadCpu(std::string_view* text, int* cpu) {
  auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), *cpu);
  if (error != std::errc() || *cpu < 0 || *cpu >= CPU_SETSIZE) return false;
  text->remove_prefix(static_cast<size_t>(rest - text->data()));
  return true;
}

bool ReadCpuList(std::string_view text, std::vector<int>* cpus) {
  while (true) {
    int first = 0;
    if (!ReadCpu(&text, &first)) return false;
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!ReadCpu(&text, &last) || last < first) return false;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus->push_back(cpu);
    if (text.empty()) return true;
    if (text[0] != ',') return false;
    text.remove_prefix(1);
  }
}

}  // namespace

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

bool ParseCpuList(std::string_view text, std::vector<int>* cpus, std::string* why) {
  cpus->clear();
  if (!ReadCpuList(text, cpus)) {
    *why = fmt::format("'{}' is no CPU list: write it like 0,2-3", text);
    return false;
  }
  const std::vector<int> allowed = AllowedCpus();
  for (int cpu : *cpus) {
    if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end()) {
      *why = fmt::format("CPU {} of '{}' is not one this process may use: {}", cpu, text,
                         fmt::join(allowed, ","));
      return false;
    }
  }
  return true;
}

bool PinThisThread(int cpu, std::string* why) { return PinTask(0, cpu, why); }

bool PinProcess(pid_t pid, int cpu, std::string* why) {
  const std::string path = fmt::format("/proc/{}/task", pid);
  DIR* tasks = opendir(path.c_str());
  if (tasks == nullptr) {
    *why = fmt::format("cannot look at the threads of process {}: {}. Is it running?", pid,
                       std::strerror(errno));
    return false;
  }
  bool is_pinned = true;
  while (const dirent* task = readdir(tasks)) {
    const pid_t tid = static_cast<pid_t>(std::atoi(task->d_name));
    if (tid > 0) is_pinned = PinTask(tid, cpu, why) && is_pinned;
  }
  closedir(tasks);
  return is_pinned;
}

}  // namespace terrace::tools
