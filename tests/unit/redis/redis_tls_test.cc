// Files of TLS that change while they are in use.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "tiers/redis/file_stamp.h"
#include "tiers/redis/redis_stream.h"

namespace terrace {
namespace {

// Of an authority that nobody has the key of.
constexpr char kAuthority[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBcDCCARWgAwIBAgIUaMACgZZ0fDL8q9FSBToQSYl0CUIwCgYIKoZIzj0EAwIw\n"
    "DDEKMAgGA1UEAwwBdDAgFw0yNjExMjcxNzM2NThaGA8yMTI2MTEwMzE3MzY1OFow\n"
    "DDEKMAgGA1UEAwwBdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABE8C5wJk+SZ7\n"
    "13SaTTet3voORISZGRcpN2+4C7B4ipU6KkAt3OYd+j1+knrDsF9YelpFv3DS9xoM\n"
    "Fk3QE6g/H16jUzBRMB0GA1UdDgQWBBS12BhgxZMXq3QXlKdMR/4wOWK3HzAfBgNV\n"
    "HSMEGDAWgBS12BhgxZMXq3QXlKdMR/4wOWK3HzAPBgNVHRMBAf8EBTADAQH/MAoG\n"
    "CCqGSM49BAMCA0kAMEYCIQC0rz/aD5zjDE9dQc1AesZgKQ233cH0LpFkddjJGT2N\n"
    "mgIhANJLM51eRG8/1je6j/oLjGdyRG25a5n8/khzBgstefhx\n"
    "-----END CERTIFICATE-----\n";

// The clock of files is coarser than this, and their size stays.
TEST(RedisTls, FilesAreReadAgainHoweverSoonTheyChange) {
  std::string directory = std::filesystem::temp_directory_path() / "terrace-tls-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string ca = directory + "/ca.pem";
  const auto write = [&](const std::string& text) { std::ofstream(ca) << text; };
  write(kAuthority);
  std::string why;
  Result<std::unique_ptr<RedisTls>> opened = RedisTls::Open({.ca_file = ca}, &why);
  ASSERT_TRUE(opened.ok()) << why;
  const std::unique_ptr<RedisTls> tls = std::move(*opened);
  for (int i = 0; i < 50; ++i) {
    write(std::string(sizeof(kAuthority) - 1, 'x'));
    tls->Refresh();
    EXPECT_EQ(tls->trouble().find("tls_ca_file " + ca), 0u) << i << ": " << tls->trouble();
    write(kAuthority);
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

}  // namespace
}  // namespace terrace
