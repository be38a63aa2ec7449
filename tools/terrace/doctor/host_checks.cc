// What the kernel, the processor and its clock can do.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "cuda/host/device_loader.h"
#include "tiers/arena/numa_nodes.h"
#include "tools/terrace/doctor/checks.h"

namespace terrace::tools {
namespace {

// Read without a system call. The rest are registers of a device or a hypervisor.
constexpr std::array<std::string_view, 5> kQuickClocks = {
    "tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter",
    "hyperv_clocksource_msr"};

}  // namespace

Finding CheckKernel(const Subject& subject) {
  Finding finding{.check = "kernel"};
  const std::string release =
      subject.files.Read("/proc/sys/kernel/osrelease").value_or("of an unknown release");
  if (const int error = subject.calls.MemfdError(); error != 0) {
    finding.level = FindingLevel::kProblem;
    finding.found = fmt::format("{}, and memfd_create fails: {}", release, std::strerror(error));
    finding.meaning = "Blocks lie in memory files: without them terraced does not start.";
    finding.remedy = "allow memfd_create in the seccomp profile of this container";
    return finding;
  }
  finding.found = release + ": memfd, SO_PEERPIDFD";
  if (const int error = subject.calls.PeerPidfdError(); error != 0) {
    finding.level = FindingLevel::kNote;
    finding.found = fmt::format("{}: memfd; no SO_PEERPIDFD ({})", release, std::strerror(error));
    finding.meaning =
        "The end of a client in a pid namespace that the daemon cannot see (a container) is known "
        "by its life socket alone.";
    finding.remedy = "a kernel of 6.5 or later; share the pid namespace with engines until then";
  }
  return finding;
}

Finding CheckRing(const Subject& subject) {
  Finding finding{.check = "io_uring"};
  const NvmeConfig& nvme = subject.config.nvme;
  std::string description;
  const std::string why = subject.calls.WhyNoRing(&description);
  if (why.empty()) {
    finding.found = "usable: " + description;
    return finding;
  }
  finding.found = "blocked: " + why;
  if (!nvme.is_on()) {
    finding.level = FindingLevel::kNote;
    finding.meaning = "Nothing now: only the NVMe tier uses it, and there is none.";
  } else if (nvme.io == DiskIo::kThreads) {
    finding.level = FindingLevel::kNote;
    finding.meaning = "Nothing: nvme.io is \"threads\".";
  } else if (nvme.io == DiskIo::kUring) {
    finding.level = FindingLevel::kProblem;
    finding.meaning = "nvme.io is \"io_uring\": terraced refuses to start here.";
  } else {
    finding.level = FindingLevel::kWarning;
    finding.meaning = "Drives are read and written through threads: more CPU a block.";
  }
  const uint64_t disabled =
      subject.files.ReadNumber("/proc/sys/kernel/io_uring_disabled").value_or(0);
  finding.remedy =
      disabled > 0
          ? "sudo sysctl kernel.io_uring_disabled=0"
          : "allow io_uring_setup, _enter and _register in the container's seccomp profile "
            "(packaging/kubernetes/seccomp.py writes one)";
  return finding;
}

Finding CheckClock(const Subject& subject) {
  Finding finding{.check = "clock"};
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  const auto current = subject.files.Read(folder + "current_clocksource");
  if (!current) {
    finding.level = FindingLevel::kNote;
    finding.found = "/sys does not say which";
    return finding;
  }
  finding.found = *current;
  if (std::find(kQuickClocks.begin(), kQuickClocks.end(), *current) != kQuickClocks.end()) {
    return finding;
  }
  const std::string others = subject.files.Read(folder + "available_clocksource").value_or("");
  finding.level = FindingLevel::kWarning;
  finding.found += ", which is slow";
  finding.meaning =
      "Each look at the clock is a system call or a read of a device, several a request.";
  finding.remedy = others.find("tsc") != std::string::npos
                       ? fmt::format("echo tsc | sudo tee {}current_clocksource", folder)
                       : "dmesg | grep -i tsc says why it is off; \"tsc=reliable\" on the kernel's "
                         "command line, where its processors agree";
  return finding;
}

Finding CheckProcessor(const Subject& subject) {
  Finding finding{.check = "CPU"};
  const std::string cpuinfo = "/proc/cpuinfo";
  const auto model = subject.files.ReadField(cpuinfo, "model name");
  const std::string units = subject.calls.VectorUnits();
  finding.found = fmt::format("{}{}{}", model.value_or(""), model ? ": " : "",
                              units.empty() ? "no AVX2" : units);
  // Elsewhere than on x86 the compiler's own vectors are all there is.
  if (!units.empty() || !subject.files.ReadField(cpuinfo, "flags")) {
    if (units.empty()) finding.found = model.value_or("not of x86");
    return finding;
  }
  finding.level = FindingLevel::kNote;
  finding.meaning = "Checksums and codecs run with SSE2, at a fraction of their speed.";
  finding.remedy = "in a virtual machine give it the host's model (-cpu host)";
  return finding;
}

Finding CheckNodes(const Subject& subject) {
  Finding finding{.check = "NUMA"};
  const std::string folder = "/sys/devices/system/node/";
  const auto listed = subject.files.Read(folder + "has_memory");
  const std::vector<uint32_t> nodes = ParseNodeList(listed.value_or(""));
  if (nodes.empty()) {
    finding.found = "one node, as far as /sys says";
    return finding;
  }
  finding.found = nodes.size() == 1 ? fmt::format("one node with memory: {}", nodes[0])
                                    : fmt::format("{} nodes with memory: {}", nodes.size(),
                                                  fmt::join(nodes, ", "));
  for (const DomainConfig& domain : subject.config.domains) {
    const uint64_t segments = domain.dram_max_bytes / subject.config.segment_bytes;
    if (segments == 0 || segments >= nodes.size()) continue;
    finding.level = FindingLevel::kWarning;
    finding.meaning = fmt::format(
        "Domain {} has {} segment{} at most: some nodes have no memory of it, and clients there "
        "read across the link.",
        domain.name, segments, segments == 1 ? "" : "s");
    finding.remedy = "[daemon] a larger dram_bytes, or a smaller segment_bytes";
  }
  return finding;
}

Finding CheckGpu(const Subject& subject) {
  Finding finding{.check = "GPU"};
  const HbmConfig& hbm = subject.config.hbm;
  const bool is_wanted = hbm.is_on() && hbm.device != "host";
  const bool has_driver = subject.files.Read("/proc/driver/nvidia/version").has_value();
  if (!is_wanted && !has_driver) {
    finding.found = "no NVIDIA driver, and no [hbm] that wants one";
    return finding;
  }
  const std::string path = hbm.plugin_path.empty() ? InstalledPluginPath() : hbm.plugin_path;
  std::string description;
  const std::string why = subject.calls.WhyNoPlugin(path, &description);
  if (why.empty()) {
    finding.found = fmt::format("{} loads: {}", path, description);
    return finding;
  }
  finding.found = why;
  finding.level = is_wanted ? FindingLevel::kProblem : FindingLevel::kNote;
  finding.meaning = is_wanted
                        ? fmt::format(
                              "[hbm] device is \"{}\": terraced refuses to start without "
                              "its plugin.",
                              hbm.device)
                        : "Engines copy through the host's own code, and GPU memory is no tier.";
  finding.remedy = "apt install terrace-cuda, and NVIDIA's driver";
  return finding;
}

}  // namespace terrace::tools
