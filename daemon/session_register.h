// SessionRegister: the sessions of a Store. A session that hung up stays until its process is
// proven dead: it may still touch slots, and it still has segments mapped.
//
// THREADING: store thread. LIMITS: sessions_max, hung-up ones included.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "daemon/lease_table.h"
#include "daemon/store.h"

namespace terrace {

struct SessionRecord {
  SessionId id = 0;
  uint32_t domain_index = 0;
  uint32_t uid = 0;
  uint32_t stamp = 0;  // distinguishes uses of one index
  bool is_used = false;
  bool is_hung_up = false;
  bool is_dead = false;  // proven
  bool has_device = false;
  std::unique_ptr<protocol::DeviceReport> report;  // the last one
  uint64_t last_sign_us = 0;
  uint32_t deadline = kHandleNone;  // of its silence; none while it has no lease
  uint32_t lease_blocks = 0;        // entries of the leases it owns
  uint32_t revoked_count = 0;       // leases that the hang-up has dealt with
  std::vector<LeaseId> leases;      // joined
  std::vector<uint32_t> groups;     // opened
};

class SessionRegister {
 public:
  explicit SessionRegister(uint32_t sessions_max) : sessions_max_(sessions_max) {}

  // kSessionNone above sessions_max. REQUIRES: Find(id) finds nothing.
  SessionIndex Open(SessionId id) {
    if (by_id_.size() >= sessions_max_) return kSessionNone;
    SessionIndex index;
    if (free_.empty()) {
      index = static_cast<SessionIndex>(records_.size());
      records_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    const uint32_t stamp = records_[index].stamp + 1;
    records_[index] = SessionRecord{.id = id, .stamp = stamp, .is_used = true};
    by_id_.emplace(id, index);
    return index;
  }
  // REQUIRES: it has no leases.
  void Close(SessionIndex index) {
    by_id_.erase(records_[index].id);
    records_[index].is_used = false;
    free_.push_back(index);
  }
  SessionIndex Find(SessionId id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? kSessionNone : found->second;
  }
  SessionRecord& at(SessionIndex index) { return records_[index]; }
  const SessionRecord& at(SessionIndex index) const { return records_[index]; }
  // Walk indexes below this, skipping those not in use.
  uint32_t index_count() const { return static_cast<uint32_t>(records_.size()); }

 private:
  uint32_t sessions_max_;
  std::vector<SessionRecord> records_;
  std::vector<SessionIndex> free_;
  std::unordered_map<SessionId, SessionIndex> by_id_;  // looked up only, never walked
};

}  // namespace terrace
