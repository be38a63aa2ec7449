// KeptGenerations: the file in which a domain remembers what its groups' blocks on the Redis server
// are called, and what the server has still to be told: groups to forget, and blocks to erase. So
// neither a restart nor a server that was away brings any of it back. docs/REDIS_FORMAT.md.
//
// Beside it lies another, with the place where they are called so. What is erased while a domain is
// somewhere else, or nowhere, is told to nobody there: who comes back believes nothing that he
// left. Both are of one secret: under another all names are others, and MissedErasures says whether
// anything was erased.
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

// Where names of blocks mean something. As digests: a file need not tell of servers.
struct RedisPlace {
  static constexpr size_t kEndpointsMax = 64;
  uint64_t names = 0;               // of all that is in a name; 0: nowhere, there is no server
  uint64_t ttl_s = 0;               // how long a block stays there
  std::vector<uint64_t> endpoints;  // any of them leads there

  // Lists of Sentinels and nodes change one by one.
  bool IsSameAs(const RedisPlace& other) const;
  friend bool operator==(const RedisPlace&, const RedisPlace&) = default;
};

std::string FormatPlace(const RedisPlace& place, const DomainSecret& secret);
// kCorrupt for anything FormatPlace did not write under this secret.
Result<RedisPlace> ParsePlace(std::string_view content, const DomainSecret& secret);

std::string FormatGenerations(const RedisMemory& memory, const DomainSecret& secret);
// kCorrupt for anything FormatGenerations did not write under this secret.
Result<RedisMemory> ParseGenerations(std::string_view content, const DomainSecret& secret);

class KeptGenerations {
 public:
  struct Options {
    std::string path;        // of the generations
    std::string place_path;  // of another file; no release has to know both
    DomainSecret secret{};
    RedisPlace place;     // of today
    uint64_t unix_s = 0;  // now
    // Something was erased while another secret was served: nothing of before is believed.
    bool has_missed_erasure = false;
    // What was given as `revision`, or something later, is on the disk; or why it is not. On the
    // thread that writes.
    std::function<void(uint64_t revision)> kept;
    std::function<void(const std::string& sentence)> trouble;
  };
  explicit KeptGenerations(Options options);
  ~KeptGenerations();  // writes what is due, if it can be written now

  // What a predecessor kept; nothing if there is no file. If he was elsewhere, or an erasure was
  // missed, with all of his groups owed, and those to be met. The place is on the disk then.
  // kCorrupt, kIo: it cannot be told. Blocks.
  Result<RedisMemory> Load();
  // A successor will find what Load has given, and need not be told again of a missed erasure.
  bool is_loaded_for_good() const { return is_loaded_for_good_; }
  // Tried again each second while it cannot be written.
  void Save(uint64_t revision, RedisMemory memory);

 private:
  struct Due {
    uint64_t revision = 0;
    RedisMemory memory;
  };
  void Run();
  Status WritePlace() const;
  void Tell(const std::string& path, const Status& status) const;

  const Options options_;
  bool is_loaded_for_good_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<Due> due_;
  bool is_place_due_ = false;  // could not be written at the start
  bool is_stopping_ = false;
  std::thread thread_;
};

// A domain without a server begins: whoever had one before is nowhere now. Nothing if there is
// neither file. Blocks.
Status LeaveRedis(const std::string& path, const std::string& place_path,
                  const DomainSecret& secret);

}  // namespace terrace
