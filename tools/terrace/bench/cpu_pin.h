// Which CPUs a process may run on.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace terrace::tools {

// "0,2-4" → {0, 2, 3, 4}. False on anything else, or a CPU this process may not use.
bool ParseCpuList(std::string_view text, std::vector<int>* cpus, std::string* why);
std::vector<int> AllowedCpus();

// The calling thread, and the threads and processes it starts from now on.
bool PinThisThread(int cpu, std::string* why);
// Every thread `pid` has now; those it starts later inherit it.
bool PinProcess(pid_t pid, int cpu, std::string* why);

}  // namespace terrace::tools
