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

}  // namespace
}  // namespace terrace
