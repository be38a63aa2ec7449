// How fast the host copies are beside a plain memcpy of the same bytes: 1 MiB blocks over a working
// set far larger than the caches, from private memory to a populated shared mapping, as an engine
// stores. The kinds take turns within a round, so a slow second of the machine hits all of them.
//
//   taskset -c 1 host_copy_bench [working set in MiB, default 512] [rounds, default 7]
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "cuda/host/host_copy.h"
#include "terrace/checksum.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr size_t kBlockBytes = kMiB;
constexpr uint64_t kSeed = 0x7e44ace;

using Bytes = std::span<std::byte>;

struct Kind {
  const char* name;
  void (*copy)(Bytes to, Bytes from);
  std::vector<double> bytes_per_second;
};

std::array<Kind, 4> Kinds() {
  static uint64_t sink = 0;
  return {{
      {"memcpy", [](Bytes to, Bytes from) { std::memcpy(to.data(), from.data(), from.size()); }},
      {"CopyBytes", [](Bytes to, Bytes from) { CopyBytes(to, from); }},
      {"CopyAndChecksumPart",
       [](Bytes to, Bytes from) { sink += CopyAndChecksumPart(to, from, kSeed).low; }},
      {"ChecksumPart", [](Bytes, Bytes from) { sink += ChecksumPart(from, kSeed).low; }},
  }};
}

double MeasureBytesPerSecond(const Kind& kind, Bytes to, Bytes from) {
  const auto start = std::chrono::steady_clock::now();
  for (size_t at = 0; at < from.size(); at += kBlockBytes) {
    kind.copy(to.subspan(at, kBlockBytes), from.subspan(at, kBlockBytes));
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(from.size()) / elapsed.count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Bytes Map(size_t size, int flags, int fd) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) return {};
  return Bytes(static_cast<std::byte*>(address), size);
}

int Run(size_t working_set_bytes, size_t round_count) {
  const int fd = memfd_create("host_copy_bench", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(working_set_bytes)) != 0) {
    std::perror("memfd");
    return 1;
  }
  const Bytes to = Map(working_set_bytes, MAP_SHARED, fd);
  const Bytes from = Map(working_set_bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (to.empty() || from.empty()) {
    std::perror("mmap: use a smaller working set");
    return 1;
  }
  std::memset(from.data(), 1, from.size());
  std::array<Kind, 4> kinds = Kinds();
  for (size_t round = 0; round < round_count; ++round) {
    for (Kind& kind : kinds) {
      kind.bytes_per_second.push_back(MeasureBytesPerSecond(kind, to, from));
    }
  }
  const double memcpy_median = Median(kinds[0].bytes_per_second);
  for (const Kind& kind : kinds) {
    const double median = Median(kind.bytes_per_second);
    std::printf("%-20s %7.2f GB/s  %.3f of memcpy\n", kind.name, median / 1e9,
                median / memcpy_median);
  }
  return 0;
}

// 0 unless `text` is a number.
size_t ReadNumber(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const size_t working_set_mib = argc > 1 ? terrace::ReadNumber(argv[1]) : 512;
  const size_t round_count = argc > 2 ? terrace::ReadNumber(argv[2]) : 7;
  if (working_set_mib == 0 || round_count == 0) {
    std::fprintf(stderr, "usage: %s [working set in MiB] [rounds], both at least 1\n", argv[0]);
    return 2;
  }
  return terrace::Run(working_set_mib * terrace::kMiB, round_count);
}
