#include "daemon/shell/store_options.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(StoreOptions, TheScrubIsAsConfigured) {
  DaemonConfig config;
  config.domains.emplace_back();
  EXPECT_EQ(DomainOptionsOf(config, 0).scrub_interval_us, 86'400'000'000u) << "a day";
  config.nvme.scrub_bytes_per_second = 4096;
  config.nvme.scrub_interval_s = 31'536'000;
  const DomainOptions options = DomainOptionsOf(config, 0);
  EXPECT_EQ(options.scrub_bytes_per_second, 4096u);
  EXPECT_EQ(options.scrub_interval_us, 31'536'000'000'000u) << "a year, the most";
}

// All domains together expect no more memory than there is, as far as it suffices for what they are
// guaranteed.
TEST(StoreOptions, DomainsExpectTheirGuaranteesAndEqualPartsOfTheRest) {
  DaemonConfig config;
  config.segment_bytes = 2 * kMiB;
  config.dram_bytes = 20 * config.segment_bytes;
  config.domains.resize(3);
  for (DomainConfig& domain : config.domains) domain.dram_max_bytes = config.dram_bytes;
  config.domains[0].dram_guaranteed_bytes = 12 * config.segment_bytes;
  // Whoever is guaranteed nothing has one segment: 12 + 1 + 1, and two each of the six that remain.
  EXPECT_EQ(ArenaOptionsOf(config, 0).segments_expected, 14u);
  EXPECT_EQ(ArenaOptionsOf(config, 1).segments_expected, 3u);
  EXPECT_EQ(ArenaOptionsOf(config, 2).segments_expected, 3u);
  config.domains[1].dram_max_bytes = 2 * config.segment_bytes;
  EXPECT_EQ(ArenaOptionsOf(config, 1).segments_max, 2u);
  EXPECT_EQ(ArenaOptionsOf(config, 1).segments_expected, 2u);
  EXPECT_EQ(ArenaOptionsOf(config, 0).segments_expected, 15u) << "what it may not have";
  EXPECT_EQ(ArenaOptionsOf(config, 2).segments_expected, 3u);
  config.dram_bytes = 21 * config.segment_bytes;
  EXPECT_EQ(ArenaOptionsOf(config, 0).segments_expected +
                ArenaOptionsOf(config, 1).segments_expected +
                ArenaOptionsOf(config, 2).segments_expected,
            21u);
  config.dram_bytes = 2 * config.segment_bytes;  // less than what is guaranteed
  EXPECT_EQ(ArenaOptionsOf(config, 0).segments_expected, 12u);
  EXPECT_EQ(ArenaOptionsOf(config, 2).segments_expected, 1u);
}

}  // namespace
}  // namespace terrace
