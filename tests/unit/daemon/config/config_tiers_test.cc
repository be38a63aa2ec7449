// What a domain is to have of tiers that are not configured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "config_fixture.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// It was meant to do something. What says no more than that there is no limit does nothing anyway.
TEST(ConfigDomains, APartOfATierThatIsNotThereIsRefused) {
  const std::string x = "[[domain]]\nname = \"x\"\nsocket = \"/x\"\n";
  for (const char* key : {"nvme_max_bytes", "nvme_guaranteed_bytes"}) {
    EXPECT_THAT(Unresolvable(x + key + " = \"4GiB\"\n"),
                AllOf(HasSubstr("domain x: " + std::string(key) + " is 4GiB"),
                      HasSubstr("there is no NVMe tier"), HasSubstr("set nvme.paths")));
  }
  for (const char* key : {"redis_max_bytes", "redis_guaranteed_bytes"}) {
    EXPECT_THAT(Unresolvable(x + key + " = \"4GiB\"\n"),
                AllOf(HasSubstr("domain x: " + std::string(key) + " is 4GiB"),
                      HasSubstr("there is no Redis tier"), HasSubstr("set redis.endpoints")));
  }
  const DaemonConfig config =
      Resolved(x + "redis_guaranteed_bytes = 0\nredis_max_bytes = \"1024TiB\"\n");
  EXPECT_EQ(config.domains[0].redis_guaranteed_bytes, 0u);
  EXPECT_EQ(Resolved(x).domains[0].redis_max_bytes, 0u) << "printed, it would be refused";
}

}  // namespace
}  // namespace terrace
