// Where routers and scrapers may ask.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "config_fixture.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ConfigListening, KvEventsOfSeveralDomainsAreToldOnlyIfNamed) {
  const std::string events = "[kv_events]\nendpoint = \"ipc:///run/e\"\n";
  EXPECT_EQ(Resolved(events).domains[0].kv_events, KvEventsOfDomain::kOn);
  const DaemonConfig config =
      Resolved(events +
               "[[domain]]\nname = \"x\"\nsocket = \"/x\"\nkv_events = \"on\"\n[[domain]]\n"
               "name = \"y\"\nsocket = \"/y\"\n");
  EXPECT_EQ(config.domains[0].kv_events, KvEventsOfDomain::kOn);
  EXPECT_EQ(config.domains[1].kv_events, KvEventsOfDomain::kOff);
  EXPECT_THAT(Unresolvable(events + "replay_endpoint = \"ipc:///run/e\"\n"),
              HasSubstr("are both 'ipc:///run/e'"));
  for (const char* const port : {"0", "65536", "99999", "-1", "5557x", ""}) {
    EXPECT_THAT(Unresolvable("[kv_events]\nendpoint = \"tcp://*:" + std::string(port) + "\"\n"),
                HasSubstr("a port from 1 to 65535"));
  }
  EXPECT_TRUE(Resolved("[kv_events]\nendpoint = \"tcp://*:65535\"\n").kv_events.is_on());
  for (const std::string endpoint : {"udp://x", "udp://*:5557", "*:5557", "ipc://relative"}) {
    EXPECT_THAT(Unresolvable("[kv_events]\nendpoint = \"" + endpoint + "\"\n"),
                AllOf(HasSubstr("kv_events.endpoint is '" + endpoint + "'"), HasSubstr("tcp://")));
  }
  EXPECT_THAT(Unresolvable(events + "topic = \"{pod}\"\n"), HasSubstr("host, domain and model"));
}

TEST(ConfigListening, KvEventsTakeNoPathThatIsSomethingElses) {
  const std::string domain = "[[domain]]\nname = \"x\"\nsocket = \"/run/x\"\n";
  const auto with = [](const std::string& key, const std::string& path) {
    return "[kv_events]\n" + std::string(key == "endpoint" ? "" : "endpoint = \"ipc:///run/e\"\n") +
           key + " = \"ipc://" + path + "\"\n";
  };
  for (const std::string key : {"endpoint", "replay_endpoint"}) {
    for (const std::string path : {"/run/x", "/run/x.lock", "/run/x.bypass"}) {
      EXPECT_THAT(Unresolvable(with(key, path) + domain),
                  AllOf(HasSubstr("kv_events." + key + " is 'ipc://" + path + "'"),
                        HasSubstr("which is domain x's")));
    }
    EXPECT_THAT(Unresolvable("[daemon]\nkeeper_socket = \"/run/k\"\n" + with(key, "/run/k")),
                HasSubstr("which is daemon.keeper_socket's"));
    EXPECT_THAT(Unresolvable(with(key, "/" + std::string(107, 'a'))), HasSubstr("of 108 bytes"));
    EXPECT_THAT(Unresolvable(with(key, "/run/")), HasSubstr("name a file"));
    EXPECT_TRUE(Resolved(with(key, "/run/x.events") + domain).kv_events.is_on());
    EXPECT_TRUE(Resolved(with(key, "/" + std::string(106, 'a'))).kv_events.is_on());
  }
}

TEST(ConfigListening, MetricsAreForThisHostUnlessSaidElse) {
  EXPECT_FALSE(Resolved("").metrics.is_on()) << "nobody asked for a port";
  EXPECT_TRUE(Resolved("[metrics]\nlisten = \"127.0.0.1:9464\"\n").metrics.is_on());
  EXPECT_TRUE(Resolved("[metrics]\nlisten = \"[::1]:9464\"\n").metrics.is_on());
  for (const char* remote : {"0.0.0.0:9464", "10.0.0.1:9464", "[::]:9464"}) {
    const std::string listen = std::string("[metrics]\nlisten = \"") + remote + "\"\n";
    EXPECT_THAT(Unresolvable(listen),
                AllOf(HasSubstr(remote), HasSubstr("metrics.allow_remote = \"on\"")));
    EXPECT_TRUE(Resolved(listen + "allow_remote = \"on\"\n").metrics.is_on());
  }
  for (const char* wrong : {"9464", "localhost:9464", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536",
                            "::1:9464", "[::1]9464", "127.0.0.1:94x", "127.0.0.1:"}) {
    EXPECT_THAT(Unresolvable(std::string("[metrics]\nlisten = \"") + wrong + "\"\n"),
                AllOf(HasSubstr(wrong), HasSubstr("127.0.0.1:9464")));
  }
}

}  // namespace
}  // namespace terrace
