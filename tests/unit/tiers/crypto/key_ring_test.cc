#include "tiers/crypto/key_ring.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace terrace {
namespace {

const std::string kA = "terrace-key-1 " + std::string(62, 'a') + "01\n";
const std::string kB = "terrace-key-1 " + std::string(62, 'b') + "02\n";

std::string WhyRefused(const std::string& text) {
  std::string why;
  const auto ring = ParseKeyRing(text, &why);
  EXPECT_EQ(ring.code(), StatusCode::kInvalid) << text;
  EXPECT_EQ(why.find("aaaa"), why.npos) << "a key in a sentence: " << why;
  return why;
}

TEST(KeyRing, TheFirstEncryptsAndAllAreFoundByTheirIds) {
  std::string why;
  const auto ab = ParseKeyRing("# of both hosts\n\n" + kA + kB, &why);
  ASSERT_TRUE(ab.ok()) << why;
  const auto b = ParseKeyRing(kB.substr(0, kB.size() - 1), &why);
  ASSERT_TRUE(b.ok()) << why;
  EXPECT_EQ((*ab)->count(), 2u);
  EXPECT_NE((*ab)->first(), (*b)->first());
  EXPECT_NE((*ab)->Find((*ab)->first()), nullptr);
  EXPECT_NE((*ab)->Find((*b)->first()), nullptr);
  EXPECT_EQ((*b)->Find((*ab)->first()), nullptr);
  EXPECT_EQ((*ab)->Describe(), KeyIdText((*ab)->first()) + ", " + KeyIdText((*b)->first()));
  EXPECT_EQ(KeyIdText((*ab)->first()).size(), 16u);
}

TEST(KeyRing, TextThatIsNoRingIsRefusedWithTheLineAndWithoutTheKey) {
  EXPECT_NE(WhyRefused("").find("holds no key"), std::string::npos);
  EXPECT_NE(WhyRefused("# nothing\n").find("holds no key"), std::string::npos);
  EXPECT_NE(WhyRefused(kA + "terrace-key-1 " + std::string(63, 'a')).find("line 2"),
            std::string::npos);
  EXPECT_NE(WhyRefused("terrace-key-1 " + std::string(64, 'A')).find("line 1"), std::string::npos);
  EXPECT_NE(WhyRefused(kA + kA).find("repeats"), std::string::npos);
  EXPECT_NE(WhyRefused("terrace-key-1 " + std::string(64, '3')).find("one byte"),
            std::string::npos);
  std::string many;
  for (int i = 10; i < 27; ++i) {
    many += "terrace-key-1 " + std::string(62, 'a') + std::to_string(i) + "\n";
  }
  EXPECT_NE(WhyRefused(many).find("more than 16"), std::string::npos);
}

class KeyRingFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "terrace-keys-XXXXXX";
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/keys";
    std::ofstream(path_) << kA;
    chmod(path_.c_str(), 0600);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_, path_;
};

TEST_F(KeyRingFile, IsRefusedWithARemedyUnlessOnlyItsOwnerReadsIt) {
  std::string why;
  EXPECT_TRUE(ReadKeyRingFile(path_, &why).ok()) << why;
  chmod(path_.c_str(), 0400);
  EXPECT_TRUE(ReadKeyRingFile(path_, &why).ok()) << why;
  chmod(path_.c_str(), 0640);
  EXPECT_EQ(ReadKeyRingFile(path_, &why).code(), StatusCode::kInvalid);
  EXPECT_NE(why.find("chmod 600 " + path_), why.npos) << why;
  EXPECT_EQ(ReadKeyRingFile(path_ + "2", &why).code(), StatusCode::kNotFound);
  EXPECT_NE(why.find("openssl rand"), why.npos) << why;
  EXPECT_EQ(ReadKeyRingFile(directory_, &why).code(), StatusCode::kInvalid);
  chmod(path_.c_str(), 0600);
  std::ofstream(path_) << std::string(5000, '#');
  EXPECT_EQ(ReadKeyRingFile(path_, &why).code(), StatusCode::kInvalid);
  EXPECT_NE(why.find(path_), why.npos) << why;
}

TEST_F(KeyRingFile, ACredentialOfSystemdMayBeReadableForItsGroup) {
  std::string why;
  chmod(path_.c_str(), 0440);
  EXPECT_EQ(ReadKeyRingFile(path_, &why).code(), StatusCode::kInvalid);
  setenv("CREDENTIALS_DIRECTORY", directory_.c_str(), 1);
  EXPECT_TRUE(ReadKeyRingFile(path_, &why).ok()) << why;
  chmod(path_.c_str(), 0460);
  EXPECT_EQ(ReadKeyRingFile(path_, &why).code(), StatusCode::kInvalid);
  unsetenv("CREDENTIALS_DIRECTORY");
}

}  // namespace
}  // namespace terrace
