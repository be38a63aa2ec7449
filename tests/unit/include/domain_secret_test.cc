#include "terrace/domain_secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <new>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

namespace terrace {
namespace {

using ::testing::HasSubstr;

class DomainSecretFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "terrace-secret-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    unlink(Path().c_str());
    rmdir(directory_.c_str());
  }
  std::string Path() const { return directory_ + "/secret"; }
  void Write(const std::string& content, mode_t mode) {
    std::ofstream(Path()) << content;
    ASSERT_EQ(chmod(Path().c_str(), mode), 0);
  }
  // The refusal's code and sentence.
  std::pair<StatusCode, std::string> Refusal() {
    DomainSecret secret;
    std::string why;
    const StatusCode code = ReadDomainSecretFile(Path(), &secret, &why).code();
    return {code, why};
  }
  DomainSecret Counting() {
    DomainSecret secret;
    for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(i);
    return secret;
  }
  std::string directory_;
};

TEST_F(DomainSecretFile, CreatedFileIsPrivateAndReadsBack) {
  std::string why;
  ASSERT_TRUE(CreateDomainSecretFile(Path(), &why).ok()) << why;
  struct stat about;
  ASSERT_EQ(stat(Path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  DomainSecret secret{};
  ASSERT_TRUE(ReadDomainSecretFile(Path(), &secret, &why).ok()) << why;
  std::stringstream content;
  content << std::ifstream(Path()).rdbuf();
  EXPECT_EQ(content.str(), FormatDomainSecret(secret));
  EXPECT_EQ(rmdir(directory_.c_str()), -1) << "only the secret is left in the directory";
}

TEST(DomainSecret, IsOverwrittenWhenItEnds) {
  alignas(DomainSecret) std::array<std::byte, sizeof(DomainSecret)> memory;
  auto* secret = new (memory.data()) DomainSecret;
  secret->fill(std::byte{0xA5});
  secret->~DomainSecret();
  EXPECT_EQ(memory, (std::array<std::byte, sizeof(DomainSecret)>{}));
}

// Whether `needle` lies anywhere in what this process may write to. Whoever asks holds it in a form
// that is not itself: each byte inverted.
bool IsInMemory(std::vector<char> inverted) {
  std::ifstream maps("/proc/self/maps");
  const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(memory, 0);
  bool found = false;
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long begin = 0, end = 0;
    char access[5] = "";
    if (sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3) continue;
    if (access[1] != 'w' || end - begin > (64u << 20)) continue;
    std::vector<char> bytes(end - begin);
    const ssize_t got = pread(memory, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
    const auto is_inverse = [](char byte, char wanted) {
      return byte == static_cast<char>(~wanted);
    };
    found = found || std::search(bytes.begin(), bytes.end(), inverted.begin(), inverted.end(),
                                 is_inverse) != bytes.end();
  }
  close(memory);
  return found;
}

// A part of the secret, which tells as much, and of its text.
struct Inverted {
  explicit Inverted(const DomainSecret& secret) {
    constexpr char kDigits[] = "0123456789abcdef";
    for (size_t i = 64; i < 96; ++i) {
      const auto value = std::to_integer<unsigned>(secret[i]);
      bytes.push_back(static_cast<char>(~value));
      text.push_back(static_cast<char>(~kDigits[value >> 4]));
      text.push_back(static_cast<char>(~kDigits[value & 15]));
    }
  }
  std::vector<char> bytes, text;
};

// A thread that does nothing behind it overwrites nothing by chance, on its stack or in its heap.
TEST_F(DomainSecretFile, NothingOfASecretIsLeftWhereItWasUsed) {
  std::promise<Inverted> is_used;
  std::promise<void> is_over;
  std::thread user([&, path = Path()] {
    std::string why;
    EXPECT_TRUE(CreateDomainSecretFile(path, &why).ok()) << why;
    std::optional<Inverted> inverted;
    {
      DomainSecret secret;
      EXPECT_TRUE(ReadDomainSecretFile(path, &secret, &why).ok()) << why;
      EXPECT_EQ(DomainSecretFingerprint(secret).size(), 16u);
      inverted.emplace(secret);
      EXPECT_TRUE(ReadDomainSecretFile(path, &secret, &why).ok()) << why;
    }
    is_used.set_value(*std::move(inverted));
    is_over.get_future().wait();
  });
  const Inverted inverted = is_used.get_future().get();
  EXPECT_FALSE(IsInMemory(inverted.text));
  EXPECT_FALSE(IsInMemory(inverted.bytes));
  is_over.set_value();
  user.join();
}

// PROMISE: T39 memory
TEST_F(DomainSecretFile, NoTextOfASecretIsLeftInMemory) {
  std::string why;
  ASSERT_TRUE(CreateDomainSecretFile(Path(), &why).ok()) << why;
  std::vector<char> inverted;
  {
    DomainSecret secret;
    ASSERT_TRUE(ReadDomainSecretFile(Path(), &secret, &why).ok()) << why;
    ASSERT_EQ(DomainSecretFingerprint(secret).size(), 16u);
    inverted = Inverted(secret).text;
  }
  EXPECT_FALSE(IsInMemory(inverted));
  std::string text = "+";  // the search itself finds what there is
  for (const char digit : inverted) text += static_cast<char>(~digit);
  EXPECT_TRUE(IsInMemory(inverted)) << text.size();
}

TEST_F(DomainSecretFile, AnExistingSecretIsNeverReplaced) {
  Write(FormatDomainSecret(Counting()), 0600);
  std::string why;
  EXPECT_EQ(CreateDomainSecretFile(Path(), &why).code(), StatusCode::kExists);
  DomainSecret secret{};
  ASSERT_TRUE(ReadDomainSecretFile(Path(), &secret, &why).ok()) << why;
  EXPECT_EQ(secret, Counting());
}

TEST_F(DomainSecretFile, TwoSecretsDiffer) {
  DomainSecret first{}, second{};
  std::string why;
  ASSERT_TRUE(CreateDomainSecretFile(Path(), &why).ok()) << why;
  ASSERT_TRUE(ReadDomainSecretFile(Path(), &first, &why).ok()) << why;
  ASSERT_EQ(unlink(Path().c_str()), 0);
  ASSERT_TRUE(CreateDomainSecretFile(Path(), &why).ok()) << why;
  ASSERT_TRUE(ReadDomainSecretFile(Path(), &second, &why).ok()) << why;
  EXPECT_NE(first, second);
  EXPECT_NE(DomainSecretFingerprint(first), DomainSecretFingerprint(second));
}

TEST_F(DomainSecretFile, MissingFileNamesTheRemedy) {
  const auto [code, why] = Refusal();
  EXPECT_EQ(code, StatusCode::kNotFound);
  EXPECT_THAT(why, HasSubstr("terrace domain new " + Path()));
}

TEST_F(DomainSecretFile, CreateInAMissingDirectoryNamesTheReason) {
  std::string why;
  EXPECT_EQ(CreateDomainSecretFile(directory_ + "/absent/secret", &why).code(), StatusCode::kIo);
  EXPECT_THAT(why, HasSubstr("No such file or directory"));
}

TEST_F(DomainSecretFile, GroupReadableIsRefused) {
  Write(FormatDomainSecret(Counting()), 0640);
  const auto [code, why] = Refusal();
  EXPECT_EQ(code, StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("mode 0640"));
  EXPECT_THAT(why, HasSubstr("chmod 600"));
}

TEST_F(DomainSecretFile, ACredentialOfSystemdMayBeReadableForItsGroup) {
  Write(FormatDomainSecret(Counting()), 0440);
  DomainSecret secret{};
  std::string why;
  setenv("CREDENTIALS_DIRECTORY", directory_.c_str(), 1);
  const Status read = ReadDomainSecretFile(Path(), &secret, &why);
  unsetenv("CREDENTIALS_DIRECTORY");
  EXPECT_TRUE(read.ok()) << why;
  EXPECT_EQ(Refusal().first, StatusCode::kInvalid) << "it is no credential now";
}

TEST_F(DomainSecretFile, ForeignOwnerIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  Write(FormatDomainSecret(Counting()), 0600);
  ASSERT_EQ(chown(Path().c_str(), 12345, 12345), 0);
  const auto [code, why] = Refusal();
  EXPECT_EQ(code, StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("uid 12345"));
}

TEST_F(DomainSecretFile, ShortLongForeignAndConstantContentIsRefused) {
  const std::string good = FormatDomainSecret(Counting());
  const std::pair<std::string, std::string> cases[] = {
      {good.substr(0, good.size() - 3), "holds 382 hex digits, exactly 384"},
      {good + good, "exactly 384"},
      {"", "does not begin with"},
      {std::string(192, 'x'), "does not begin with"},
      {FormatDomainSecret(DomainSecret{}), "one byte repeated"},
  };
  for (const auto& [content, sentence] : cases) {
    Write(content, 0600);
    const auto [code, why] = Refusal();
    EXPECT_EQ(code, StatusCode::kInvalid);
    EXPECT_THAT(why, HasSubstr(sentence));
    EXPECT_THAT(why, HasSubstr(Path()));
  }
  std::string upper = good;
  upper[20] = 'A';
  Write(upper, 0600);
  EXPECT_EQ(Refusal().first, StatusCode::kInvalid);
}

TEST_F(DomainSecretFile, ADirectoryInItsPlaceIsRefused) {
  DomainSecret secret;
  std::string why;
  EXPECT_EQ(ReadDomainSecretFile(directory_, &secret, &why).code(), StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("no regular file"));
}

TEST(DomainSecretText, WithoutTheLastNewlineItIsTheSameSecret) {
  DomainSecret secret{}, read{};
  secret[7] = std::byte{0xab};
  std::string text = FormatDomainSecret(secret), why;
  text.pop_back();
  ASSERT_TRUE(ParseDomainSecret(text, &read, &why).ok()) << why;
  EXPECT_EQ(read, secret);
}

}  // namespace
}  // namespace terrace
