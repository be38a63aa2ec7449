// PendingRegister: the requests that were answered and still have something coming: who asked, by
// which id, of which lease, and until when. What they wait for is Waiters' and ErasureWaits'.
//
// THREADING: store thread. LIMITS: pending_per_session_max requests a session, which is the verbs'
// to keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/lease_table.h"
#include "src/slot_pool.h"

namespace terrace {

using PendingId = uint32_t;
inline constexpr PendingId kPendingNone = 0xFFFFFFFF;

enum class PendingKind : uint8_t { kAcquire, kPrefetch, kWait, kErasure };

struct NewPending {
  PendingKind kind = PendingKind::kAcquire;
  SessionId session = 0;
  uint64_t request_id = 0;
  LeaseId lease = kLeaseNone;  // none for a Wait
  uint64_t member_mask = 0;    // whose parts to tell of
  uint32_t block_count = 0;    // it may wait for so many; 0: not known
  bool is_by_parts = false;    // of blocks that are promoted, too, not only of followed ones
};

// One use of a PendingId; ids are used again.
struct PendingTicket {
  PendingId id = kPendingNone;
  uint32_t stamp = 0;
};

class PendingRegister {
 public:
  explicit PendingRegister(const CacheDomain& domain) : d_(domain) {}

  // kPendingNone if the session has a pending request of that id already.
  PendingId Open(const NewPending& what);
  PendingId Find(SessionId session, uint64_t request_id) const;
  uint32_t CountOf(SessionId session) const;
  std::vector<PendingId> OfLease(LeaseId lease) const;
  std::vector<PendingId> OfSession(SessionId session) const;

  // Those that follow are asked of what Open() gave and Free() has not taken back.
  const NewPending& at(PendingId id) const { return requests_[id].what; }
  bool IsArmed(PendingId id) const { return requests_[id].is_armed; }
  bool IsOver(PendingId id) const { return requests_[id].is_over; }
  PendingTicket TicketOf(PendingId id) const { return {id, requests_[id].stamp}; }
  // Any ticket: its request is not over.
  bool IsCurrent(const PendingTicket& ticket) const {
    return requests_.is_taken(ticket.id) && !requests_[ticket.id].is_over &&
           requests_[ticket.id].stamp == ticket.stamp;
  }
  // The reply is on its way: it expires at that time. Once.
  void Arm(PendingId id, uint64_t deadline_us);
  // Its deadline has just been taken from the heap.
  void OnDeadline(PendingId id) { requests_[id].deadline = kHandleNone; }
  // Nobody finds it any more; the id stays taken until Free().
  void End(PendingId id);
  void Free(PendingId id);

 private:
  struct Request {
    NewPending what;
    uint32_t deadline = kHandleNone;
    uint32_t stamp = 0;
    bool is_armed = false;
    bool is_over = false;
  };
  struct RequestKey {
    SessionId session = 0;
    uint64_t request_id = 0;
    friend bool operator==(const RequestKey&, const RequestKey&) = default;
  };
  struct RequestKeyHash {
    size_t operator()(const RequestKey& key) const {
      return static_cast<size_t>((key.session * 0x9E3779B97F4A7C15) ^ key.request_id);
    }
  };

  const CacheDomain& d_;
  SlotPool<Request> requests_;
  uint32_t opened_count_ = 0;  // so far: the stamps
  // Looked up only, never walked.
  std::unordered_map<RequestKey, PendingId, RequestKeyHash> by_request_;
  std::unordered_map<LeaseId, std::vector<PendingId>> by_lease_;
  std::unordered_map<SessionId, std::vector<PendingId>> by_session_;
};

}  // namespace terrace
