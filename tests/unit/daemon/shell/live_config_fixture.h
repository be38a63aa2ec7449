// A LiveConfig over a file of the test's own, whose reader the test waits for.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/shell/live_config.h"

namespace terrace {

class LiveConfigTest : public testing::Test {
 protected:
  LiveConfigTest() {
    directory_ = (std::filesystem::temp_directory_path() / "terrace-live-XXXXXX").string();
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }
  ~LiveConfigTest() override {
    live_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::string path() const { return directory_ + "/t.toml"; }
  void Write(const std::string& text) const { std::ofstream(path()) << text; }
  std::string keys_path() const { return directory_ + "/t.keys"; }
  void WriteKeys(const std::string& text) const {
    std::ofstream(keys_path()) << text;
    std::filesystem::permissions(
        keys_path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  static std::shared_ptr<const KeyRing> Keys(const std::string& text) {
    std::string why;
    const auto ring = ParseKeyRing(text, &why);
    EXPECT_TRUE(ring.ok()) << why;
    return *ring;
  }
  void Start(const std::string& text, ConfigOverrides overrides = {}) {
    Write(text);
    ConfigSource source{
        .path = path(), .text = text, .overrides = std::move(overrides), .environment = {}};
    source.environment.uid = 1000;
    source.environment.runtime_dir = directory_;
    source.environment.home = directory_;
    const Error loaded = LoadConfig(source, &config_);
    ASSERT_TRUE(loaded.ok()) << loaded.sentence();
    ASSERT_TRUE(LoadKeyRings(config_, &source.rings).ok());
    live_ =
        std::make_unique<LiveConfig>(std::move(source), config_,
                                     LiveConfig::Hooks{.apply = [this] { ++applied_count_; },
                                                       .post =
                                                           [this](std::function<void()> work) {
                                                             const std::lock_guard guard(mutex_);
                                                             posted_ = std::move(work);
                                                             changed_.notify_all();
                                                           }});
  }
  // Its document, or none with the sentence in why_.
  std::optional<nlohmann::json> Ask(protocol::ConfigAction action, const std::string& text = "") {
    std::optional<nlohmann::json> answer;
    live_->Ask(action, text, [&](const Error& error, const std::string& document) {
      if (error.ok()) {
        answer = nlohmann::json::parse(document);
      } else {
        why_ = error.sentence();
      }
    });
    if (action != protocol::ConfigAction::kReload || is_refused_at_once_) return answer;
    WorkOfReader()();
    return answer;
  }
  // What reads the file, as soon as it is asked for.
  std::function<void()> WorkOfReader() {
    std::unique_lock guard(mutex_);
    const bool is_posted =
        changed_.wait_for(guard, std::chrono::seconds(30), [&] { return posted_ != nullptr; });
    EXPECT_TRUE(is_posted) << "nobody asks for the file to be read";
    if (!is_posted) return [] {};
    return std::exchange(posted_, nullptr);
  }
  nlohmann::json Get(const std::string& key) {
    const auto answer = Ask(protocol::ConfigAction::kGet, key);
    return answer && (*answer)["keys"].size() == 1 ? (*answer)["keys"][0] : nlohmann::json();
  }

  static std::vector<std::string> RestartKeys(const nlohmann::json& answer) {
    std::vector<std::string> keys;
    for (const nlohmann::json& row : answer["needs_restart"]) keys.push_back(row["key"]);
    return keys;
  }

  std::string directory_;
  DaemonConfig config_;
  std::unique_ptr<LiveConfig> live_;
  std::string why_;
  int applied_count_ = 0;
  bool is_refused_at_once_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> posted_;
};

}  // namespace terrace
