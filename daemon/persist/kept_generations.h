// KeptGenerations: the file in which a domain remembers what its groups' blocks on the Redis server
// are called, and what the server has still to be told: groups to forget, and blocks to erase. So
// neither a restart nor a server that was away brings any of it back. docs/REDIS_FORMAT.md.
//
// THREADING: Save never blocks; a thread writes, and tells on it. The last content given wins.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/redis/redis_tier.h"

namespace terrace {

std::string FormatGenerations(const RedisMemory& memory, const DomainSecret& secret);
// kCorrupt for anything FormatGenerations did not write under this secret.
Result<RedisMemory> ParseGenerations(std::string_view content, const DomainSecret& secret);

class KeptGenerations {
 public:
  struct Options {
    std::string path;
    DomainSecret secret{};
    // What was given as `revision`, or something later, is on the disk; or why it is not. On the
    // thread that writes.
    std::function<void(uint64_t revision)> kept;
    std::function<void(const std::string& sentence)> trouble;
  };
  explicit KeptGenerations(Options options);
  ~KeptGenerations();  // writes what is due

  // What a predecessor kept; nothing if there is no file. kCorrupt, kIo: it cannot be told. Blocks.
  Result<RedisMemory> Load() const;
  void Save(uint64_t revision, RedisMemory memory);

 private:
  struct Due {
    uint64_t revision = 0;
    RedisMemory memory;
  };
  void Run();
  Status Write(const std::string& content) const;

  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<Due> due_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace terrace
