// Files of TLS that change while they are in use.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "redis/authority_of_nobody.h"
#include "tiers/redis/wire/file_stamp.h"
#include "tiers/redis/wire/redis_stream.h"

namespace terrace {
namespace {

// The clock of files is coarser than this, and their size stays.
TEST(RedisTls, FilesAreReadAgainHoweverSoonTheyChange) {
  std::string directory = std::filesystem::temp_directory_path() / "terrace-tls-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string ca = directory + "/ca.pem";
  const auto write = [&](const std::string& text) { std::ofstream(ca) << text; };
  write(kAuthorityOfNobody);
  std::string why;
  Result<std::unique_ptr<RedisTls>> opened = RedisTls::Open({.ca_file = ca}, &why);
  ASSERT_TRUE(opened.ok()) << why;
  const std::unique_ptr<RedisTls> tls = std::move(*opened);
  for (int i = 0; i < 50; ++i) {
    write(std::string(sizeof(kAuthorityOfNobody) - 1, 'x'));
    tls->Refresh();
    EXPECT_EQ(tls->trouble().find("tls_ca_file " + ca), 0u) << i << ": " << tls->trouble();
    write(kAuthorityOfNobody);
    tls->Refresh();
    EXPECT_EQ(tls->trouble(), "") << i;
  }
  // Some kernels' clocks would not have told them apart.
  constexpr int64_t kMinuteNs = 60'000'000'000;
  FileStamp stamp = StampOf(ca);
  stamp.changed_ns += kMinuteNs;
  EXPECT_FALSE(IsSettled(stamp));
  stamp.changed_ns -= 2 * kMinuteNs;
  EXPECT_TRUE(IsSettled(stamp));
  std::filesystem::remove_all(directory);
  EXPECT_EQ(StampOf(ca), FileStamp());
  tls->Refresh();
  EXPECT_NE(tls->trouble(), "") << "it is gone";
}

TEST(RedisTls, APipeIsNotWaitedFor) {
  std::string directory = std::filesystem::temp_directory_path() / "terrace-tls-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string pipe = directory + "/pipe.pem", file = directory + "/file.pem";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(file) << kAuthorityOfNobody;
  const std::pair<RedisTlsOptions, std::string> kRefused[] = {
      {{.ca_file = pipe}, "tls_ca_file"},
      {{.ca_file = file, .certificate_file = pipe, .key_file = file}, "tls_certificate_file"},
      {{.ca_file = file, .certificate_file = file, .key_file = pipe}, "tls_key_file"},
  };
  for (const auto& [options, key] : kRefused) {
    std::string why;
    EXPECT_FALSE(RedisTls::Open(options, &why).ok());
    EXPECT_EQ(why, key + " " + pipe + " is no regular file: name a file that holds PEM");
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace terrace
