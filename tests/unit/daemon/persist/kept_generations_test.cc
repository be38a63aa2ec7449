// What a host remembers of groups that were forgotten on the shared tier.
#include "daemon/persist/kept_generations.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/persist/kept_file.h"

namespace terrace {
namespace {

DomainSecret SecretOf(uint8_t seed) {
  DomainSecret secret{};
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(seed + i);
  return secret;
}

const RedisPlace kPlace = {.names = 17, .ttl_s = 86'400, .endpoints = {5, UINT64_MAX}};
const RedisMemory kMemory = {
    .generations = {{.group = {1, 2}, .generation = 5, .is_owed = false},
                    {.group = {3, 4}, .generation = UINT64_MAX, .is_owed = true},
                    {.group = {5, 6}, .generation = 0, .is_owed = true}},
    .erasures = {{.group = {1, 2}, .key = {7, 8}, .until_s = 1'800'000'000},
                 {.group = {5, 6}, .key = {9, UINT64_MAX}, .until_s = UINT64_MAX}}};

TEST(KeptGenerations, TextIsReadBackAsItIsOnly) {
  const std::string text = FormatGenerations(kMemory, SecretOf(1));
  EXPECT_EQ(*ParseGenerations(text, SecretOf(1)), kMemory);
  EXPECT_EQ(*ParseGenerations(FormatGenerations({}, SecretOf(1)), SecretOf(1)), RedisMemory());
  EXPECT_FALSE(ParseGenerations(text, SecretOf(2)).ok());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    EXPECT_FALSE(ParseGenerations(damaged, SecretOf(1)).ok()) << i;
    EXPECT_FALSE(ParseGenerations(text.substr(0, i), SecretOf(1)).ok()) << i;
  }
}

// Whatever the seal says: nobody has written it.
TEST(KeptGenerations, WhatSaysTheSameInAnotherWayIsRefused) {
  const std::string text =
      FormatGenerations({.generations = {{.group = {10, 0}, .generation = 5, .is_owed = true}},
                         .erasures = {{.group = {10, 0}, .key = {7, 8}, .until_s = 9}}},
                        SecretOf(1));
  const std::string inside = text.substr(0, text.size() - kKeptSealBytes);
  ASSERT_TRUE(ParseGenerations(inside + KeptSealOf(inside, SecretOf(1)), SecretOf(1)).ok());
  const auto sealed_with = [&](std::string_view old, std::string_view other) {
    std::string changed = inside;
    changed.replace(changed.find(old), old.size(), other);
    return changed + KeptSealOf(changed, SecretOf(1));
  };
  for (const auto& [old, other] : std::vector<std::pair<std::string_view, std::string_view>>{
           {"a 5 1", "A 5 1"}, {"5 1", "05 1"}, {" 9\n", " 09\n"}}) {
    EXPECT_FALSE(ParseGenerations(sealed_with(old, other), SecretOf(1)).ok()) << other;
  }
}

TEST(KeptGenerations, APlaceIsReadBackAsItIsOnly) {
  const std::string text = FormatPlace(kPlace, SecretOf(1));
  EXPECT_EQ(*ParsePlace(text, SecretOf(1)), kPlace);
  EXPECT_EQ(*ParsePlace(FormatPlace({}, SecretOf(1)), SecretOf(1)), RedisPlace());
  EXPECT_FALSE(ParsePlace(text, SecretOf(2)).ok());
  EXPECT_FALSE(ParsePlace(FormatGenerations({}, SecretOf(1)), SecretOf(1)).ok());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    EXPECT_FALSE(ParsePlace(damaged, SecretOf(1)).ok()) << i;
    EXPECT_FALSE(ParsePlace(text.substr(0, i), SecretOf(1)).ok()) << i;
  }
}

constexpr std::chrono::seconds kLong{20};

class KeptFile : public ::testing::Test {
 protected:
  KeptFile() {
    std::string name = ::testing::TempDir() + "kept-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~KeptFile() override { std::filesystem::remove_all(directory_); }

  KeptGenerations::Options OptionsAt(const std::string& path) {
    return {.path = path,
            .place_path = path + "-place",
            .secret = SecretOf(1),
            .place = place,
            .unix_s = 1'000,
            .has_missed_erasure = has_missed_erasure,
            .kept = [this](uint64_t revision) { kept_revision = revision; },
            .trouble = [this](const std::string&) { ++trouble_count; }};
  }

  RedisPlace place = kPlace;
  bool has_missed_erasure = false;
  std::string directory_;
  std::atomic<uint64_t> kept_revision = 0;
  std::atomic<int> trouble_count = 0;
};

TEST_F(KeptFile, TheLastThatWasGivenIsFoundAgain) {
  const std::string path = directory_ + "/new/file";
  {
    KeptGenerations kept(OptionsAt(path));
    EXPECT_EQ(*kept.Load(), RedisMemory()) << "there is none yet";
    kept.Save(1, {});
    kept.Save(2, kMemory);
  }
  EXPECT_EQ(kept_revision, 2u);
  EXPECT_EQ(trouble_count, 0);
  KeptGenerations kept(OptionsAt(path));
  EXPECT_EQ(*kept.Load(), kMemory);
}

// Of what was erased in between nobody there has heard.
TEST_F(KeptFile, WhoComesBackFromElsewhereBelievesNothingThatHeLeft) {
  const std::string path = directory_ + "/file";
  const auto load = [&] { return *KeptGenerations(OptionsAt(path)).Load(); };
  EXPECT_EQ(load(), RedisMemory());
  KeptGenerations(OptionsAt(path)).Save(1, kMemory);
  EXPECT_EQ(load(), kMemory);
  place.endpoints = {7, 5};
  EXPECT_EQ(load(), kMemory) << "a list that has changed one by one leads there";
  place.endpoints = {7};
  EXPECT_EQ(load(), kMemory);
  const auto expect_nothing_believed = [&](const char* where) {
    const RedisMemory memory = load();
    ASSERT_EQ(memory.generations.size(), 3u) << where;
    for (const GroupGeneration& group : memory.generations) EXPECT_TRUE(group.is_owed) << where;
    const KeptErasure all{.until_s = 1'000 + 86'460};
    ASSERT_EQ(memory.erasures.size(), 3u) << where;
    EXPECT_EQ(memory.erasures.front(), all) << where;
    EXPECT_EQ(load(), memory) << "and not once more";
    KeptGenerations(OptionsAt(path)).Save(2, kMemory);
  };
  place.endpoints = {8};
  expect_nothing_believed("another server");
  place.names = 18;
  expect_nothing_believed("other names");
  ASSERT_TRUE(LeaveRedis(path, path + "-place", SecretOf(1)).ok());
  ASSERT_TRUE(LeaveRedis(path, path + "-place", SecretOf(1)).ok());
  expect_nothing_believed("nowhere");
}

// Under another secret, with which all of it had other names.
TEST_F(KeptFile, WhoHasMissedAnErasureBelievesNothingThatHeLeft) {
  const std::string path = directory_ + "/file";
  KeptGenerations(OptionsAt(path)).Save(1, kMemory);
  EXPECT_EQ(*KeptGenerations(OptionsAt(path)).Load(), kMemory);
  has_missed_erasure = true;
  const auto expect_nothing_believed = [](const RedisMemory& memory) {
    EXPECT_FALSE(memory.erasures.empty());
    const KeptErasure all{.until_s = 1'000 + 86'460};
    EXPECT_TRUE(!memory.erasures.empty() && memory.erasures.front() == all);
    for (const GroupGeneration& group : memory.generations) EXPECT_TRUE(group.is_owed);
  };
  std::filesystem::create_directory(path + ".new");  // in the way of the file's draft
  {
    KeptGenerations kept(OptionsAt(path));
    expect_nothing_believed(*kept.Load());
    EXPECT_FALSE(kept.is_loaded_for_good()) << "it is not written down";
  }
  std::filesystem::remove(path + ".new");
  {
    KeptGenerations kept(OptionsAt(path));
    expect_nothing_believed(*kept.Load());
    EXPECT_TRUE(kept.is_loaded_for_good());
  }
  has_missed_erasure = false;
  KeptGenerations kept(OptionsAt(path));
  expect_nothing_believed(*kept.Load());
  EXPECT_TRUE(kept.is_loaded_for_good());
}

TEST_F(KeptFile, WhoHasMissedAnErasureAndHasNoFileBelievesNothingEither) {
  has_missed_erasure = true;
  KeptGenerations kept(OptionsAt(directory_ + "/file"));
  EXPECT_EQ(kept.Load()->erasures, (std::vector<KeptErasure>{{.until_s = 1'000 + 86'460}}));
}

TEST_F(KeptFile, ADomainThatNeverHadAServerHasNoFile) {
  EXPECT_TRUE(LeaveRedis(directory_ + "/file", directory_ + "/place", SecretOf(1)).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

// A release that knew no places has left its file, and one that goes back to it finds nothing new.
TEST_F(KeptFile, AFileOfAReleaseThatKnewNoPlacesIsOfToday) {
  const std::string path = directory_ + "/file";
  const std::string text = FormatGenerations(kMemory, SecretOf(1));
  std::ofstream(path) << text;
  EXPECT_EQ(*KeptGenerations(OptionsAt(path)).Load(), kMemory);
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  place.names = 18;
  EXPECT_NE(*KeptGenerations(OptionsAt(path)).Load(), kMemory);
}

TEST_F(KeptFile, WithoutRedisSuchAReleasesFileIsLeftToo) {
  const std::string path = directory_ + "/file";
  std::ofstream(path) << FormatGenerations(kMemory, SecretOf(1));
  ASSERT_TRUE(LeaveRedis(path, path + "-place", SecretOf(1)).ok());
  EXPECT_NE(*KeptGenerations(OptionsAt(path)).Load(), kMemory);
}

TEST_F(KeptFile, APlaceThatCannotBeReadIsAnother) {
  const std::string path = directory_ + "/file";
  KeptGenerations(OptionsAt(path)).Save(1, kMemory);
  EXPECT_EQ(*KeptGenerations(OptionsAt(path)).Load(), kMemory);
  std::ofstream(path + "-place") << "terrace redis place 1\nnonsense";
  EXPECT_NE(*KeptGenerations(OptionsAt(path)).Load(), kMemory);
}

TEST_F(KeptFile, WhatCannotBeReadOrWrittenIsSaid) {
  std::ofstream(directory_ + "/damaged") << "terrace redis generations 1\nnonsense";
  EXPECT_EQ(KeptGenerations(OptionsAt(directory_ + "/damaged")).Load().code(),
            StatusCode::kCorrupt);
  {
    KeptGenerations kept(OptionsAt(directory_ + "/damaged/file"));
    kept.Save(1, kMemory);
  }
  EXPECT_EQ(trouble_count, 1);
  EXPECT_EQ(kept_revision, 0u);
}

TEST_F(KeptFile, WhatCannotBeWrittenYetIsTriedAgainUnasked) {
  std::ofstream(directory_ + "/in the way") << "of a directory";
  const std::string path = directory_ + "/in the way/file";
  std::promise<void> told;
  std::promise<uint64_t> written;
  KeptGenerations::Options options = OptionsAt(path);
  options.trouble = [&](const std::string&) { told.set_value(); };
  options.kept = [&](uint64_t revision) { written.set_value(revision); };
  auto is_told = told.get_future();
  auto revision = written.get_future();
  KeptGenerations kept(options);
  kept.Save(1, kMemory);
  ASSERT_EQ(is_told.wait_for(kLong), std::future_status::ready);
  std::filesystem::remove(directory_ + "/in the way");
  ASSERT_EQ(revision.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(revision.get(), 1u);
  EXPECT_EQ(*KeptGenerations(OptionsAt(path)).Load(), kMemory);
}

// Else a start without a server would not know that there was one.
TEST_F(KeptFile, APlaceThatCannotBeWrittenYetIsTriedAgainUnasked) {
  std::filesystem::create_directory(directory_ + "/file-place.new");
  std::ofstream(directory_ + "/file-place.new/in the way") << "of a draft";
  KeptGenerations kept(OptionsAt(directory_ + "/file"));
  EXPECT_EQ(*kept.Load(), RedisMemory());
  EXPECT_EQ(trouble_count, 1);
  ASSERT_FALSE(std::filesystem::exists(directory_ + "/file-place"));
  std::filesystem::remove_all(directory_ + "/file-place.new");
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (!std::filesystem::exists(directory_ + "/file-place") &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/file-place"));
}

}  // namespace
}  // namespace terrace
