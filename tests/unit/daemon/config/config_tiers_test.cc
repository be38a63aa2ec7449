// What a domain is to have of tiers that are not configured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config_fixture.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

// It is refused, and shown without the secret by whoever tells why: --check-config, a reload,
// doctor.
// PROMISE: T39 a login in an address
TEST(ConfigRedis, ALoginInAnAddressIsRefusedAndNotShown) {
  for (const std::string endpoint :
       {"redis://user:planted@host:6379", "redis://:planted@host:6379", "planted@host:6379",
        "rediss://user:planted@host/0", "host:6379,password=planted",
        "redis://host:6379?password=planted", "unix://user:planted@/run/redis.sock"}) {
    EXPECT_THAT(Unresolvable("[redis]\nendpoints = [\"a:1\", \"" + endpoint + "\"]\n"),
                AllOf(HasSubstr("redis.endpoints has '"), HasSubstr("***"),
                      HasSubstr("redis.credentials_file"), Not(HasSubstr("planted"))));
    // Where the value is none of its kind.
    for (const std::string& value : std::vector<std::string>{
             "\"" + endpoint + "\"", "[1, \"" + endpoint + "\"]", "{ url = \"" + endpoint + "\" }",
             "[[\"" + endpoint + "\"], 7]"}) {
      EXPECT_THAT(
          Refusal("[redis]\nendpoints = " + value + "\n"),
          AllOf(HasSubstr("redis.endpoints is "), HasSubstr("***"), Not(HasSubstr("planted"))));
      EXPECT_THAT(Refusal("[redis]\nttl_s = " + value + "\n"), Not(HasSubstr("planted")));
    }
  }
  for (const std::string endpoint : {"host:6379", "[::1]:6379", "unix:/run/a@b,c?d.sock"}) {
    EXPECT_EQ(Resolved("[redis]\nendpoints = [\"" + endpoint + "\"]\n").redis.endpoints[0],
              endpoint);
  }
}

}  // namespace
}  // namespace terrace
