// SessionRegister: the sessions of a Store. A session that hung up stays until its process is
// proven dead, if it ever was told of a slot: it may still touch slots, and it still has segments
// mapped.
//
// THREADING: store thread. LIMITS: those of SessionQuota.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "daemon/block/domain_options.h"
#include "daemon/block/lease_table.h"
#include "daemon/block/session_quota.h"
#include "terrace/error.h"
#include "terrace/protocol_device.h"

namespace terrace {

struct SessionRecord {
  SessionId id = 0;
  uint32_t domain_index = 0;
  uint32_t uid = 0;
  uint32_t pid = 0;
  uint32_t stamp = 0;  // distinguishes uses of one index
  bool is_used = false;
  bool is_extra = false;  // of SessionQuota
  bool is_hung_up = false;
  bool is_dead = false;    // proven, or it never had slots
  bool has_slots = false;  // it was told where some are, so it may have segments mapped
  bool has_device = false;
  std::unique_ptr<protocol::DeviceReport> report;  // the last one
  uint64_t last_sign_us = 0;
  uint32_t deadline = kHandleNone;  // of its silence; none while it has no lease
  uint32_t lease_blocks = 0;        // entries of the leases it owns
  uint64_t lease_charge = 0;        // with what those leases weigh themselves
  uint32_t revoked_count = 0;       // leases that the hang-up has dealt with
  std::vector<LeaseId> leases;      // joined
  std::vector<uint32_t> groups;     // opened
};

class SessionRegister {
 public:
  SessionRegister(const SessionLimits& limits, uint32_t domain_count)
      : quota_(limits, domain_count) {}

  // kNoSpace above a limit. REQUIRES: Find(options.id) finds nothing.
  Error Open(const SessionOptions& options, SessionIndex* index) {
    bool is_extra = false;
    TERRACE_RETURN_IF_REFUSED(
        quota_.Take({options.domain_index, options.uid, options.pid}, &is_extra));
    if (free_.empty()) {
      *index = static_cast<SessionIndex>(records_.size());
      records_.emplace_back();
    } else {
      *index = free_.back();
      free_.pop_back();
    }
    const uint32_t stamp = records_[*index].stamp + 1;
    records_[*index] = SessionRecord{.id = options.id,
                                     .domain_index = options.domain_index,
                                     .uid = options.uid,
                                     .pid = options.pid,
                                     .stamp = stamp,
                                     .is_used = true,
                                     .is_extra = is_extra};
    by_id_.emplace(options.id, *index);
    return {};
  }
  // REQUIRES: it has no leases.
  void Close(SessionIndex index) {
    const SessionRecord& record = records_[index];
    quota_.Give({record.domain_index, record.uid, record.pid}, record.is_extra);
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
  SessionQuota quota_;
  std::vector<SessionRecord> records_;
  std::vector<SessionIndex> free_;
  std::unordered_map<SessionId, SessionIndex> by_id_;  // looked up only, never walked
};

}  // namespace terrace
