// RedisGenerations: which generation of a group's blocks hosts agree on. It is part of every name,
// so what was stored before it rose has no name any more, whoever stored it and whoever comes late.
// One key a group, sealed; it only rises, also where the server has lost it. docs/REDIS_FORMAT.md.
//
// THREADING: the Redis thread; `done` is called there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/redis/redis_format.h"
#include "tiers/redis/redis_servers.h"

namespace terrace {

class RedisGenerations {
 public:
  struct Options {
    DomainSecret secret{};
    std::string prefix = "terrace";
    uint32_t version = kRedisFormatVersion;        // of the names
    uint64_t ttl_ms = 24 * 3600 * uint64_t{1000};  // of blocks
    std::function<uint64_t()> unix_us;
    RedisServers* servers = nullptr;
  };
  explicit RedisGenerations(Options options);

  struct Question {
    GroupId group;
    uint64_t at_least = 0;  // as this host knows it
    bool is_rise = false;   // beyond what anybody had: the group's blocks are to be forgotten
  };
  // kOk: the generation, which every host is told from now on.
  using Done = std::function<void(Status, uint64_t generation)>;
  void Agree(const Question& question, Done done);

 private:
  // Other hosts' rises in between; more is a server that does not keep what it is told.
  static constexpr uint32_t kTriesMax = 8;

  struct Job {
    Question question;
    Done done;
    std::string key;
    std::string found;  // as the server has it, empty: nothing
    uint32_t try_count = 0;
  };
  void Look(const std::shared_ptr<Job>& job);
  void OnFound(const std::shared_ptr<Job>& job, const RedisAnswer& answer);
  uint64_t Beyond(uint64_t generation) const;
  std::string TtlMs() const;
  void Send(const std::string& key, RedisCommand command,
            std::function<void(const RedisAnswer&)> on_answer);

  const Options options_;
  const RedisKeyNames names_;
};

}  // namespace terrace
