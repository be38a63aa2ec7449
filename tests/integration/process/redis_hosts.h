// Hosts that share a Redis server: each a real terraced with its own directory and arena, and one
// domain secret for all. What a test stores says who stored it.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "integration/process/daemon_process.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"

namespace terrace::test {

// Polls for what happens in another process. False after a minute.
template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 6'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class RedisHost {
 public:
  // `redis` is the rest of the [redis] table, in TOML. Patient unless it says otherwise: what a
  // loaded machine does to a server is not what is tested.
  static std::string Patient() {
    return "probe_timeout_us = 10000000\nabsence_ms = 1\ncommand_timeout_ms = 30000\n"
           "connect_timeout_ms = 30000\n";
  }
  // No endpoint: a host without a Redis tier.
  RedisHost(const std::string& endpoint, const std::string& redis, const std::string& more = "") {
    const std::string secret = WriteSecret('7');
    const std::string table =
        endpoint.empty() ? "" : "[redis]\nendpoints = [\"" + endpoint + "\"]\n" + redis;
    config_ = daemon_.WriteFile(
        "t.toml",
        "[daemon]\ndram_bytes = \"32MiB\"\nsegment_bytes = \"2MiB\"\nsegments_spare = 16\n"
        "state_dir = \"" +
            secret + ".state\"\n" + more + table + "[[domain]]\nname = \"default\"\nsocket = \"" +
            daemon_.socket_path() + "\"\nsecret_file = \"" + secret + "\"\n");
    daemon_.Start({"--config", config_});
  }
  // A restart takes it.
  void RenameDomain(const std::string& name) {
    std::ifstream stream(config_);
    std::string config{std::istreambuf_iterator<char>(stream), {}};
    const size_t at = config.find("name = \"") + 8;
    config.replace(at, config.find('"', at) - at, name);
    (void)daemon_.WriteFile("t.toml", config);
  }
  // The same. One of its own socket, that nobody uses.
  void AddDomain(const std::string& name, bool has_own_secret = false) {
    std::ofstream config(config_, std::ios::app);
    config << "[[domain]]\nname = \"" << name << "\"\nsocket = \"" << daemon_.directory()
           << "/2.sock\"\n";
    ++domain_count_;
    if (!has_own_secret) config << "secret_file = \"" << daemon_.directory() << "/secret\"\n";
  }
  // In state_dir, whose names begin so.
  size_t KeptFiles(const std::string& begin) const {
    namespace fs = std::filesystem;
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(daemon_.directory() + "/secret.state")) {
      if (entry.path().filename().string().starts_with(begin)) ++count;
    }
    return count;
  }
  // One of many, by a hex digit: a restart takes it.
  std::string WriteSecret(char which) {
    std::string digits;
    for (int i = 0; i < 192; ++i) {
      digits += "0123456789abcdef"[i % 16];
      digits += i / 16 % 2 == 0 ? which : 'e';
    }
    return daemon_.WriteFile("secret", "terrace-secret-1 " + digits + "\n");
  }
  // False, with what it said in errors(), if it does not serve in time.
  bool Connect(uint32_t part_count = 2) {
    part_count_ = part_count;
    if (!daemon_.WaitReady()) return false;
    client_ = NewClient();
    if (client_ == nullptr) return false;
    group_ = client_->Open(Model(part_count), 1).value();
    // Of several domains one may have populated most of the segments that all share.
    const uint32_t enough = domain_count_ == 1 ? 14 : 4;
    return Eventually([&] { return Stats()["domain"]["segments_populated"] >= enough; });
  }
  // Ended by `signal`, and there again.
  bool Restart(int signal) {
    Begin(signal);
    return Connect(part_count_);
  }
  // The same; nobody has opened a group yet.
  void Begin(int signal) {
    client_.reset();
    daemon_.Signal(signal);
    (void)daemon_.Wait();
    daemon_.Start({"--config", config_});
  }
  std::unique_ptr<Client> NewClient() {
    ClientOptions options;
    options.socket_path = daemon_.socket_path();
    options.default_deadline_us = kLongUs;
    auto client = std::move(Client::Create(options)).value();
    return client->WaitConnected(kLongUs).ok() ? std::move(client) : nullptr;
  }

  Client& client() { return *client_; }
  GroupRef group() const { return group_; }
  DaemonProcess& daemon() { return daemon_; }
  const std::string& config() const { return config_; }
  nlohmann::json Stats() { return nlohmann::json::parse(client_->Stats(kLongUs).value()); }
  uint64_t Redis(const char* counter) { return Stats()["redis"][counter]; }
  bool IsReady() { return Stats()["redis"]["is_ready"]; }

  // What `writer` stores under that key.
  static std::vector<std::byte> BytesBy(uint64_t writer, const BlockKey& key, uint32_t part) {
    return Bytes({.low = key.low + 1000 * writer, .high = key.high}, part);
  }
  uint32_t Store(const std::vector<BlockKey>& keys, uint64_t writer = 0,
                 const RequestOptions& options = {}) {
    auto lease = client_->Reserve(group_, keys, options).value();
    for (uint32_t k = 0; k < keys.size(); ++k) {
      for (uint32_t part = 0; part < part_count_ && lease.is_reserved(k); ++part) {
        (void)lease.WritePart(k, 0, part, BytesBy(writer, keys[k], part));
      }
    }
    return client_->Commit(lease).value();
  }
  struct Loaded {
    uint32_t block_count = 0;  // at the front of the prefix, ready
    uint32_t wrong_count = 0;  // of those, not exactly what one of the writers stored
    protocol::TierKind tier = protocol::TierKind::kDram;  // of the first
    std::vector<uint64_t> writers;                        // of each block
  };
  Loaded Load(const std::vector<BlockKey>& keys, const RequestOptions& options = {},
              uint64_t writer_count = 1) {
    return LoadBy(*client_, group_, keys, options, writer_count, part_count_);
  }
  static Loaded LoadBy(Client& client, GroupRef group, const std::vector<BlockKey>& keys,
                       const RequestOptions& options = {}, uint64_t writer_count = 1,
                       uint32_t part_count = 2) {
    Loaded loaded;
    auto lease = client.Acquire(group, keys, options).value();
    if (lease.block_count() > 0) (void)client.WaitReady(lease, lease.block_count(), kLongUs);
    if (!lease.spans().empty()) {
      loaded.tier = static_cast<protocol::TierKind>(lease.spans()[0].tier);
    }
    loaded.block_count = lease.ready_count();
    std::vector<std::byte> bytes(kPartBytes);
    for (uint32_t k = 0; k < loaded.block_count; ++k) {
      uint64_t writer = 0;
      for (; writer < writer_count; ++writer) {
        bool is_same = true;
        for (uint32_t part = 0; part < part_count && is_same; ++part) {
          is_same =
              lease.CopyPart(k, 0, part, bytes).ok() && bytes == BytesBy(writer, keys[k], part);
        }
        if (is_same) break;
      }
      if (writer == writer_count) ++loaded.wrong_count;
      loaded.writers.push_back(writer);
    }
    return loaded;
  }

 private:
  DaemonProcess daemon_;
  std::string config_;
  uint32_t domain_count_ = 1;
  std::unique_ptr<Client> client_;
  GroupRef group_;
  uint32_t part_count_ = 2;
};

}  // namespace terrace::test
