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
#include "src/slot_pool.h"
#include "terrace/error.h"
#include "terrace/protocol_device.h"

namespace terrace {

struct SessionRecord {
  SessionId id = 0;
  uint32_t domain_index = 0;
  uint32_t uid = 0;
  uint32_t pid = 0;
  uint32_t stamp = 0;     // distinguishes uses of one index
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
  uint32_t revoked_leases = 0;      // of `leases`, those that were revoked: their slots are fenced
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
    *index = records_.Take({.id = options.id,
                            .domain_index = options.domain_index,
                            .uid = options.uid,
                            .pid = options.pid,
                            .stamp = ++opened_count_,
                            .is_extra = is_extra});
    by_id_.emplace(options.id, *index);
    return {};
  }
  void SetLimits(const SessionLimits& limits) { quota_.SetLimits(limits); }
  const SessionRefusals& refused(uint32_t domain_index) const {
    return quota_.refused(domain_index);
  }
  // REQUIRES: it has no leases.
  void Close(SessionIndex index) {
    const SessionRecord record = records_.Give(index);
    quota_.Give({record.domain_index, record.uid, record.pid}, record.is_extra);
    by_id_.erase(record.id);
  }
  SessionIndex Find(SessionId id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? kSessionNone : found->second;
  }
  SessionRecord& at(SessionIndex index) { return records_[index]; }
  const SessionRecord& at(SessionIndex index) const { return records_[index]; }
  // Whether the index is that session's still.
  bool IsOpen(SessionIndex index, uint32_t stamp) const {
    return records_.is_taken(index) && records_[index].stamp == stamp;
  }
  // visit(index, record) of each, by index.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    records_.ForEach(visit);
  }

 private:
  SessionQuota quota_;
  SlotPool<SessionRecord> records_;
  uint32_t opened_count_ = 0;                          // so far: the stamps
  std::unordered_map<SessionId, SessionIndex> by_id_;  // looked up only, never walked
};

}  // namespace terrace
