// Servers behind TLS: whose certificates are believed, and what becomes of ones that are replaced.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "redis/redis_process.h"
#include "redis/redis_rig.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using testing::FreePort;
using testing::RedisProcess;
using testing::RedisRig;
using testing::RedisTestName;

class Authority {
 public:
  explicit Authority(const std::string& directory) : directory_(directory) {
    Run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=terrace-test-ca -keyout " +
        File("ca.key") + " -out " + File("ca.crt"));
    Run("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=redis.test "
        "-keyout " +
        File("server.key") + " -out " + File("server.csr"));
    Run("x509 -req -days 2 -in " + File("server.csr") + " -CA " + File("ca.crt") + " -CAkey " +
        File("ca.key") + " -CAcreateserial -out " + File("server.crt"));
  }
  std::string File(const std::string& name) const { return directory_ + "/" + name; }

 private:
  static void Run(const std::string& arguments) {
    const std::string command = "openssl " + arguments + " >/dev/null 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  const std::string directory_;
};

#define TERRACE_NEEDS_REDIS_TLS()                                    \
  TERRACE_NEEDS_REDIS();                                             \
  if (testing::FindProgram("openssl").empty()) {                     \
    GTEST_SKIP() << "SKIPPED: the openssl program is not installed"; \
  }

// PROMISE: T43 a wrong certificate, and how soon it is said
TEST(RedisTls, TheNameMustBeTheCertificates) {
  TERRACE_NEEDS_REDIS_TLS();
  char directory[] = "/tmp/terrace_tls_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const Authority authority(directory);
  const uint16_t port = FreePort();
  RedisProcess server(
      {.arguments = {"--tls-port", std::to_string(port), "--tls-cert-file",
                     authority.File("server.crt"), "--tls-key-file", authority.File("server.key"),
                     "--tls-ca-cert-file", authority.File("ca.crt"), "--tls-auth-clients", "no"}});
  const auto options_with = [&](const std::string& ca, const std::string& name) {
    RedisTier::Options options = RedisRig::Options({.host = "127.0.0.1", .port = port});
    options.is_tls = true;
    options.tls = {.ca_file = ca, .server_name = name};
    return options;
  };
  {
    RedisRig rig(options_with(authority.File("ca.crt"), "redis.test"));
    rig.WaitUntilReady();
    for (uint64_t chain = 0; chain < 8; ++chain) {
      ASSERT_TRUE(rig.StoreNow(RedisTestName(chain, 0), 1, 3'000'000).ok());
      const RedisRig::Fetched fetched = rig.FetchNow(RedisTestName(chain, 0), 3'000'000);
      EXPECT_TRUE(fetched.status.ok());
      EXPECT_TRUE(RedisRig::IsTrue(fetched, RedisTestName(chain, 0), 3'000'000));
    }
  }
  for (const char* const name : {"other.test", ""}) {
    // A person must act: it is said within a second, on a machine that is left alone for one of
    // five.
    const auto seconds_until_said = [&](RedisRig* rig) {
      const auto began = std::chrono::steady_clock::now();
      EXPECT_TRUE(rig->RunUntil([&] { return rig->tier().stats().is_refused; })) << name;
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    RedisRig rig(options_with(authority.File("ca.crt"), name));
    double least_s = seconds_until_said(&rig);
    for (int i = 0; i < 4 && least_s > 1.0; ++i) {
      RedisRig other(options_with(authority.File("ca.crt"), name));
      least_s = std::min(least_s, seconds_until_said(&other));
    }
    EXPECT_LE(least_s, 1.0) << name;
    const uint64_t first = rig.tier().stats().connection_attempts;
    const auto began = std::chrono::steady_clock::now();
    ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().connection_attempts >= first + 3; }));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    EXPECT_LE(3 / took.count(), 10.0) << "attempts a second";
    EXPECT_FALSE(rig.tier().stats().is_ready);
    EXPECT_NE(rig.tier().stats().trouble.find("certificate"), std::string::npos);
  }
  RedisRig rig(options_with("", "redis.test"));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().is_refused; })) << "a foreign authority";
  const std::string removed = std::string("rm -r ") + directory;
  EXPECT_EQ(std::system(removed.c_str()), 0);
}

// ---- certificates that are replaced ----

// Two authorities, one server and the files of one host.
class Rotation {
 public:
  Rotation() {
    for (const char* const name : {"one", "two", "server", "host"}) {
      fs::create_directory(Path(name));
    }
  }
  ~Rotation() { fs::remove_all(root_); }

  // As who replaces a file that is read does.
  void Put(const std::string& from, const std::string& to) const {
    fs::copy_file(Path(from), Path("next"), fs::copy_options::overwrite_existing);
    fs::rename(Path("next"), Path(to));
  }
  void PutServer(const std::string& name) const {
    Put(name + "/server.crt", "server/server.crt");
    Put(name + "/server.key", "server/server.key");
  }
  // Who the host believes, and who it is.
  void PutHost(const std::string& name) const {
    Put(name + "/ca.crt", "host/ca.crt");
    PutHostCertificate(name);
  }
  void PutHostCertificate(const std::string& name) const {
    Put(name + "/server.crt", "host/client.crt");
    Put(name + "/server.key", "host/client.key");
  }
  // Both sides are the first authority's, and believe it.
  void BeginWithOne() const {
    for (const char* const name : {"one", "two"}) Authority{Path(name)};
    PutHost("one");
    PutServer("one");
    Put("one/ca.crt", "server/ca.crt");
  }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  RedisProcess::Options Server() const {
    return {.arguments = {"--tls-port", std::to_string(port_), "--tls-cert-file",
                          Path("server/server.crt"), "--tls-key-file", Path("server/server.key"),
                          "--tls-ca-cert-file", Path("server/ca.crt")}};
  }
  RedisTier::Options Host() const {
    RedisTier::Options options = RedisRig::Options({.host = "127.0.0.1", .port = port_});
    options.is_tls = true;
    options.tls = {.ca_file = Path("host/ca.crt"),
                   .certificate_file = Path("host/client.crt"),
                   .key_file = Path("host/client.key"),
                   .server_name = "redis.test"};
    return options;
  }

 private:
  static std::string NewRoot() {
    std::string root = fs::temp_directory_path() / "terrace-tls-XXXXXX";
    EXPECT_NE(mkdtemp(root.data()), nullptr);
    return root;
  }
  const std::string root_ = NewRoot();
  const uint16_t port_ = FreePort();
};

TEST(RedisTls, FilesThatAreReplacedAreReadAgain) {
  TERRACE_NEEDS_REDIS_TLS();
  const Rotation rotation;
  rotation.BeginWithOne();
  RedisProcess server(rotation.Server());
  RedisRig rig(rotation.Host());
  rig.WaitUntilReady();
  rotation.PutServer("two");
  rotation.Put("two/ca.crt", "server/ca.crt");
  server.Kill();
  server.Start();
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().is_tls_refused; }))
      << rig.tier().stats().trouble;
  EXPECT_EQ(rig.tier().stats().trouble, "a Redis server's certificate does not verify");
  rotation.PutHost("two");
  rig.WaitUntilReady();
  EXPECT_FALSE(rig.tier().stats().is_tls_refused);
  EXPECT_EQ(rig.tier().stats().tls_trouble, "");
  EXPECT_TRUE(rig.StoreNow(RedisTestName(1, 0), 1, 1'000).ok());
}

TEST(RedisTls, AHostWhoseCertificateIsRefusedIsToldSoUntilItIsReplaced) {
  TERRACE_NEEDS_REDIS_TLS();
  const Rotation rotation;
  for (const char* const name : {"one", "two"}) Authority{rotation.Path(name)};
  rotation.PutHost("one");
  rotation.PutServer("one");
  rotation.Put("two/ca.crt", "server/ca.crt");
  RedisProcess server(rotation.Server());
  RedisRig rig(rotation.Host());
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().is_tls_refused; }))
      << rig.tier().stats().trouble;
  EXPECT_EQ(rig.tier().stats().trouble, "a Redis server refuses this host's TLS certificate");
  rotation.PutHostCertificate("two");
  rig.WaitUntilReady();
  EXPECT_FALSE(rig.tier().stats().is_tls_refused);
}

TEST(RedisTls, FilesThatCannotBeUsedLeaveThoseOfBeforeInUse) {
  TERRACE_NEEDS_REDIS_TLS();
  const Rotation rotation;
  rotation.BeginWithOne();
  RedisProcess server(rotation.Server());
  RedisRig rig(rotation.Host());
  rig.WaitUntilReady();
  const auto trouble_after_reading = [&](const std::string& wanted) {
    rig.tier().ReadTlsFiles();
    std::string said;
    EXPECT_TRUE(rig.RunUntil([&] {
      said = rig.tier().stats().tls_trouble;
      return wanted.empty() ? said.empty() : said.find(wanted) != said.npos;
    })) << said;
    return said;
  };
  std::ofstream(rotation.Path("host/ca.crt")) << "half a cert";
  EXPECT_NE(trouble_after_reading("tls_ca_file").find(rotation.Path("host/ca.crt")),
            std::string::npos);
  // New connections are made all the same.
  const uint64_t lost = rig.tier().stats().connections_lost;
  server.Kill();
  server.Start();
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().connections_lost > lost; }));
  rig.WaitUntilReady();
  EXPECT_NE(rig.tier().stats().tls_trouble, "");
  rotation.PutHost("one");
  rotation.Put("two/server.key", "host/client.key");
  EXPECT_NE(trouble_after_reading("tls_key_file").find(rotation.Path("host/client.crt")),
            std::string::npos);
  rotation.PutHost("one");
  EXPECT_EQ(trouble_after_reading(""), "");
}

}  // namespace
}  // namespace terrace
