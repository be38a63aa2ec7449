// Reads the histories in a directory and says what they add up to, as one line of JSON; what cannot
// have been, on standard error.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "chaos/history_check.h"
#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

// Mapped until the process ends; empty if it cannot be read.
std::span<const uint64_t> MapHistory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (fd < 0 || fstat(fd, &status) != 0 || status.st_size == 0) return {};
  const auto byte_count = static_cast<size_t>(status.st_size);
  void* const memory = mmap(nullptr, byte_count, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return {};
  return {static_cast<const uint64_t*>(memory), byte_count / sizeof(uint64_t)};
}

}  // namespace

int RunJudge(const Arguments& arguments, Progress*) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(arguments.Text("directory", "."))) {
    if (entry.path().extension() == ".history") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::span<const uint64_t>> histories;
  for (const std::string& path : paths) histories.push_back(MapHistory(path));
  const Verdict verdict =
      CheckHistories(histories, {.is_settled = arguments.Number("settled", 0) != 0,
                                 .prompts_per_family = kPromptsPerFamily,
                                 .family_blocks = kFamilyBlocks});
  for (const Finding& finding : verdict.findings) {
    std::fprintf(stderr, "%s: prompt %u block %u commit %016" PRIx64 ": %s, word %zu\n",
                 FaultName(finding.fault), finding.prompt, finding.block, finding.commit_id,
                 paths[finding.history].c_str(), finding.at);
  }
  Say("{\"operations\": %" PRIu64 ", \"blocks_read\": %" PRIu64 ", \"blocks_held\": %" PRIu64
      ", \"commits\": %" PRIu64 ", \"erasures\": %" PRIu64 ", \"findings\": %" PRIu64
      ", \"histories\": %zu}",
      verdict.operations, verdict.blocks_read, verdict.blocks_held, verdict.commits,
      verdict.erasures, verdict.finding_count, histories.size());
  return verdict.finding_count == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
