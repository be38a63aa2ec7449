#include "daemon/process/state_dir_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace terrace {
namespace {

namespace fs = std::filesystem;

class OfStateDir : public ::testing::Test {
 protected:
  OfStateDir() {
    unsetenv("NOTIFY_SOCKET");
    std::string name = ::testing::TempDir() + "state-XXXXXX";
    above_ = mkdtemp(name.data());
    config_.state_dir = above_ + "/state";
    config_.nvme.paths = {above_ + "/drive"};
  }
  ~OfStateDir() override { fs::remove_all(above_); }

  std::string above_;
  DaemonConfig config_;
};

TEST_F(OfStateDir, IsOneDaemonsUntilThatEnds) {
  std::string why;
  {
    StateDirLock first;
    ASSERT_TRUE(first.Take(config_, &why).ok()) << why;
    struct stat about {};
    ASSERT_EQ(stat(config_.state_dir.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777u, 0700u) << "it is made as for its secrets";
    StateDirLock second;
    EXPECT_EQ(second.Take(config_, &why).code(), StatusCode::kBusy);
    EXPECT_NE(why.find(config_.state_dir + " is in use by process " + std::to_string(getpid())),
              std::string::npos)
        << why;
    EXPECT_NE(why.find("a daemon.state_dir of its own"), std::string::npos) << why;
  }
  StateDirLock successor;
  EXPECT_TRUE(successor.Take(config_, &why).ok());
}

TEST_F(OfStateDir, WhoKeepsSecretsAloneSharesIt) {
  config_.nvme.paths.clear();
  std::string why;
  StateDirLock first, second;
  EXPECT_TRUE(first.Take(config_, &why).ok());
  EXPECT_TRUE(second.Take(config_, &why).ok());
  EXPECT_FALSE(fs::exists(config_.state_dir)) << "nothing is made there";
  for (const auto& keep :
       {+[](DaemonConfig* config) { config->redis.endpoints = {"unix:/r"}; },
        +[](DaemonConfig* config) { config->keeper_socket = "/k"; },
        +[](DaemonConfig* config) { config->kv_events.endpoint = "ipc:///e"; }}) {
    DaemonConfig config = config_;
    keep(&config);
    StateDirLock third, fourth;
    EXPECT_TRUE(third.Take(config, &why).ok());
    EXPECT_EQ(fourth.Take(config, &why).code(), StatusCode::kBusy);
  }
}

// Its first erasure would say that the other's drives are away.
TEST_F(OfStateDir, WhoKeepsNothingItselfIsRefusedWhereAnotherDoes) {
  std::string why;
  StateDirLock first, second;
  ASSERT_TRUE(first.Take(config_, &why).ok()) << why;
  DaemonConfig in_memory;
  in_memory.state_dir = config_.state_dir;
  EXPECT_EQ(second.Take(in_memory, &why).code(), StatusCode::kBusy);
}

// And has to write down who was not there.
TEST_F(OfStateDir, ItIsSeenWhetherAnybodyHasKeptMoreThanSecrets) {
  std::string why;
  for (const std::string name :
       {"lock", "nvme-mounts", "default.missed-erasures", "d-1f.redis-place", "default.secret"}) {
    DaemonConfig in_memory;
    in_memory.state_dir = above_ + "/of " + name;
    fs::create_directory(in_memory.state_dir);
    std::ofstream(in_memory.state_dir + "/" + name) << "what it keeps";
    StateDirLock lock;
    EXPECT_TRUE(lock.Take(in_memory, &why).ok()) << why;
    EXPECT_EQ(lock.blocks(), name == "default.secret" ? StateDirLock::Blocks::kNowhere
                                                      : StateDirLock::Blocks::kSomewhere)
        << name;
  }
}

TEST_F(OfStateDir, WhatCannotBeListedMayHaveAnything) {
  DaemonConfig in_memory;
  in_memory.state_dir = above_ + "/file";
  std::ofstream(in_memory.state_dir) << "no directory";
  std::string why;
  StateDirLock lock;
  EXPECT_TRUE(lock.Take(in_memory, &why).ok());
  EXPECT_EQ(lock.blocks(), StateDirLock::Blocks::kSomewhere);
}

TEST_F(OfStateDir, UnderSystemdMemoryMayBeKept) {
  DaemonConfig in_memory;
  in_memory.state_dir = config_.state_dir;
  setenv("NOTIFY_SOCKET", "/run/nobody", 1);
  std::string why;
  StateDirLock lock;
  EXPECT_TRUE(lock.Take(in_memory, &why).ok());
  unsetenv("NOTIFY_SOCKET");
  EXPECT_EQ(lock.blocks(), StateDirLock::Blocks::kPerhaps);
}

TEST_F(OfStateDir, WithoutALockTheDaemonServesAllTheSame) {
  fs::create_directories(config_.state_dir);
  fs::create_symlink(above_ + "/elsewhere", config_.state_dir + "/lock");
  std::string why;
  StateDirLock lock;
  EXPECT_TRUE(lock.Take(config_, &why).ok());
  EXPECT_FALSE(fs::exists(above_ + "/elsewhere")) << "a link leads nowhere";
}

}  // namespace
}  // namespace terrace
