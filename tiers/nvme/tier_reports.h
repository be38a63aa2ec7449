// TierReports: what a tier tells its listener, in the tier's domain. Room is told of only to who
// asked in vain, and once.
//
// THREADING: the store thread. OWNERSHIP: the listener outlives it.
#pragma once

#include <cstdint>
#include <utility>

#include "terrace/check.h"
#include "tiers/tier.h"

namespace terrace {

class TierReports {
 public:
  explicit TierReports(uint32_t domain_index) : domain_index_(domain_index) {}

  // Before the first transfer.
  void SetListener(TierListener* listener) {
    TERRACE_CHECK(listener != nullptr, "a transfer has somebody to report to");
    listener_ = listener;
  }
  bool has_listener() const { return listener_ != nullptr; }

  void TransferDone(TransferId transfer_id, Status status) {
    listener_->OnTransferDone(transfer_id, status);
  }
  void Persisted(uint32_t owner, CommitId commit_id, uint32_t member) {
    listener_->OnPersisted(domain_index_, owner, commit_id, member);
  }
  void RecordInDoubt(uint32_t owner) { listener_->OnRecordInDoubt(domain_index_, owner); }

  // Somebody asked for room in vain.
  void WantRoom() { is_room_wanted_ = true; }
  // There may be some.
  void OfferRoom() {
    if (std::exchange(is_room_wanted_, false)) listener_->OnRoom(domain_index_);
  }

 private:
  const uint32_t domain_index_;
  TierListener* listener_ = nullptr;
  bool is_room_wanted_ = false;
};

}  // namespace terrace
