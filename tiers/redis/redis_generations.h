// RedisGenerations: which generation of a group's blocks hosts agree on. It is part of every name,
// so what was stored before it rose has no name any more, whoever stored it and whoever comes late.
// One key a group, sealed. Somebody begins the first one; one that has risen says that all of
// before was ordered to be forgotten, or may have been: where the server has lost what hosts knew,
// nobody can tell. docs/REDIS_FORMAT.md.
//
// THREADING: the Redis thread; `done` is called there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/redis/redis_format.h"
#include "tiers/redis/wire/redis_servers.h"

namespace terrace {

class RedisGenerations {
 public:
  struct Options {
    DomainSecret secret{};
    std::string prefix = "terrace";
    uint32_t version = kRedisFormatVersion;  // of the names
    std::function<uint64_t()> unix_us, steady_us;
    RedisServers* servers = nullptr;
  };
  explicit RedisGenerations(Options options);
  // Else it was begun, by who first used the group, or there is none (0).
  static bool HasRisen(uint64_t generation) {
    return generation != 0 && (generation & kBegun) != kBegun;
  }

  // kNoSpace: the server takes no writes, and what it says cannot be believed without one.
  struct Question {
    GroupId group;
    uint64_t at_least = 0;          // as this host knows it
    bool is_from_just_now = false;  // the server itself said so a moment ago
    // The server was away since this host asked it last, or has never been asked.
    bool is_first_since_return = false;
    bool is_again = false;  // one that failed: of those that are refused not each is tried again
    bool is_rise = false;   // beyond what anybody had: the group's blocks are to be forgotten
  };
  struct Agreed {
    uint64_t generation = 0;  // which every host is told from now on
    // It has risen, though nobody ordered that here: the server had lost what hosts knew, or may
    // have.
    bool is_lost = false;
  };
  using Done = std::function<void(Status, const Agreed&)>;
  void Agree(const Question& question, Done done);

 private:
  // In the low bits of what was begun. Releases before this wrote multiples of 1,000,000, which a
  // rise is, and a few more at most.
  static constexpr uint64_t kBegun = 63;
  static constexpr size_t kRefusedMax = 8;  // groups a second
  // Other hosts' rises in between; more is a server that does not keep what it is told.
  static constexpr uint32_t kTriesMax = 8;

  struct Job {
    Question question;
    Done done;
    std::string key;
    std::string found;     // as the server has it, empty: nothing
    bool is_rise = false;  // what is written is: ordered here, or of what the server has lost
    uint32_t try_count = 0;
  };
  void Look(const std::shared_ptr<Job>& job);
  void OnFound(const std::shared_ptr<Job>& job, const RedisAnswer& answer);
  uint64_t Beyond(uint64_t generation, bool is_rise) const;
  bool IsRefused(const GroupId& group) const;
  void NoteRefusal(const Job& job, const RedisAnswer& answer);
  enum class Kind : uint8_t { kOther, kWrite, kRise };
  void Send(const std::string& key, RedisCommand command, Kind kind,
            std::function<void(const RedisAnswer&)> on_answer);
  void Lengthen(const std::shared_ptr<Job>& job, uint64_t said);
  void Write(const std::shared_ptr<Job>& job, uint64_t wanted);

  const Options options_;
  const RedisKeyNames names_;
  // Groups of which a write failed in the second that began then: not each question is one more.
  std::unordered_set<GroupId> refused_;
  uint64_t refused_since_us_ = 0;
  Status refusal_;  // the last one
};

}  // namespace terrace
