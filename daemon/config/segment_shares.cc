#include "daemon/config/segment_shares.h"

#include <algorithm>

#include "terrace/units.h"

namespace terrace {

uint32_t SegmentsMaxOf(const DaemonConfig& config, size_t domain_index) {
  return static_cast<uint32_t>(config.domains[domain_index].dram_max_bytes / config.segment_bytes);
}

uint32_t GuaranteedSegmentsOf(const DaemonConfig& config, size_t domain_index) {
  const DomainConfig& domain = config.domains[domain_index];
  const uint64_t unit = config.segment_bytes;
  const uint64_t segments = RoundUp(domain.dram_guaranteed_bytes, unit) / unit;
  return static_cast<uint32_t>(
      std::min<uint64_t>(std::max<uint64_t>(segments, 1), SegmentsMaxOf(config, domain_index)));
}

std::vector<uint32_t> SegmentsExpected(const DaemonConfig& config) {
  const size_t count = config.domains.size();
  std::vector<uint32_t> expected(count);
  uint64_t rest = config.dram_bytes / config.segment_bytes;
  for (size_t i = 0; i < count; ++i) {
    expected[i] = GuaranteedSegmentsOf(config, i);
    rest -= std::min<uint64_t>(rest, expected[i]);
  }
  for (bool is_given = count > 0; rest > 0 && is_given;) {
    is_given = false;
    const uint64_t share = std::max<uint64_t>(rest / count, 1);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t room = SegmentsMaxOf(config, i) - expected[i];
      const uint64_t part = std::min({share, room, rest});
      expected[i] += static_cast<uint32_t>(part);
      rest -= part;
      is_given = is_given || part > 0;
    }
  }
  return expected;
}

}  // namespace terrace
