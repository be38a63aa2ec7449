// Memory: how much there may be, in which pages, and what engines share.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "daemon/config/segment_shares.h"
#include "terrace/arena_layout.h"
#include "terrace/units.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/doctor/checks.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kSharedMemoryBytesMin = kGiB;  // of what engines' own libraries want

uint64_t MeminfoBytes(const HostFiles& files, const std::string& name) {
  const auto text = files.ReadField("/proc/meminfo", name);  // "16384 kB"
  return text ? std::strtoull(text->c_str(), nullptr, 10) * kKiB : 0;
}

struct Limit {
  uint64_t bytes = 0;
  std::string by;  // "this machine", or a file
};

// The lowest memory.max from the daemon's cgroup, or this shell's, up to the root.
Limit LimitOf(const Subject& subject) {
  Limit limit{.bytes = MeminfoBytes(subject.files, "MemTotal"), .by = "this machine"};
  const std::string process = subject.pid ? std::to_string(*subject.pid) : "self";
  const std::string groups = subject.files.Read("/proc/" + process + "/cgroup").value_or("");
  std::string path;
  for (std::string_view rest = groups; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with("0::")) path = line.substr(3);
  }
  while (!path.empty()) {
    const std::string file = "/sys/fs/cgroup" + (path == "/" ? "" : path) + "/memory.max";
    const auto bytes = subject.files.ReadNumber(file);
    if (bytes && (limit.bytes == 0 || *bytes < limit.bytes)) limit = {*bytes, file};
    path = path == "/" ? "" : path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  }
  return limit;
}

// "always" of "[always] inherit never".
std::string ChosenWord(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return text.substr(open + 1, close - open - 1);
}

struct HugePagePool {
  uint64_t all = 0;
  uint64_t free = 0;
  uint64_t unclaimed = 0;  // of the free ones
  uint64_t on_demand = 0;  // beyond the pool, as long as memory is not in too small pieces
};

HugePagePool PoolOf(const HostFiles& files) {
  const auto number = [&files](const std::string& name) {
    return files.ReadNumber("/sys/kernel/mm/hugepages/hugepages-2048kB/" + name).value_or(0);
  };
  HugePagePool pool{.all = number("nr_hugepages"), .free = number("free_hugepages")};
  pool.unclaimed = pool.free - std::min(pool.free, number("resv_hugepages"));
  const uint64_t surplus_max = number("nr_overcommit_hugepages");
  pool.on_demand = std::min(surplus_max - std::min(surplus_max, number("surplus_hugepages")),
                            MeminfoBytes(files, "MemAvailable") / kArenaHugePageBytes);
  return pool;
}

}  // namespace

Finding CheckMemory(const Subject& subject) {
  Finding finding{.check = "memory"};
  const Limit limit = LimitOf(subject);
  if (limit.bytes == 0) {
    finding.level = FindingLevel::kNote;
    finding.found = "/proc/meminfo does not say how much there is";
    return finding;
  }
  const HbmConfig& hbm = subject.config.hbm;
  const uint64_t hbm_bytes = hbm.device == "host" ? hbm.capacity_bytes : 0;
  const uint64_t wanted_bytes = subject.config.dram_bytes + hbm_bytes;
  const uint64_t available_bytes = MeminfoBytes(subject.files, "MemAvailable");
  finding.found = fmt::format("{} configured{}; {} has {}", FormatBytes(wanted_bytes),
                              hbm_bytes > 0 ? ", [hbm] of device host with it" : "", limit.by,
                              FormatBytes(limit.bytes));
  if (wanted_bytes > limit.bytes) {
    finding.level = FindingLevel::kProblem;
    finding.meaning = "terraced refuses to start.";
    finding.remedy = fmt::format("[daemon] dram_bytes = \"{}MiB\"{}",
                                 (limit.bytes - std::min(limit.bytes, hbm_bytes)) / 4 * 3 / kMiB,
                                 limit.by == "this machine" ? "" : ", or raise that limit");
  } else if (!subject.stats && wanted_bytes > available_bytes && available_bytes > 0) {
    finding.level = FindingLevel::kWarning;
    finding.found += fmt::format(", of which {} can be had now", FormatBytes(available_bytes));
    finding.meaning = "Memory runs out while the arena grows: stores are refused from then on.";
    finding.remedy = "free memory, or lower dram_bytes";
  } else if (wanted_bytes > limit.bytes / 10 * 9) {
    finding.level = FindingLevel::kWarning;
    finding.meaning =
        "More than nine tenths: a peak of anything else there ends in the OOM killer, whose victim "
        "may be the daemon.";
    finding.remedy = "lower dram_bytes";
  }
  return finding;
}

Finding CheckHugePages(const Subject& subject) {
  Finding finding{.check = "huge pages"};
  const HugePagePool pool = PoolOf(subject.files);
  const std::vector<uint32_t> segments = SegmentsExpected(subject.config);
  const uint64_t wanted = std::reduce(segments.begin(), segments.end(), uint64_t{0}) *
                          subject.config.segment_bytes / kArenaHugePageBytes;
  const std::string shmem = ChosenWord(
      subject.files.Read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").value_or(""));
  // What a daemon that runs has of them, its successor takes over, or finds free.
  const uint64_t own = subject.huge_page_bytes.value_or(0) / kArenaHugePageBytes;
  finding.found = fmt::format(
      "{} of 2 MiB in the pool, {} free, {}{}{} wanted; transparent ones of shared memory: {}",
      FormatCount(pool.all), FormatCount(pool.unclaimed),
      pool.on_demand > 0 ? FormatCount(pool.on_demand) + " more on demand, " : "",
      own > 0 ? FormatCount(own) + " the daemon's, " : "",
      wanted > 0 ? FormatCount(wanted) : "an unknown number", shmem.empty() ? "unknown" : shmem);
  if (wanted == 0) return finding;  // there is no configuration to tell
  const HugePages choice = subject.config.hugepages;
  if (choice == HugePages::kOff) {
    finding.found += "; hugepages is \"off\"";
    return finding;
  }
  // Who does not tell may have those that are not free; of fewer than it wants, others may.
  const bool may_have_its_own = subject.stats && !subject.huge_page_bytes && pool.all >= wanted;
  const uint64_t usable = may_have_its_own ? pool.all : pool.unclaimed + own;
  const bool is_transparent =
      shmem == "always" || shmem == "within_size" || shmem == "advise" || shmem == "force";
  const std::string cold_start =
      subject.has_small_pages && !is_transparent
          ? "[daemon] hugepages = \"on\" and a restart, which begins cold"
          : "";
  if (usable + pool.on_demand >= wanted) {
    if (cold_start.empty()) return finding;
    finding.level = FindingLevel::kNote;
    finding.meaning = "Memory is of 4 KiB pages from before, and a restart takes it over as it is.";
    finding.remedy = cold_start;
    return finding;
  }
  finding.remedy = fmt::format("sudo sysctl vm.nr_hugepages={}", pool.all - usable + wanted);
  if (choice == HugePages::kOn) {
    // Of a daemon that is down a keeper, or systemd, may hold memory, which its successor takes.
    const bool may_be_kept = !subject.stats && pool.all - std::min(pool.all, pool.free) >= wanted;
    finding.level = may_be_kept ? FindingLevel::kWarning : FindingLevel::kProblem;
    finding.meaning = "hugepages is \"on\": ";
    finding.meaning += subject.stats ? "a start with new memory is refused."
                       : may_be_kept
                           ? "terraced refuses to start, unless the pages in use are memory that "
                             "is kept for it."
                           : "terraced refuses to start.";
    return finding;
  }
  if (is_transparent) {
    finding.meaning = "The arena gets transparent huge pages, where the kernel finds some.";
    finding.remedy.clear();
    return finding;
  }
  finding.level = FindingLevel::kNote;
  finding.meaning =
      "The arena is of 4 KiB pages: copies and registration with drives and GPUs cost more CPU.";
  if (!cold_start.empty()) finding.remedy += ", then " + cold_start;
  finding.remedy += ", or echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  return finding;
}

Finding CheckSharedMemory(const Subject& subject) {
  Finding finding{.check = "/dev/shm"};
  const auto volume = subject.calls.Volume("/dev/shm");
  if (volume && volume->total_bytes >= kSharedMemoryBytesMin) {
    finding.found = FormatBytes(volume->total_bytes) + "; Terrace itself needs none of it";
    return finding;
  }
  finding.level = FindingLevel::kNote;
  finding.found = volume ? FormatBytes(volume->total_bytes) : "not there";
  finding.meaning =
      "Nothing for Terrace, whose memory files lie elsewhere. Engines with several workers (NCCL) "
      "need it, and fail to start with less.";
  finding.remedy = "docker run --shm-size 8g, or an emptyDir of medium Memory in the pod";
  return finding;
}

}  // namespace terrace::tools
