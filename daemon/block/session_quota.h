// SessionQuota: who may open one more session. A session counts from Hello until nobody can touch
// the slots it was told of any more: one that hung up counts on while its process lives, and one
// that never was told of a slot ends with its connection.
//
// The limits stand between users who do not trust each other: half of sessions_max is shared out
// equally among the domains, and what is left of it goes to whoever comes first, but no process and
// no user of a domain gets more than their limits. Users who could end the daemon anyhow (root, and
// the daemon's own) have some sessions more, to find out what is wrong.
//
// THREADING: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "terrace/error.h"

namespace terrace {

inline constexpr uint32_t kOperatorSessionsMax = 8;

struct SessionLimits {
  uint32_t sessions_max = 1024;             // over all domains
  uint32_t sessions_per_uid_max = 768;      // of a user in a domain
  uint32_t sessions_per_process_max = 256;  // of a process in a domain
  uint32_t operator_uid = 0;                // the daemon's own; root is one as well
};

// Which limit a session that was not opened had met.
enum class SessionRefusal : uint8_t { kOfProcess, kOfUser, kOfAll };
inline constexpr size_t kSessionRefusalCount = 3;
using SessionRefusals = std::array<uint64_t, kSessionRefusalCount>;

class SessionQuota {
 public:
  struct Owner {
    uint32_t domain_index = 0;
    uint32_t uid = 0;
    uint32_t pid = 0;  // 0: of a PID namespace that is not ours to see; only the user's limit holds
  };

  SessionQuota(const SessionLimits& limits, uint32_t domain_count)
      : limits_(limits), in_domain_(domain_count), refused_(domain_count) {}

  // Counts one more session of `owner`. kNoSpace: which limit, its value and what helps.
  // `*is_extra`, for Give: it is one of the operators' own.
  Error Take(const Owner& owner, bool* is_extra);
  void Give(const Owner& owner, bool is_extra);
  // From now on; sessions_max stays. Who has more keeps them.
  void SetLimits(const SessionLimits& limits) {
    limits_.sessions_per_uid_max = limits.sessions_per_uid_max;
    limits_.sessions_per_process_max = limits.sessions_per_process_max;
  }
  // How often Take said no to somebody of the domain, by SessionRefusal.
  const SessionRefusals& refused(uint32_t domain_index) const { return refused_[domain_index]; }

 private:
  static uint64_t KeyOf(uint32_t domain_index, uint32_t id) {
    return uint64_t{domain_index} << 32 | id;
  }
  Error RoomFor(const Owner& owner, SessionRefusal* refusal) const;
  void Count(const Owner& owner, SessionRefusal refusal) {
    ++refused_[owner.domain_index][static_cast<size_t>(refusal)];
  }

  SessionLimits limits_;
  std::vector<uint32_t> in_domain_;
  std::vector<SessionRefusals> refused_;
  std::unordered_map<uint64_t, uint32_t> of_uid_;  // looked up only, never walked
  std::unordered_map<uint64_t, uint32_t> of_process_;
  uint32_t total_ = 0;        // without the operators' own
  uint32_t extra_count_ = 0;  // theirs
};

}  // namespace terrace
