#include "daemon/block/session_quota.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

uint32_t CountIn(const std::unordered_map<uint64_t, uint32_t>& counts, uint64_t key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

void Lower(std::unordered_map<uint64_t, uint32_t>* counts, uint64_t key) {
  const auto found = counts->find(key);
  TERRACE_CHECK(found != counts->end(), "a session is counted once");
  if (--found->second == 0) counts->erase(found);
}

std::string Sentence(const std::string& who, uint32_t count, const char* key, uint32_t limit) {
  return who + " has " + std::to_string(count) + " sessions, the limit daemon." + key + " is " +
         std::to_string(limit) +
         ": end some (a session that hung up counts until its process has ended or has let its "
         "slots go), or raise it";
}

}  // namespace

Error SessionQuota::RoomFor(const Owner& owner, SessionRefusal* refusal) const {
  const uint32_t of_uid = CountIn(of_uid_, KeyOf(owner.domain_index, owner.uid));
  if (of_uid >= limits_.sessions_per_uid_max) {
    *refusal = SessionRefusal::kOfUser;
    return {StatusCode::kNoSpace, Sentence("uid " + std::to_string(owner.uid), of_uid,
                                           "sessions_per_uid_max", limits_.sessions_per_uid_max)};
  }
  // Of 1,024 and 4 domains: 128 are each domain's own, and 512 anybody's.
  const auto domain_count = static_cast<uint32_t>(in_domain_.size());
  const uint32_t share = limits_.sessions_max / 2 / domain_count;
  uint32_t beyond_shares = 0;
  for (const uint32_t count : in_domain_) beyond_shares += count - std::min(count, share);
  const bool has_share = in_domain_[owner.domain_index] < share;
  if (has_share || beyond_shares < limits_.sessions_max - share * domain_count) return {};
  *refusal = SessionRefusal::kOfAll;
  return {StatusCode::kNoSpace, "this domain and the others have " + std::to_string(total_) +
                                    " sessions, the limit daemon.sessions_max is " +
                                    std::to_string(limits_.sessions_max) + ", of which each of " +
                                    std::to_string(domain_count) + " domains keeps " +
                                    std::to_string(share) + ": end some, or raise it"};
}

Error SessionQuota::Take(const Owner& owner, bool* is_extra) {
  *is_extra = false;
  const uint64_t process = KeyOf(owner.domain_index, owner.pid);
  const uint32_t of_process = owner.pid == 0 ? 0 : CountIn(of_process_, process);
  if (of_process >= limits_.sessions_per_process_max) {
    Count(owner, SessionRefusal::kOfProcess);
    return {StatusCode::kNoSpace,
            Sentence("process " + std::to_string(owner.pid), of_process, "sessions_per_process_max",
                     limits_.sessions_per_process_max)};
  }
  SessionRefusal refusal{};
  if (Error full = RoomFor(owner, &refusal); !full.ok()) {
    const bool is_operator = owner.uid == 0 || owner.uid == limits_.operator_uid;
    if (!is_operator || extra_count_ >= kOperatorSessionsMax) {
      Count(owner, refusal);
      return full;
    }
    *is_extra = true;
  }
  if (owner.pid != 0) ++of_process_[process];
  if (*is_extra) {
    ++extra_count_;
    return {};
  }
  ++of_uid_[KeyOf(owner.domain_index, owner.uid)];
  ++in_domain_[owner.domain_index];
  ++total_;
  return {};
}

void SessionQuota::Give(const Owner& owner, bool is_extra) {
  if (owner.pid != 0) Lower(&of_process_, KeyOf(owner.domain_index, owner.pid));
  if (is_extra) {
    --extra_count_;
    return;
  }
  Lower(&of_uid_, KeyOf(owner.domain_index, owner.uid));
  --in_domain_[owner.domain_index];
  --total_;
}

}  // namespace terrace
