// What a real daemon tells over HTTP, beside what it tells its clients.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "daemon/metrics/exposition.h"
#include "integration/process/daemon_process.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"
#include "unit/daemon/metrics/visitor.h"

namespace terrace {
namespace {

using nlohmann::json;
using test::DaemonProcess;
using test::Get;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DaemonMetricsTest : public testing::Test {
 protected:
  // A port that was free a moment ago.
  static uint16_t FreePort() {
    uint16_t port = 0;
    close(test::ListenAnywhere(&port));
    return port;
  }
  std::string Config(const std::string& metrics) {
    return daemon_.WriteFile(
        "t.toml", "[daemon]\ndram_bytes = \"32MiB\"\nsegment_bytes = \"2MiB\"\nstate_dir = \"" +
                      daemon_.directory() + "\"\n[metrics]\n" + metrics +
                      "[[domain]]\nname = \"chat\"\nsocket = \"" + daemon_.socket_path() + "\"\n");
  }
  void Start(const DaemonProcess::Surroundings& surroundings = {}) {
    port_ = FreePort();
    daemon_.Start({"--config", Config("listen = \"127.0.0.1:" + std::to_string(port_) + "\"\n")},
                  surroundings);
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  }
  template <typename Condition>
  static bool Eventually(const Condition& condition) {
    for (int i = 0; i < 3000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  std::map<std::string, double> Series() const {
    std::map<std::string, double> series;
    std::istringstream lines(Get(port_, "/metrics").body);
    for (std::string line; std::getline(lines, line);) {
      const size_t space = line.rfind(' ');
      if (!line.starts_with('#')) series[line.substr(0, space)] = std::stod(line.substr(space + 1));
    }
    return series;
  }

  DaemonProcess daemon_;
  uint16_t port_ = 0;
};

std::unique_ptr<Client> Connect(const DaemonProcess& daemon) {
  ClientOptions options;
  options.socket_path = daemon.socket_path();
  options.default_deadline_us = test::kLongUs;
  return std::move(Client::Create(options)).value();
}

void Put(Client& client, GroupRef group, const std::vector<BlockKey>& keys) {
  WriteLease lease = std::move(client.Reserve(group, keys)).value();
  for (uint32_t k = 0; k < keys.size(); ++k) {
    for (uint32_t part = 0; part < 2; ++part) {
      ASSERT_TRUE(lease.WritePart(k, 0, part, test::Bytes(keys[k], part)).ok());
    }
  }
  ASSERT_TRUE(client.Commit(lease).ok());
}

TEST_F(DaemonMetricsTest, FiguresStatusAndPageAgreeToTheUnit) {
  if (!HasExposition()) GTEST_SKIP() << "built without prometheus-cpp";
  Start();
  const auto client = Connect(daemon_);
  ASSERT_TRUE(client->WaitConnected(test::kLongUs).ok());
  const GroupRef group = client->Open(test::Model(), 1).value();
  Put(*client, group, test::Keys(4));
  uint64_t hit_count = 0;
  for (int i = 0; i < 50; ++i) {
    const ReadLease lease = client->Acquire(group, test::Keys(2 + i % 5, 7 + i % 2)).value();
    hit_count += lease.block_count();
  }
  json domain = json::parse(client->Stats(test::kLongUs).value())["domain"];
  const auto series = Series();
  EXPECT_EQ(domain["acquire_blocks_hit"], hit_count);
  EXPECT_EQ(series.at("terrace_acquire_requests_total{domain=\"chat\"}"), 50);
  EXPECT_EQ(series.at("terrace_acquire_blocks_asked_total{domain=\"chat\"}"),
            domain["acquire_blocks_asked"]);
  EXPECT_EQ(series.at("terrace_acquire_blocks_hit_total{domain=\"chat\",tier=\"dram\"}"),
            hit_count);
  double missed = 0;
  for (const auto& [cause, count] : domain["acquire_blocks_missed"].items()) {
    missed += count.get<double>();
    EXPECT_EQ(
        series.at("terrace_acquire_blocks_missed_total{domain=\"chat\",cause=\"" + cause + "\"}"),
        count);
  }
  EXPECT_GT(missed, 0);
  EXPECT_EQ(missed + static_cast<double>(hit_count), domain["acquire_blocks_asked"]);
  EXPECT_EQ(series.at("terrace_request_seconds_count{domain=\"chat\",verb=\"acquire\"}"), 50);
  EXPECT_EQ(series.at("terrace_request_seconds_count{domain=\"chat\",verb=\"reserve\"}"), 1);
  EXPECT_EQ(domain["times"]["requests"]["commit"]["count"], 1);
  json page = json::parse(Get(port_, "/status.json?domain=chat").body);
  for (const char* field : {"acquire_blocks_hit", "acquire_blocks_missed", "blocks_sealed",
                            "acquire_tokens_by_tier", "block_count"}) {
    EXPECT_EQ(page["status"]["domain"][field], domain[field]) << field;
  }
  const json prefixes = json::parse(Get(port_, "/prefixes.json").body);
  EXPECT_EQ(prefixes["block_count"], 4);
  EXPECT_EQ(prefixes["tree"][0]["group"], "tiny");
}

TEST_F(DaemonMetricsTest, SmokeHealthAndReadinessAreTold) {
  Start();
  EXPECT_EQ(Get(port_, "/healthz").status, 200u);
  EXPECT_EQ(Get(port_, "/readyz").body, "ready\n");
  EXPECT_EQ(Get(port_, "/").status, 200u);
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0);
  EXPECT_EQ(Get(port_, "/healthz").status, 0u);
}

TEST_F(DaemonMetricsTest, NobodyListensUnlessAsked) {
  daemon_.Start({"--config", Config("")});
  ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  EXPECT_THAT(daemon_.Errors(), testing::Not(HasSubstr("event=metrics")));
}

// It serves its clients, says what is wrong, and has the port when it is free.
TEST_F(DaemonMetricsTest, APortThatIsTakenKeepsNoDaemonFromServing) {
  uint16_t port = 0;
  const int fd = test::ListenAnywhere(&port);
  port_ = port;
  daemon_.Start({"--config", Config("listen = \"127.0.0.1:" + std::to_string(port) + "\"\n")});
  ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  const auto client = Connect(daemon_);
  ASSERT_TRUE(client->WaitConnected(test::kLongUs).ok());
  const auto trouble = [&client]() -> std::string {
    return json::parse(client->Stats(test::kLongUs).value())["metrics_trouble"];
  };
  EXPECT_TRUE(Eventually(
      [&] { return daemon_.Errors().find("metrics are not served") != std::string::npos; }));
  EXPECT_THAT(daemon_.Errors(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)),
                                      HasSubstr("in use"), HasSubstr("free the port")));
  EXPECT_THAT(trouble(), AllOf(HasSubstr(std::to_string(port)), HasSubstr("in use")));
  close(fd);
  EXPECT_TRUE(Eventually([&] { return Get(port, "/healthz").status == 200; }));
  EXPECT_EQ(trouble(), "");
}

TEST_F(DaemonMetricsTest, ASocketFromSystemdIsServed) {
  uint16_t port = 0;
  const int fd = test::ListenAnywhere(&port);
  daemon_.Start({"--config", Config("")}, {.listening_fd = fd, .listening_name = "metrics.http"});
  ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  EXPECT_EQ(Get(port, "/readyz").body, "ready\n");
  EXPECT_TRUE(Connect(daemon_)->WaitConnected(test::kLongUs).ok()) << "and its own domain's";
  close(fd);
}

// systemd's filter drops packets without a word: the daemon says it instead.
TEST_F(DaemonMetricsTest, UnderSystemdAnAddressThatItsUnitForbidsIsSaid) {
  setenv("INVOCATION_ID", "0123456789abcdef0123456789abcdef", 1);
  Start();
  unsetenv("INVOCATION_ID");
  EXPECT_TRUE(Eventually([&] {
    return daemon_.Errors().find("metrics need an allowed address") != std::string::npos;
  })) << daemon_.Errors();
  EXPECT_THAT(daemon_.Errors(),
              AllOf(HasSubstr("IPAddressDeny"), HasSubstr("terraced-metrics.socket")));
}

// Connections that ask a little and wait, more than there may be.
TEST_F(DaemonMetricsTest, SlowVisitorsKeepNeitherOthersNorClientsAway) {
  Start();
  std::vector<std::unique_ptr<test::Visitor>> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(std::make_unique<test::Visitor>(port_));
    slow.back()->Say("GET /metrics HTTP/1.1\r\n");
    if (i % 20 == 0) {
      EXPECT_EQ(Get(port_, "/healthz").status, 200u) << i;
    }
  }
  EXPECT_EQ(Get(port_, "/healthz").status, 200u);
  EXPECT_TRUE(Connect(daemon_)->WaitConnected(test::kLongUs).ok());
}

}  // namespace
}  // namespace terrace
