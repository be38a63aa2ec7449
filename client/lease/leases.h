// Leases: the leases of a Client, from the daemon's answer until the daemon knows their end. It
// lends their state, notes what the daemon says of them unasked, and tells it when they are over.
//
// A lease that the daemon gave and nobody wants (its answer came late, or was of no use) is ended
// here as well, so that nothing stays pinned.
//
// THREADING: any thread. What belongs to one lease is guarded as LeaseState says.
// OWNERSHIP: a part of Core; each lease keeps the Core alive.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "client/lease/lease_pool.h"
#include "client/lease/lease_registry.h"
#include "client/lease/lease_state.h"
#include "client/link/frames.h"
#include "client/session/connection.h"
#include "terrace/protocol.h"

namespace terrace::client {

class Leases {
 public:
  explicit Leases(Connection& connection) : connection_(connection) {}
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // A cleared lease. `self` is this, and what the lease keeps alive. May throw std::bad_alloc.
  std::shared_ptr<LeaseState> New(std::shared_ptr<Leases> self) {
    return pool_.Take(std::move(self));
  }
  bool is_forked() const { return connection_.is_forked(); }
  // A holder of a lease did something wrong: the sentence is for Client::last_error().
  void SetError(std::string_view text) { connection_.SetError(text); }

  // The daemon has given it, and it was made ready: it is valid from here on.
  void Admit(LeaseState& lease);
  // A Commit that releases it is about to be sent: from here on nobody writes into its slots, which
  // may be another's at any time. False while a copy of it is under way.
  bool CloseForRelease(LeaseState& lease);
  // That Commit was not sent, or not taken: the lease goes on if nothing else has ended it.
  void StayOpen(LeaseState& lease);
  // A Commit released it in the same step: the daemon is owed nothing.
  void EndedByCommit(LeaseState& lease);
  // Tells the daemon that the lease is over, if it is and the daemon does not know. Never waits.
  void SendEndIfDue(LeaseState& lease);
  // A Join ended between two pages: the daemon's lease is let go. Once, though the last page may
  // just be on its way through the reader, and Admit the lease.
  void GiveUpJoin(LeaseState& lease);
  // An answer gave `token` to nobody. REQUIRES: the reader role.
  void GiveBack(const LeaseToken& token);

  // ---- what the daemon says unasked; REQUIRES: the reader role ----
  void OnCompletion(const protocol::Completion& completion, const Message& message);
  void OnRevoked(const LeaseToken& token);
  // The connection is gone: all leases are invalid.
  void OnDisconnected() { registry_.InvalidateAll(); }

  // Of any lease that is out, for a Touch; zero if none is.
  LeaseToken AnyToken() { return registry_.AnyToken(); }
  // Blocks are to come, so somebody must read.
  bool is_any_coming() const { return registry_.coming_count() > 0; }

 private:
  // The last owner is gone.
  static void Retire(LeaseState& lease);
  void End(LeaseState& lease);
  void SendRelease(uint32_t connection, const LeaseToken& token, uint8_t end_reason,
                   uint32_t times);
  // True if that ended the lease; else a Release has to.
  bool SendAbort(LeaseState& lease);

  Connection& connection_;
  LeasePool pool_{&Leases::Retire};
  LeaseRegistry registry_;
};

// Counts a copy in and out, and sends what had to wait for it.
class LeaseCopy {
 public:
  explicit LeaseCopy(LeaseState& lease) : lease_(lease) { lease_.copy_count.fetch_add(1); }
  ~LeaseCopy() {
    if (lease_.copy_count.fetch_sub(1) == 1 && !lease_.is_valid.load()) {
      lease_.owner->SendEndIfDue(lease_);
    }
  }
  LeaseCopy(const LeaseCopy&) = delete;
  LeaseCopy& operator=(const LeaseCopy&) = delete;

 private:
  LeaseState& lease_;
};

}  // namespace terrace::client
